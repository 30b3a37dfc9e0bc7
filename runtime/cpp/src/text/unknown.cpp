#include "text/unknown.hpp"

#include <algorithm>
#include <optional>

#include "utf8.hpp"

namespace txport::core {

namespace {

// Minimum length in characters of a run without white space that is searched, and the size and overlap of the chunks in
// which it is searched.
constexpr std::size_t kMinUnknown = 2'048;
constexpr std::size_t kUnknownChunk = 512;
constexpr std::size_t kUnknownOverlap = 64;

struct Cut {
  std::size_t begin;
  std::size_t end;
};

// Add the byte ranges of a run to remove. Chunks overlap, since neighbouring characters may be normalised together.
// `starts` contains the byte offset of each character of the run, and of its end.
void add_cuts(std::vector<Cut>& cuts, std::string_view text, const std::vector<std::size_t>& starts,
              const std::function<bool(std::string_view)>& is_unknown) {
  const std::size_t count = starts.size() - 1;
  std::optional<std::size_t> begin;  // first chunk of an unknown sequence; its text is kept
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

// Call `take` with each long run: the byte offset of each of its characters, and of its end.
void each_run(std::string_view text, const std::function<void(const std::vector<std::size_t>&)>& take) {
  if (text.size() < kMinUnknown) return;
  std::vector<std::size_t> starts;
  for (std::size_t position = 0; position <= text.size();) {
    const bool ends = position == text.size() || std::string_view(" \t\n\v\f\r").find(text[position]) != text.npos;
    starts.push_back(position);
    if (ends && starts.size() > kMinUnknown) take(starts);
    if (ends) starts.clear();
    position += position == text.size() ? 1 : character_at(text, position).length;
  }
}

}  // namespace

Shortened shortened(std::string_view text, const std::function<bool(std::string_view)>& is_unknown) {
  std::vector<Cut> cuts;
  each_run(text, [&](const std::vector<std::size_t>& starts) { add_cuts(cuts, text, starts, is_unknown); });
  Shortened result;
  std::size_t done = 0;
  for (const Cut& cut : cuts) {
    result.text += text.substr(done, cut.begin - done);
    result.gaps.push_back({result.text.size(), cut.end - cut.begin});
    done = cut.end;
  }
  result.text += text.substr(done);
  return result;
}

void Shortened::locate(std::vector<Span>& spans) const {
  if (gaps.empty()) return;
  std::vector<std::size_t> sizes(gaps.size() + 1, 0);
  for (std::size_t i = 0; i < gaps.size(); ++i) sizes[i + 1] = sizes[i] + gaps[i].size;
  const auto position = [&](std::size_t at, std::size_t first) {
    const auto before = [](const Gap& gap, std::size_t limit) { return gap.position < limit; };
    return at + sizes[static_cast<std::size_t>(std::lower_bound(gaps.begin(), gaps.end(), at + first, before) -
                                               gaps.begin())];
  };
  for (Span& span : spans) span = {position(span.start, 1), position(span.end, 0)};
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
