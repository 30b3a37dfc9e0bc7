// Structs of options that an application gives, which begin with their size.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "errors.hpp"
#include "txport/txport.h"

namespace txport::abi {

// A copy of options that may be null, or of an older header; a newer header may have unknown fields.
template <typename T>
T read_options(const T* options, std::size_t smallest, const char* name) {
  T result{};
  if (options == nullptr) return result;
  const std::string start = std::string(name) + ".struct_size is " + std::to_string(options->struct_size);
  if (options->struct_size > sizeof(T)) {
    throw core::InputError(start + ", but txport " + txport_version() + " knows " + std::to_string(sizeof(T)) +
                           ": the application was compiled for a newer txport, install that");
  }
  if (options->struct_size < smallest) throw core::InputError(start + ": set it to sizeof(" + name + ")");
  std::memcpy(&result, options, options->struct_size);
  return result;
}

inline std::optional<std::string> unless_null(const char* text) {
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

// Callback for warnings of the core; empty for none.
inline std::function<void(const std::string&)> listener(txport_warning warning, void* user) {
  if (warning == nullptr) return nullptr;
  return [warning, user](const std::string& words) { warning(user, words.c_str()); };
}

}  // namespace txport::abi
