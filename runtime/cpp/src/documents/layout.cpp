#include "documents/layout.hpp"

#include <algorithm>

#include "documents/sentences.hpp"
#include "text/letters.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

using Text = std::u32string_view;

constexpr char32_t kByteOrderMark = U'\uFEFF';
constexpr Text kBreaks = U"\n\v\f\r\u0085\u2028\u2029";
constexpr Text kBullets = U"\u2022\u2023\u25AA\u25CF\u25CB\u25E6\u2043";
constexpr Text kDashes = U"-*+\u00B7\u2013\u2014";
// Sentence and clause ends that must be followed by a space.
constexpr Text kSpacedEnds = U".!?\u2026,;:";
constexpr char32_t kFirstUnspaced = U'\u2E80';  // start of Chinese, Japanese and later blocks of Unicode
// Widths of wrapped paragraphs in characters, and the maximum length of a word that may have caused a line break.
constexpr std::size_t kMinWidth = 40;
constexpr std::size_t kMaxWidth = 120;
constexpr std::size_t kLongestWord = 20;
// White space of at least this length separates cells of a line.
constexpr std::size_t kWideSpace = 4;

bool is_one_of(char32_t character, Text set) { return set.find(character) != Text::npos; }

bool is_break(char32_t character) { return is_one_of(character, kBreaks); }

bool is_inner_space(char32_t character) { return is_space(character) && !is_break(character); }

bool is_digit(char32_t character) { return U'0' <= character && character <= U'9'; }

bool is_ascii_letter(char32_t character) {
  return (U'a' <= character && character <= U'z') || (U'A' <= character && character <= U'Z');
}

// A line without white space at its end.
struct Line {
  std::size_t start = 0;
  std::size_t end = 0;
  bool plain = true;        // it has no marker, such as a bullet
  std::vector<Span> cells;  // its cells, for example columns separated by tabs
};

// Return the length of the run from `position` in which `is` holds, up to `end`.
template <typename Is>
std::size_t count(Text text, std::size_t position, std::size_t end, const Is& is) {
  const std::size_t start = position;
  while (position < end && is(text[position])) ++position;
  return position - start;
}

// Return the length of a list or heading marker at `position`, without white space; 0 for none.
std::size_t mark_at(Text text, std::size_t position, std::size_t end) {
  if (position == end) return 0;
  const std::size_t hashes = count(text, position, end, [](char32_t each) { return each == U'#'; });
  if (hashes > 0) return hashes <= 6 ? hashes : 0;
  if (is_one_of(text[position], kDashes)) return 1;
  const std::size_t bracket = text[position] == U'(' ? 1 : 0;
  std::size_t at = position + bracket;
  const std::size_t digits = count(text, at, end, is_digit);
  if (digits > 3) return 0;
  const bool letter = digits == 0 && at < end && is_ascii_letter(text[at]);
  at += digits + (letter ? 1 : 0);
  if (at == position + bracket || at == end) return 0;
  const bool closed = text[at] == U')' || (text[at] == U'.' && digits > 0 && bracket == 0);
  return closed ? at + 1 - position : 0;
}

// Return the position after the marker of a line or cell, and after the white space around it.
std::size_t end_of_mark(Text text, std::size_t start, std::size_t end) {
  std::size_t position = start;
  const auto skip_spaces = [&] { position += count(text, position, end, is_inner_space); };
  if (position < end && text[position] == kByteOrderMark) ++position;
  skip_spaces();
  while (position < end && text[position] == U'>') {
    ++position;
    skip_spaces();
  }
  if (position < end && is_one_of(text[position], kBullets)) {
    ++position;
    skip_spaces();
  }
  const std::size_t mark = mark_at(text, position, end);
  if (mark > 0 && count(text, position + mark, end, is_inner_space) > 0) {
    position += mark;
    skip_spaces();
  }
  const bool box = position + 3 < end && text[position] == U'[' && is_one_of(text[position + 1], U" xX") &&
                   text[position + 2] == U']' && is_inner_space(text[position + 3]);
  if (box) {
    position += 3;
    skip_spaces();
  }
  return position;
}

// Return whether white space separates cells: if it contains a tab, is wide, or is followed by a bullet.
bool is_column(Text text, std::size_t start, std::size_t stop, std::size_t end) {
  return stop - start >= kWideSpace || text.substr(start, stop - start).find(U'\t') != Text::npos ||
         (stop < end && is_one_of(text[stop], kBullets));
}

Line line_of(Text text, std::size_t start, std::size_t end) {
  Line line{start, end, true, {}};
  std::size_t at = end_of_mark(text, start, end);
  line.plain = std::all_of(text.begin() + static_cast<std::ptrdiff_t>(start),
                           text.begin() + static_cast<std::ptrdiff_t>(at), is_space);
  for (std::size_t position = at; position < end;) {
    const std::size_t stop = position + count(text, position, end, is_inner_space);
    if (stop > position && is_column(text, position, stop, end)) {
      line.cells.push_back({at, position});
      position = at = end_of_mark(text, stop, end);
    } else {
      position = std::max(stop, position + 1);
    }
  }
  line.cells.push_back({at, end});
  return line;
}

std::vector<Line> lines_of(Text text) {
  std::vector<Line> lines;
  for (std::size_t start = 0; start <= text.size();) {
    std::size_t end = std::min(text.find_first_of(kBreaks, start), text.size());
    const bool two = end + 1 < text.size() && text[end] == U'\r' && text[end + 1] == U'\n';
    const std::size_t next = end + (two ? 2 : 1);
    while (end > start && is_space(text[end - 1])) --end;
    lines.push_back(line_of(text, start, end));
    start = next;
  }
  return lines;
}

