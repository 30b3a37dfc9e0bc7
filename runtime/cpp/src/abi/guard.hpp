// Helpers of all functions of the C ABI. Exceptions become result codes and a message per thread.
#pragma once

#include <cstdint>
#include <string>

#include "errors.hpp"
#include "txport/txport.h"

namespace txport::abi {

// Store a message for txport_message() and return the code.
txport_code fail(txport_code code, const char* words) noexcept;

// Store the message of the exception being handled and return its code.
txport_code fail_with_current_exception() noexcept;

// Run `body`, which may throw, and return its result code.
template <typename Body>
txport_code guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (...) {
    return fail_with_current_exception();
  }
}

// Return the object that an argument points to. Throws InputError if it is NULL.
template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) throw core::InputError(std::string("the argument ") + name + " is NULL: give one");
  return *pointer;
}

// Return a number that must be in the range [low, high]. Throws InputError if it is not.
inline std::int64_t within(std::int64_t value, std::int64_t low, std::int64_t high, const char* name) {
  if (value < low || value > high) {
    throw core::InputError(std::string(name) + " is " + std::to_string(value) + ", which is not between " +
                           std::to_string(low) + " and " + std::to_string(high));
  }
  return value;
}

}  // namespace txport::abi
