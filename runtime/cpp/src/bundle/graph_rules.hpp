// Checks of graphs before a library parses them. The Python twin is runtime/bundle/graph_rules.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bundle/bundle.hpp"

namespace txport::core {

// Maximum size of a graph in bytes.
inline constexpr std::size_t kLargestGraph = std::size_t{64} << 20;

// Throw BundleError if a graph of a bundle is not an ONNX model, or contains something that tx-export does not write.
void check_graph(const Bundle& bundle, const std::string& name);

// Check a serialised ModelProto. `weights` is the size of weights.bin. The message continues a sentence that begins
// with the name.
void check_graph(std::string_view model, std::uint64_t weights);

}  // namespace txport::core
