// TensorRT's runtime library, loaded at its first use, and the differences between its major versions.
//
// Its interfaces are C++ classes whose layout depends on the major version, so the library must have the major version
// of the headers. createInferRuntime_INTERNAL, the C function behind createInferRuntime, exists in all versions.
#pragma once

#include <NvInferRuntime.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "engines/build_record.hpp"

namespace txport::core {

// Stores TensorRT's first error since the last call of `why`. Later errors are often consequences of it, but exhausted
// memory may be reported in any of them.
class TensorRtLog : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const nvinfer1::AsciiChar* message) noexcept override;
  // Return the error as one line and clear it.
  std::string why();

 private:
  std::mutex mutex_;
  std::string first_;
};

// Return the installed library, in the form of build.json. Throws MissingLibrary: it is not installed, older than 8.6,
// or its major version differs from the headers.
LibraryVersion tensorrt_version();

// Create a runtime, which must not outlive its log. Throws the errors of tensorrt_version, and EngineError: the runtime
// does not start.
std::unique_ptr<nvinfer1::IRuntime> make_tensorrt_runtime(TensorRtLog& log);

// Return the size of device memory for temporaries of one context of this engine, for its largest profile.
std::size_t scratch_bytes(const nvinfer1::ICudaEngine& engine);

// Create an execution context whose temporaries are in memory of the caller; null if TensorRT fails. The memory must
// have at least `scratch_bytes` and outlive the context and its captured graphs. By default, each context would
// allocate memory for the largest profile. Contexts on one stream may share the memory, as NVIDIA recommends (TensorRT
// issues 2040 and 3276) and TensorRT-LLM does.
std::unique_ptr<nvinfer1::IExecutionContext> new_context(nvinfer1::ICudaEngine& engine, std::byte* scratch,
                                                         std::size_t bytes);

// Return the manifest's name of a type; empty for types that bundles do not use.
std::string name_of(nvinfer1::DataType type);

}  // namespace txport::core
