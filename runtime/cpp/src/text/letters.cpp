#include "text/letters.hpp"

#include <algorithm>
#include <iterator>

#include "utf8.hpp"

namespace txport::core {

namespace {

constexpr Kind L = Kind::letter;
constexpr Kind N = Kind::number;

struct Range {
  std::uint32_t first;
  std::uint32_t last;
  Kind kind;
};

constexpr Range kRanges[] = {
#include "text/letters.inc"
};

struct Codes {
  std::uint32_t first;
  std::uint32_t last;
};

constexpr Codes kLower[] = {
#include "text/lower.inc"
};

constexpr Codes kWord[] = {
#include "text/word.inc"
};

// Return the range that contains a code point, or null.
template <typename Range, std::size_t count>
const Range* range_of(const Range (&ranges)[count], std::uint32_t code) {
  const auto ends_before = [](const Range& range, std::uint32_t value) { return range.last < value; };
  const Range* const found = std::lower_bound(std::begin(ranges), std::end(ranges), code, ends_before);
  return found != std::end(ranges) && found->first <= code ? found : nullptr;
}

}  // namespace

Kind kind_of(std::uint32_t code) {
  if (is_white_space(code)) return Kind::space;
  const Range* const found = range_of(kRanges, code);
  return found == nullptr ? Kind::other : found->kind;
}

bool is_word(std::uint32_t code) { return range_of(kWord, code) != nullptr; }

bool is_lower(std::uint32_t code) { return range_of(kLower, code) != nullptr; }

}  // namespace txport::core
