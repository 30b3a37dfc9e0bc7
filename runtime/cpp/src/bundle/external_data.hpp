// External data of ONNX models: the file and the offset of weights (onnx.proto).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace txport::core {

// Return a copy of a model with its external data moved to the file `location` in the same folder, `start` bytes
// further back. Throws BundleError: it is not an ONNX model.
std::string moved_external_data(std::string_view model, const std::string& location, std::size_t start);

}  // namespace txport::core
