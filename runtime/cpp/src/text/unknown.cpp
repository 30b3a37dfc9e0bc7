#include "text/unknown.hpp"

#include <algorithm>
#include <optional>

#include "utf8.hpp"

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

// Calls `take` with each long run: where each of its characters begins, and where the last one ends.
void each_run(std::string_view text, const std::function<void(const std::vector<std::size_t>&)>& take) {
  if (text.size() < kMinUnknown) return;
  std::vector<std::size_t> starts;
  for (std::size_t place = 0; place <= text.size();) {
    const bool ends = place == text.size() || std::string_view(" \t\n\v\f\r").find(text[place]) != text.npos;
    starts.push_back(place);
    if (ends && starts.size() > kMinUnknown) take(starts);
    if (ends) starts.clear();
    place += place == text.size() ? 1 : character_at(text, place).length;
  }
}

}  // namespace

Shortened shortened(std::string_view text, const std::function<bool(std::string_view)>& is_unknown) {
  std::vector<Cut> cuts;
  each_run(text, [&](const std::vector<std::size_t>& starts) { add_cuts(cuts, text, starts, is_unknown); });
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
  if (gaps.empty()) return;
  std::vector<std::size_t> sizes(gaps.size() + 1, 0);
  for (std::size_t i = 0; i < gaps.size(); ++i) sizes[i + 1] = sizes[i] + gaps[i].size;
  const auto place = [&](std::size_t at, std::size_t first) {
    const auto before = [](const Gap& gap, std::size_t limit) { return gap.place < limit; };
    return at + sizes[static_cast<std::size_t>(std::lower_bound(gaps.begin(), gaps.end(), at + first, before) -
                                               gaps.begin())];
  };
  for (Span& span : spans) span = {place(span.start, 1), place(span.end, 0)};
}

std::vector<Span> blocks(std::string_view text, const std::function<std::string(std::string_view)>& normalise) {
  std::vector<Span> spans;
  std::size_t done = 0;
  each_run(text, [&](const std::vector<std::size_t>& starts) {
    const auto part = [&](std::size_t first, std::size_t last) {
      return text.substr(starts[first], starts[last] - starts[first]);
    };
    for (std::size_t end = kUnknownChunk; end + kUnknownOverlap < starts.size();) {
      const std::size_t first = end - kUnknownOverlap;
      const std::size_t last = end + kUnknownOverlap;
      if (normalise(part(first, last)) == normalise(part(first, end)) + normalise(part(end, last))) {
        spans.push_back({done, starts[end]});
        done = starts[end];
        end += kUnknownChunk;
      } else {
        ++end;
      }
    }
  });
  spans.push_back({done, text.size()});
  return spans;
}

}  // namespace txport::core
