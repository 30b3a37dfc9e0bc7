// Checks of graphs before a library parses them. The Python twin is runtime/bundle/graph_rules.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bundle/bundle.hpp"

namespace txport::core {

// Maximum size of a graph in bytes.
inline constexpr std::size_t kLargestGraph = std::size_t{64} << 20;

// Return the bytes of a graph of a bundle after checking that a library may parse them. Throws BundleError: it is not
// an ONNX model, or contains something that tx-export does not write.
std::string checked_graph(const Bundle& bundle, const std::string& name);

// Check a serialised ModelProto. `weights` is the size of weights.bin. The message continues a sentence that begins
// with the name.
void check_graph(std::string_view model, std::uint64_t weights);

}  // namespace txport::core
