#include "options.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "errors.hpp"

namespace txport::core {

namespace {

// Return a number in Python's notation.
std::string show(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return nlohmann::json(value).dump();
}

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& expected) {
  throw InputError(name + " " + value + " is not " + expected);
}

void check_minimum(const std::string& name, std::int64_t value, std::int64_t minimum) {
  if (value < minimum) refuse(name, std::to_string(value), std::to_string(minimum) + " or more");
}

void check_above_zero(const std::string& name, double value, double maximum, const char* bound) {
  if (!(value > 0 && std::isfinite(value) && value <= maximum)) {
    refuse(name, show(value), std::string("a number above 0") + bound);
  }
}

template <typename Choice>
void check_choice(const std::string& name, const Choice& option) {
  std::string names;
  for (const char* choice : Choice::kChoices) {
    if (option == choice) return;
    names += (names.empty() ? "" : ", ") + quote(choice);
  }
  if (option) refuse(name, quote(*option), "one of " + names);
}

void check_option(const std::string& name, const Options::Limit& option) {
  if (option) check_minimum(name, *option, 1);
}
void check_option(const std::string& name, const Options::Natural& option) {
  if (option) check_minimum(name, *option, 0);
}
void check_option(const std::string& name, const Options::Count& option) { check_minimum(name, option, 0); }
void check_option(const std::string& name, const Options::Number& option) {
  if (option && !std::isfinite(*option)) refuse(name, show(*option), "a number");
}
void check_option(const std::string& name, const Options::Positive& option) {
  if (option) check_above_zero(name, *option, HUGE_VAL, "");
}
void check_option(const std::string& name, const Options::Share& option) {
  if (option) check_above_zero(name, *option, 1, ", at most 1");
}
void check_option(const std::string& name, const Options::Settings& option) { check_choice(name, option); }
void check_option(const std::string& name, const Options::Stopping& option) { check_choice(name, option); }
// All values of the other kinds are valid.
template <typename Kind>
void check_option(const std::string& /*name*/, const Kind& /*option*/) {}

// Lengths, which are checked together with the limits of the bundle.
bool is_bounded_by_bundle(const std::string& name) { return name == "max_length" || name == "min_length"; }

}  // namespace

void Options::check() const {
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a name as text and as a member
#define TXPORT_OPTION(kind, name, help) \
  if (!is_bounded_by_bundle(#name)) check_option(#name, name);
#include "txport/options.inc"
#undef TXPORT_OPTION
}

}  // namespace txport::core
