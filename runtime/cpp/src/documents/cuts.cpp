#include "documents/cuts.hpp"

#include <algorithm>

#include "utf8.hpp"

namespace txport::core {

namespace {

using Text = std::u32string_view;

// Clause punctuation that must be followed by white space, and punctuation that need not be.
constexpr Text kWeak = U",;:)\u2013\u2014";
constexpr Text kStrong = U"\uFF0C\u3001\uFF1B\uFF1A\u060C";

// Return the position at which to split, from 1 to `max_characters`.
std::size_t split_position(Text text, std::size_t max_characters) {
  for (std::size_t position = max_characters; position > max_characters / 2; --position) {
    const char32_t before = text[position - 1];
    if (kStrong.find(before) != Text::npos) return position;
    if (kWeak.find(before) != Text::npos && is_space(text[position])) return position;
  }
  for (std::size_t position = max_characters; position > 0; --position) {
    if (is_space(text[position])) return position;
  }
  return max_characters;
}

// Return `end` without the white space before it.
std::size_t without_space(Text text, std::size_t end) {
  while (is_space(text[end - 1])) --end;
  return end;
}

// Return the part of a segment before a position in its text.
Segment beginning(Text text, const Segment& segment, std::size_t position) {
  std::size_t end = segment.start + position;
  for (const Break& each : segment.breaks) {
    if (each.position < position) end += each.layout.size() - 1;
  }
  return segment_of(text, segment.start, without_space(text, end), true);
}

}  // namespace

std::vector<Segment> cut(Text text, const Segment& segment, const std::function<std::size_t(Text)>& fitting,
                         std::size_t max_characters) {
  std::vector<Segment> parts;
  for (std::size_t start = segment.start; start < segment.end;) {
    Segment part = segment_of(text, start, without_space(text, std::min(segment.end, start + max_characters)), true);
    while (true) {
      const std::size_t count = std::max<std::size_t>(1, fitting(part.text));
      if (count >= part.text.size()) break;
      part = beginning(text, part, split_position(part.text, count));
    }
    start = part.end;
    while (start < segment.end && is_space(text[start])) ++start;
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace txport::core
