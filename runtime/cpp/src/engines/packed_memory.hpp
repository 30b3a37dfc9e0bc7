// Memory for the weights that ONNX Runtime packs when it opens a graph.
//
// Packing writes as many bytes as there are weights, and a third of its time would go into the first touch of each page
// of 4 kB. Packed weights therefore stand side by side in large mappings, and each block is made resident by one call.
// Huge pages are not asked for: on virtual machines that give free memory back to their host, each one that comes anew
// may cost more than all small pages together.
#pragma once

#include <cstddef>

namespace txport::core {

// `bytes` for packed weights, or a null pointer. Small blocks are like those of plain_allocate.
void* packed_allocate(std::size_t bytes) noexcept;

// `bytes` for anything else, or a null pointer.
void* plain_allocate(std::size_t bytes) noexcept;

// Give back what one of these returned; a null pointer is nothing.
void packed_free(void* block) noexcept;

}  // namespace txport::core
