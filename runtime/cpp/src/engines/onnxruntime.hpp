// Loading of ONNX Runtime's library at its first use.
//
// It is not linked, because its symbol carries the exact version: a program linked with 1.31.1 would not run with any
// other version, although the C API is compatible.
#pragma once

#include <onnxruntime_c_api.h>

namespace txport::core {

// Return the entry point of the library: the file in the environment variable TXPORT_ONNXRUNTIME, otherwise
// libonnxruntime.so.1 as found by the loader. Programs in a build folder find the library of the configuration. Throws
// MissingLibrary: no library can be loaded.
const OrtApiBase& onnxruntime_library();

}  // namespace txport::core
