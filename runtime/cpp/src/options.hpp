// What a caller may choose for every sentence of a call; options.inc lists it.
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
  // Optional kinds. Without a value they are the default or, with `generation=model`, the model's setting.
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
  // Kinds that always have one.
  using Count = std::int64_t;                                 // 0 or more
  using Flag = bool;                                          // off or on
  using List = Ids;                                           // none if it is empty, as the two that follow
  using Prefix = std::variant<std::string, Ids>;              // text, or target ids
  using Words = std::vector<std::variant<std::string, Ids>>;  // likewise, each

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): one list for members, C fields and flags
#define TXPORT_OPTION(kind, name, help) kind name{};
#include "options.inc"
#undef TXPORT_OPTION

  // Throws InputError: a value cannot be. Lengths and ids are checked where the bundle's sizes are known.
  void check() const;
};

}  // namespace txport::core
