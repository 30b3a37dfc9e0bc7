// ONNX Runtime's library, opened when it is first needed.
//
// It is not linked, because its one symbol carries its exact version: a program that was linked with 1.31.1 would run
// with no other, although the C API is compatible.
#pragma once

#include <onnxruntime_c_api.h>

namespace txport::core {

// The library's entry: that of the file named by the environment variable TXPORT_ONNXRUNTIME, else of the one that the
// loader finds as libonnxruntime.so.1, in a folder of the build the one that it was configured with. Throws
// MissingLibrary: none can be loaded.
const OrtApiBase& onnxruntime_library();

}  // namespace txport::core
