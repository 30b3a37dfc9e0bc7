// TensorRT's runtime library, opened on first use, and the differences between its generations.
//
// Its interfaces are C++ classes whose layout is that of one major version: the headers of the build and the library
// must be of the same one. createInferRuntime_INTERNAL, the C function under createInferRuntime, is in all of them.
#pragma once

#include <NvInferRuntime.h>

#include <memory>
#include <mutex>
#include <string>

#include "engines/build_record.hpp"

namespace txport::core {

// Keeps TensorRT's first error since the last call of `why`; later ones are often mere consequences.
class TensorRtLog : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const nvinfer1::AsciiChar* message) noexcept override;
  // The error as one line; it is then forgotten.
  std::string why();

 private:
  std::mutex mutex_;
  std::string first_;
};

// The library that is installed here, as build.json names it.
// Throws MissingLibrary: there is none, it is too old, or of another major version than the headers.
LibraryVersion tensorrt_version();

// A runtime of that library, which must not outlive its log. Throws as tensorrt_version, and EngineError: it does not
// start.
std::unique_ptr<nvinfer1::IRuntime> make_tensorrt_runtime(TensorRtLog& log);

// The manifest's name of a type; empty for one that no bundle has.
std::string name_of(nvinfer1::DataType type);

}  // namespace txport::core
