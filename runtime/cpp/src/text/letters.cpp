#include "text/letters.hpp"

#include <algorithm>
#include <iterator>

#include "text/utf8.hpp"

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

}  // namespace

Kind kind_of(std::uint32_t code) {
  if (is_white_space(code)) return Kind::space;
  const auto ends_before = [](const Range& range, std::uint32_t value) { return range.last < value; };
  const auto found = std::lower_bound(std::begin(kRanges), std::end(kRanges), code, ends_before);
  return found != std::end(kRanges) && found->first <= code ? found->kind : Kind::other;
}

}  // namespace txport::core
