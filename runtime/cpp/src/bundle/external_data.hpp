// External data of an ONNX graph: which file has it, and from which byte on (onnx.proto).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace txport::core {

// The bytes of a model whose external data is `start` bytes further back, in the file `location` beside the model.
// Throws BundleError: it is not an ONNX model.
std::string moved_external_data(std::string_view model, const std::string& location, std::size_t start);

}  // namespace txport::core
