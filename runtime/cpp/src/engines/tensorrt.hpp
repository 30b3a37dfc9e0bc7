// TensorRT's runtime library, opened on first use, and the differences between its generations.
//
// Its interfaces are C++ classes whose layout is that of one major version: the headers of the build and the library
// must be of the same one. createInferRuntime_INTERNAL, the C function under createInferRuntime, is in all of them.
#pragma once

#include <NvInferRuntime.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "engines/build_record.hpp"

namespace txport::core {

// Keeps TensorRT's first error since the last call of `why`: later ones are often mere consequences, but memory that
// ran out may be reported in any of them.
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
// Throws MissingLibrary: there is none, it is older than 8.6, or of another major version than the headers.
LibraryVersion tensorrt_version();

// A runtime of that library, which must not outlive its log. Throws as tensorrt_version, and EngineError: it does not
// start.
std::unique_ptr<nvinfer1::IRuntime> make_tensorrt_runtime(TensorRtLog& log);

// Device memory for the temporaries of one context of this engine, in whichever profile needs the most.
std::size_t scratch_bytes(const nvinfer1::ICudaEngine& engine);

// An execution context whose temporaries are in the caller's memory, which must have at least `scratch_bytes` and stay
// as long as the context and what was captured of it; null if TensorRT cannot make one. By default each would have
// memory for the largest profile. Contexts may share it if they run on one stream, as NVIDIA recommends (TensorRT
// issues 2040 and 3276) and TensorRT-LLM does.
std::unique_ptr<nvinfer1::IExecutionContext> new_context(nvinfer1::ICudaEngine& engine, std::byte* scratch,
                                                         std::size_t bytes);

// The manifest's name of a type; empty for one that no bundle has.
std::string name_of(nvinfer1::DataType type);

}  // namespace txport::core
