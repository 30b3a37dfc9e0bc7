// Reading of option structs of the application, which begin with their size.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "errors.hpp"
#include "txport/txport.h"

namespace txport::abi {

// Return a copy of options, which may be null or from an older header. Structs from newer headers are refused, since
// they may have unknown fields.
template <typename T>
T read_options(const T* options, std::size_t min_size, const char* name) {
  T result{};
  if (options == nullptr) return result;
  const std::string start = std::string(name) + ".struct_size is " + std::to_string(options->struct_size);
  if (options->struct_size > sizeof(T)) {
    throw core::InputError(start + ", but txport " + txport_version() + " supports " + std::to_string(sizeof(T)) +
                           ": the application was compiled for a newer txport, install that version");
  }
  if (options->struct_size < min_size) throw core::InputError(start + ": set it to sizeof(" + name + ")");
  std::memcpy(&result, options, options->struct_size);
  return result;
}

inline std::optional<std::string> unless_null(const char* text) {
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

// Return a callback for warnings of the core; empty if `warning` is NULL.
inline std::function<void(const std::string&)> listener(txport_warning warning, void* user) {
  if (warning == nullptr) return nullptr;
  return [warning, user](const std::string& words) { warning(user, words.c_str()); };
}

}  // namespace txport::abi
