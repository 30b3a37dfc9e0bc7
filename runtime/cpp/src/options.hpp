// Options for every sentence of a call, listed in options.inc.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ids.hpp"

namespace txport::core {

struct Options {
  // Optional kinds. No value selects the default or, with generation "model", the model's generation setting.
  template <typename T, int kind>
  struct Maybe : std::optional<T> {
    using std::optional<T>::optional;
  };
  using Limit = Maybe<std::int64_t, 1>;    // 1 or more
  using Natural = Maybe<std::int64_t, 0>;  // 0 or more
  using Number = Maybe<double, 0>;         // any
  using Positive = Maybe<double, 1>;       // above 0
  using Share = Maybe<double, 2>;          // above 0, at most 1
  using Switch = Maybe<bool, 0>;
  using Text = std::optional<std::string>;
  struct Settings : Maybe<std::string, 0> {
    using Maybe::Maybe;
    static constexpr std::array kChoices{"greedy", "model"};
  };
  struct Stopping : Maybe<std::string, 1> {
    using Maybe::Maybe;
    static constexpr std::array kChoices{"true", "false", "never"};
  };
  // Kinds that always have a value.
  using Count = std::int64_t;                                 // 0 or more
  using Flag = bool;                                          // off or on
  using List = Ids;                                           // empty: unset, like the two below
  using Prefix = std::variant<std::string, Ids>;              // text or target ids
  using Words = std::vector<std::variant<std::string, Ids>>;  // texts or target ids

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): one list for members, C fields and flags
#define TXPORT_OPTION(kind, name, help) kind name{};
#include "txport/options.inc"
#undef TXPORT_OPTION

  // Throw InputError if a value is invalid. Lengths and ids are checked later, together with the sizes of the bundle.
  void check() const;
};

}  // namespace txport::core
