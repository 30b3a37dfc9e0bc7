// Memory that a file mapping holds without need.
#pragma once

#include <filesystem>

namespace txport::core {

// Drop the pages of this process's mappings of a file that nobody wrote to; pages that are read again come back.
//
// ONNX Runtime maps weights and then packs most of them into copies of its own. The original of a table that is also
// looked up (a tied embedding) stays mapped with every page that packing has read, of which a lookup touches some rows.
// The system could reclaim these pages, but they count as resident until it does: 63 MB of RSS and of PSS for the base
// preset (16 MB with int8 weights), none of it anonymous. Where there is no /proc/self/smaps (not Linux), nothing
// happens.
void release(const std::filesystem::path& file);

}  // namespace txport::core
