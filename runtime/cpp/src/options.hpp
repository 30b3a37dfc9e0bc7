// What a caller may choose for every sentence of a call; options.inc lists it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "engine.hpp"

namespace txport::core {

struct Options {
  using Limit = std::optional<std::int64_t>;      // 1 or more; without a value: `length_limit` of text/requests.hpp
  using Count = std::int64_t;                     // 0 or more
  using Flag = bool;                              // off or on
  using Text = std::optional<std::string>;        // without a value: the bundle's default
  using Prefix = std::variant<std::string, Ids>;  // text, or target ids; none if it is empty

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): one list for members, C fields and flags
#define TXPORT_OPTION(kind, name, help) kind name{};
#include "options.inc"
#undef TXPORT_OPTION
};

}  // namespace txport::core
