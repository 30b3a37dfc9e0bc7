#include "documents/cuts.hpp"

#include <algorithm>

#include "utf8.hpp"

namespace txport::core {

namespace {

using Text = std::u32string_view;

// Ends of a clause that need white space after them, and ends that do not.
constexpr Text kWeak = U",;:)\u2013\u2014";
constexpr Text kStrong = U"\uFF0C\u3001\uFF1B\uFF1A\u060C";

// The position of a cut, from 1 to this number of characters.
std::size_t place_of(Text text, std::size_t most) {
  for (std::size_t place = most; place > most / 2; --place) {
    const char32_t before = text[place - 1];
    if (kStrong.find(before) != Text::npos) return place;
    if (kWeak.find(before) != Text::npos && is_space(text[place])) return place;
  }
  for (std::size_t place = most; place > 0; --place) {
    if (is_space(text[place])) return place;
  }
  return most;
}

// A place in a text without white space before it.
std::size_t without_space(Text text, std::size_t end) {
  while (is_space(text[end - 1])) --end;
  return end;
}

// The segment before a place in the text of one.
Segment beginning(Text text, const Segment& segment, std::size_t place) {
  std::size_t end = segment.start + place;
  for (const Break& each : segment.breaks) {
    if (each.place < place) end += each.layout.size() - 1;
  }
  return segment_of(text, segment.start, without_space(text, end), true);
}

}  // namespace

std::vector<Segment> cut(Text text, const Segment& segment, const std::function<std::size_t(Text)>& fitting,
                         std::size_t most) {
  std::vector<Segment> parts;
  for (std::size_t start = segment.start; start < segment.end;) {
    Segment part = segment_of(text, start, without_space(text, std::min(segment.end, start + most)), true);
    while (true) {
      const std::size_t count = std::max<std::size_t>(1, fitting(part.text));
      if (count >= part.text.size()) break;
      part = beginning(text, part, place_of(part.text, count));
    }
    start = part.end;
    while (start < segment.end && is_space(text[start])) ++start;
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace txport::core
