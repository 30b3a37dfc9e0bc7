// What every function of the C ABI needs: exceptions become codes and a message of the thread.
#pragma once

#include <cstdint>
#include <string>

#include "errors.hpp"
#include "txport/txport.h"

namespace txport::abi {

// Keep a message for txport_message().
txport_code fail(txport_code code, const char* words) noexcept;

// The code and the message of the exception that is being handled.
txport_code fail_with_current_exception() noexcept;

// Run a body that may throw.
template <typename Body>
txport_code guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (...) {
    return fail_with_current_exception();
  }
}

// What an argument points to.
template <typename T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) throw core::InputError(std::string("the argument ") + name + " is NULL: give one");
  return *pointer;
}

// A number that must lie in a range, both ends included.
inline std::int64_t within(std::int64_t value, std::int64_t low, std::int64_t high, const char* name) {
  if (value < low || value > high) {
    throw core::InputError(std::string(name) + " is " + std::to_string(value) + ", which is not between " +
                           std::to_string(low) + " and " + std::to_string(high));
  }
  return value;
}

}  // namespace txport::abi
