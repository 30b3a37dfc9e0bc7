// What a graph of a bundle may contain, checked before a library parses it; the same as runtime/bundle/graph_rules.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bundle/bundle.hpp"

namespace txport::core {

// The largest graph that is read, in bytes.
inline constexpr std::size_t kLargestGraph = std::size_t{64} << 20;

// Throws BundleError unless a library may parse this graph of a bundle: it contains more than tx-export writes, or is
// no ONNX model.
void check_graph(const Bundle& bundle, const std::string& name);

// The same for a serialised ModelProto and the size of weights.bin; the message is the rest of a sentence.
void check_graph(std::string_view model, std::uint64_t weights);

}  // namespace txport::core
