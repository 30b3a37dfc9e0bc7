#include "text/unknown.hpp"

#include <algorithm>
#include <optional>

#include "text/utf8.hpp"

namespace txport::core {

namespace {

// Characters without white space that are looked through, and of the pieces in which that is done.
constexpr std::size_t kMinUnknown = 2'048;
constexpr std::size_t kUnknownChunk = 512;
constexpr std::size_t kUnknownOverlap = 64;

struct Cut {
  std::size_t begin;
  std::size_t end;
};

// Parts of a run to leave out, in bytes of the text: pieces overlap, since neighbours may be normalised together.
// `starts`: where each character of the run begins, and where the last one ends.
void add_cuts(std::vector<Cut>& cuts, std::string_view text, const std::vector<std::size_t>& starts,
              const std::function<bool(std::string_view)>& is_unknown) {
  const std::size_t count = starts.size() - 1;
  std::optional<std::size_t> begin;  // of the unknown piece before which the rest is left
  for (std::size_t start = 0; start + kUnknownOverlap < count; start += kUnknownChunk - kUnknownOverlap) {
    const std::size_t end = std::min(start + kUnknownChunk, count);
    if (!is_unknown(text.substr(starts[start], starts[end] - starts[start]))) {
      begin.reset();
    } else if (!begin) {
      begin = start;
    } else if (start > *begin + kUnknownChunk) {
      const std::size_t first = starts[*begin + kUnknownChunk];
      if (!cuts.empty() && cuts.back().begin == first) cuts.pop_back();
      cuts.push_back({first, starts[start]});
    }
  }
}

}  // namespace

Shortened shortened(std::string_view text, const std::function<bool(std::string_view)>& is_unknown) {
  std::vector<Cut> cuts;
  if (text.size() >= kMinUnknown) {
    std::vector<std::size_t> starts;
    for (std::size_t place = 0; place <= text.size();) {
      const bool ends = place == text.size() || std::string_view(" \t\n\v\f\r").find(text[place]) != text.npos;
      starts.push_back(place);
      if (ends && starts.size() > kMinUnknown) add_cuts(cuts, text, starts, is_unknown);
      if (ends) starts.clear();
      place += place == text.size() ? 1 : character_at(text, place).length;
    }
  }
  Shortened left;
  std::size_t done = 0;
  for (const Cut& cut : cuts) {
    left.text += text.substr(done, cut.begin - done);
    left.gaps.push_back({left.text.size(), cut.end - cut.begin});
    done = cut.end;
  }
  left.text += text.substr(done);
  return left;
}

void Shortened::locate(std::vector<Span>& spans) const {
  const auto place = [this](std::size_t at, std::size_t first) {
    std::size_t added = 0;
    for (const Gap& gap : gaps) added += gap.place < at + first ? gap.size : 0;
    return at + added;
  };
  for (Span& span : spans) span = {place(span.start, 1), place(span.end, 0)};
}

}  // namespace txport::core
