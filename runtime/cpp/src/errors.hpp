// Errors of txport. The C ABI converts each class to a result code.
#pragma once

#include <stdexcept>
#include <string>

namespace txport::core {

// Base of all errors. Each message is one sentence with the file, the value and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller passed an invalid argument, option or text.
class InputError : public Error {
 public:
  using Error::Error;
};

// The bundle is incomplete, modified, newer than this library, or not suitable for the chosen engine.
class BundleError : public Error {
 public:
  using Error::Error;
};

// Not enough host memory, GPU memory or disk space. Earlier results are not lost. Retry later, or with a smaller batch.
class ResourceError : public Error {
 public:
  using Error::Error;
};

// A run of ONNX Runtime or TensorRT, or a CUDA call, failed.
class EngineError : public Error {
 public:
  using Error::Error;
};

// A library or a driver is not installed or cannot be loaded.
class MissingLibrary : public Error {
 public:
  using Error::Error;
};

// The self-check was completed and found a difference.
class CheckFailed : public Error {
 public:
  using Error::Error;
};

// The request was cancelled before it was finished.
class Cancelled : public Error {
 public:
  using Error::Error;
};

// The request was not finished at its deadline.
class DeadlineExceeded : public Error {
 public:
  using Error::Error;
};

// Return whether the message of a library means that memory is exhausted.
bool is_out_of_memory(const std::string& message);

// Throw the error of a library: ResourceError if memory is exhausted, otherwise `Otherwise`.
template <typename Otherwise = EngineError>
[[noreturn]] void throw_failure(const std::string& message) {
  if (is_out_of_memory(message)) throw ResourceError(message);
  throw Otherwise(message);
}

// Throw the error of a system call. `code` is its errno. Throws ResourceError if a disk is full or failed, or another
// resource is exhausted; otherwise InputError.
[[noreturn]] void throw_io_failure(const std::string& what, int code);

// Return quoted text for a message. Control characters are escaped, and long text is truncated.
std::string quote(const std::string& text);

// Return names separated by commas, for a message.
template <typename Names>
std::string joined(const Names& names) {
  std::string result;
  for (const auto& name : names) result += (result.empty() ? "" : ", ") + std::string(name);
  return result;
}

}  // namespace txport::core
