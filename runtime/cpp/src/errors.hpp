// The one family of errors that txport raises on purpose; the C ABI turns each class into a result code.
#pragma once

#include <stdexcept>
#include <string>

namespace txport::core {

// Base of all of them. Each message is one sentence with the file, the value and the way out.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's fault only: an argument, an option or a line of text that cannot be used.
class InputError : public Error {
 public:
  using Error::Error;
};

// A bundle that is incomplete, changed, of a newer format, or not fit for the chosen engine.
class BundleError : public Error {
 public:
  using Error::Error;
};

// Not enough host memory, GPU memory or disk space; nothing computed before is lost. Retry later, or with a smaller
// batch.
class ResourceError : public Error {
 public:
  using Error::Error;
};

// A library or a GPU failed: a run of ONNX Runtime or TensorRT, or a CUDA call.
class EngineError : public Error {
 public:
  using Error::Error;
};

// A library or a driver that is not installed or cannot be loaded.
class MissingLibrary : public Error {
 public:
  using Error::Error;
};

// A self-check that ran to its end and found a difference.
class CheckFailed : public Error {
 public:
  using Error::Error;
};

// A request that was given up before it had an answer.
class Cancelled : public Error {
 public:
  using Error::Error;
};

// A request that had no answer at its deadline.
class DeadlineExceeded : public Error {
 public:
  using Error::Error;
};

// Whether a library reports in its own words that memory is exhausted.
bool is_out_of_memory(const std::string& message);

// Throw what a library reported: ResourceError if memory is exhausted, or else another error.
template <typename Otherwise = EngineError>
[[noreturn]] void throw_failure(const std::string& message) {
  if (is_out_of_memory(message)) throw ResourceError(message);
  throw Otherwise(message);
}

// Throw what the system reported by errno: ResourceError for a disk that is full or fails, and the like; else
// InputError.
[[noreturn]] void throw_io_failure(const std::string& what, int code);

// Text in quotes for a message: control characters are escaped, and a long text is cut.
std::string quote(const std::string& text);

// Names separated by commas, for a message.
template <typename Names>
std::string joined(const Names& names) {
  std::string result;
  for (const auto& name : names) result += (result.empty() ? "" : ", ") + std::string(name);
  return result;
}

}  // namespace txport::core