// Return which lines of a paragraph continue the line before. They do so only if at least one line proves that the text
// is wrapped: the line before is full, and the line begins in lower case.
std::vector<bool> wrapped(Text text, const Line* paragraph, std::size_t count_of_lines) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < count_of_lines; ++i) width = std::max(width, paragraph[i].end - paragraph[i].start);
  std::vector<bool> continues(count_of_lines, false);
  bool is_proven = false;
  for (std::size_t i = 1; i < count_of_lines; ++i) {
    const Line& before = paragraph[i - 1];
    const Line& line = paragraph[i];
    const auto [begin, end] = line.cells[0];
    if (!line.plain || line.cells.size() > 1 || before.cells.size() > 1) continue;
    if (width < kMinWidth || width > kMaxWidth) continue;
    const std::size_t word = count(text, begin, end, [](char32_t each) { return !is_space(each); });
    const bool full = word <= kLongestWord && before.end - before.start + 1 + word > width;
    const bool lower = begin < end && is_lower(text[begin]);
    continues[i] = full || lower;
    is_proven = is_proven || (full && lower);
  }
  return is_proven ? continues : std::vector<bool>(count_of_lines, false);
}

// Return the cells of all lines. Wrapped lines become one cell.
std::vector<Span> blocks_of(Text text) {
  std::vector<Span> blocks;
  const std::vector<Line> lines = lines_of(text);
  for (std::size_t first = 0; first < lines.size();) {
    std::size_t last = first;
    while (last < lines.size() && lines[last].start < lines[last].end) ++last;
    const std::vector<bool> continues = wrapped(text, lines.data() + first, last - first);
    for (std::size_t i = first; i < last; ++i) {
      const std::vector<Span>& cells = lines[i].cells;
      if (continues[i - first]) {
        blocks.back().end = cells[0].end;
      } else {
        blocks.push_back(cells[0]);
      }
      blocks.insert(blocks.end(), cells.begin() + 1, cells.end());
    }
    first = std::max(last, first + 1);
  }
  return blocks;
}

// Return the translation with the line breaks of the segment, at white space near the same relative position. Without
// such white space, breaks are appended.
std::u32string with_breaks(const Segment& segment, Text translation) {
  std::u32string result;
  std::size_t at = 0;
  for (const Break& each : segment.breaks) {
    const std::size_t near = (each.position * translation.size() + segment.text.size() / 2) / segment.text.size();
    const auto distance = [near](std::size_t position) { return position < near ? near - position : position - near; };
    std::size_t best = translation.size();
    for (std::size_t position = at; position < translation.size(); ++position) {
      const bool nearer = best == translation.size() || distance(position) < distance(best);
      if (nearer && is_space(translation[position])) best = position;
    }
    result += translation.substr(at, best - at);
    result += each.layout;
    at = std::min(best + 1, translation.size());
  }
  result += translation.substr(at);
  return result;
}

// Return whether two texts need white space between them.
bool needs_space(Text before, Text after) {
  const auto is_word = [](char32_t each) { return is_word_character(each) && each < kFirstUnspaced; };
  std::size_t end = before.size();
  while (end > 0 && is_closing(before[end - 1])) --end;
  if (end > 0 && is_one_of(before[end - 1], kSpacedEnds)) return true;
  return !before.empty() && !after.empty() && is_word(before.back()) && is_word(after.front());
}

}  // namespace

std::vector<Segment> split(Text text, const Abbreviations& rules) {
  std::vector<Segment> segments;
  for (const Span& block : blocks_of(text)) {
    for (const Span& found : sentences(text, block.start, block.end, rules)) {
      const Text words = text.substr(found.start, found.end - found.start);
      if (std::any_of(words.begin(), words.end(), is_word_character)) {
        segments.push_back(segment_of(text, found.start, found.end));
      }
    }
  }
  return segments;
}

Segment segment_of(Text text, std::size_t start, std::size_t end, bool cut) {
  Segment segment{start, end, {}, {}, cut};
  std::size_t at = start;
  for (std::size_t position = start; position < end; ++position) {
    if (!is_break(text[position])) continue;
    std::size_t first = position;
    while (is_space(text[first - 1])) --first;
    while (is_space(text[position])) ++position;
    segment.text += text.substr(at, first - at);
    segment.breaks.push_back({segment.text.size(), std::u32string(text.substr(first, position - first))});
    segment.text += U' ';
    at = position;
  }
  segment.text += text.substr(at, end - at);
  return segment;
}

std::pair<std::u32string, std::vector<Span>> join(Text text, const std::vector<Segment>& segments,
                                                  const std::vector<std::u32string>& translations) {
  std::u32string result;
  std::vector<Span> spans;
  std::size_t at = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Text layout = text.substr(at, segments[i].start - at);
    // If the source has no space between sentences (Chinese), add one only if the translation needs it.
    const bool lacks_space = layout.empty() && i > 0 && needs_space(translations[i - 1], translations[i]) &&
                             !needs_space(segments[i - 1].text, segments[i].text);
    result += lacks_space ? Text(U" ") : layout;
    const std::size_t start = result.size();
    result += with_breaks(segments[i], translations[i]);
    spans.push_back({start, result.size()});
    at = segments[i].end;
  }
  result += text.substr(at);
  return {std::move(result), std::move(spans)};
}

}  // namespace txport::core
