// The one family of errors for what a user can cause; the C ABI turns each class into a result code.
#pragma once

#include <stdexcept>
#include <string>

namespace txport::core {

// Base of all errors that a user can cause. Each message is one sentence with the file, the value and the way out.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument, an option or a line of text that cannot be used.
class InputError : public Error {
 public:
  using Error::Error;
};

// A bundle that is incomplete, changed, of a newer format, or not fit for the engine that was asked for.
class BundleError : public Error {
 public:
  using Error::Error;
};

// A GPU that does not do what it is told; what was made until then cannot be trusted.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// A self-check that ran to its end and found a difference.
class CheckFailed : public Error {
 public:
  using Error::Error;
};

// Text in quotes for a message: control characters are escaped, and what is long is cut.
std::string quote(const std::string& text);

}  // namespace txport::core
