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
// Ends of a sentence after which another one needs a space, in scripts that have one.
constexpr Text kSpacedEnds = U".!?\u2026,;:";
constexpr char32_t kFirstUnspaced = U'\u2E80';  // of Chinese, Japanese and what follows them
// Usual widths of wrapped paragraphs in characters, and the width of a word that did not fit.
constexpr std::size_t kMinWidth = 40;
constexpr std::size_t kMaxWidth = 120;
constexpr std::size_t kLongestWord = 20;
// White space of this number of characters separates the cells of a line.
constexpr std::size_t kWideSpace = 4;

bool is_one_of(char32_t character, Text set) { return set.find(character) != Text::npos; }

bool is_break(char32_t character) { return is_one_of(character, kBreaks); }

bool is_inner_space(char32_t character) { return is_space(character) && !is_break(character); }

bool is_digit(char32_t character) { return U'0' <= character && character <= U'9'; }

bool is_ascii_letter(char32_t character) {
  return (U'a' <= character && character <= U'z') || (U'A' <= character && character <= U'Z');
}

// A line, without white space at its end.
struct Line {
  std::size_t start = 0;
  std::size_t end = 0;
  bool plain = true;        // it has no mark, such as a bullet
  std::vector<Span> cells;  // its texts
};

// How many characters of a text at `place`, up to `end`, are such.
template <typename Is>
std::size_t count(Text text, std::size_t place, std::size_t end, const Is& is) {
  const std::size_t start = place;
  while (place < end && is(text[place])) ++place;
  return place - start;
}

// How many characters the mark of an item or a heading has at `place`, without white space; 0 for none.
std::size_t mark_at(Text text, std::size_t place, std::size_t end) {
  if (place == end) return 0;
  const std::size_t hashes = count(text, place, end, [](char32_t each) { return each == U'#'; });
  if (hashes > 0) return hashes <= 6 ? hashes : 0;
  if (is_one_of(text[place], kDashes)) return 1;
  const std::size_t bracket = text[place] == U'(' ? 1 : 0;
  std::size_t at = place + bracket;
  const std::size_t digits = count(text, at, end, is_digit);
  if (digits > 3) return 0;
  const bool letter = digits == 0 && at < end && is_ascii_letter(text[at]);
  at += digits + (letter ? 1 : 0);
  if (at == place + bracket || at == end) return 0;
  const bool closed = text[at] == U')' || (text[at] == U'.' && digits > 0 && bracket == 0);
  return closed ? at + 1 - place : 0;
}

// The place after what marks a line or a cell, and the white space around it.
std::size_t end_of_mark(Text text, std::size_t start, std::size_t end) {
  std::size_t place = start;
  const auto skip_spaces = [&] { place += count(text, place, end, is_inner_space); };
  if (place < end && text[place] == kByteOrderMark) ++place;
  skip_spaces();
  while (place < end && text[place] == U'>') {
    ++place;
    skip_spaces();
  }
  if (place < end && is_one_of(text[place], kBullets)) {
    ++place;
    skip_spaces();
  }
  const std::size_t mark = mark_at(text, place, end);
  if (mark > 0 && count(text, place + mark, end, is_inner_space) > 0) {
    place += mark;
    skip_spaces();
  }
  const bool box = place + 3 < end && text[place] == U'[' && is_one_of(text[place + 1], U" xX") &&
                   text[place + 2] == U']' && is_inner_space(text[place + 3]);
  if (box) {
    place += 3;
    skip_spaces();
  }
  return place;
}

// Whether white space parts the cells of a line: with a tab in it, or wide, or before a bullet.
bool is_column(Text text, std::size_t start, std::size_t stop, std::size_t end) {
  return stop - start >= kWideSpace || text.substr(start, stop - start).find(U'\t') != Text::npos ||
         (stop < end && is_one_of(text[stop], kBullets));
}

Line line_of(Text text, std::size_t start, std::size_t end) {
  Line line{start, end, true, {}};
  std::size_t at = end_of_mark(text, start, end);
  line.plain = std::all_of(text.begin() + static_cast<std::ptrdiff_t>(start),
                           text.begin() + static_cast<std::ptrdiff_t>(at), is_space);
  for (std::size_t place = at; place < end;) {
    const std::size_t stop = place + count(text, place, end, is_inner_space);
    if (stop > place && is_column(text, place, stop, end)) {
      line.cells.push_back({at, place});
      place = at = end_of_mark(text, stop, end);
    } else {
      place = std::max(stop, place + 1);
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

// Whether the lines of a paragraph are one wrapped text; only if a line shows it.
std::vector<bool> wrapped(Text text, const Line* paragraph, std::size_t count_of_lines) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < count_of_lines; ++i) width = std::max(width, paragraph[i].end - paragraph[i].start);
  std::vector<bool> goes_on(count_of_lines, false);
  bool shown = false;
  for (std::size_t i = 1; i < count_of_lines; ++i) {
    const Line& before = paragraph[i - 1];
    const Line& line = paragraph[i];
    const auto [begin, end] = line.cells[0];
    if (!line.plain || line.cells.size() > 1 || before.cells.size() > 1) continue;
    if (width < kMinWidth || width > kMaxWidth) continue;
    const std::size_t word = count(text, begin, end, [](char32_t each) { return !is_space(each); });
    const bool full = word <= kLongestWord && before.end - before.start + 1 + word > width;
    const bool lower = begin < end && is_lower(text[begin]);
    goes_on[i] = full || lower;
    shown = shown || (full && lower);
  }
  return shown ? goes_on : std::vector<bool>(count_of_lines, false);
}

// The cells of all lines; those of wrapped lines are one.
std::vector<Span> blocks_of(Text text) {
  std::vector<Span> blocks;
  const std::vector<Line> lines = lines_of(text);
  for (std::size_t first = 0; first < lines.size();) {
    std::size_t last = first;
    while (last < lines.size() && lines[last].start < lines[last].end) ++last;
    const std::vector<bool> goes_on = wrapped(text, lines.data() + first, last - first);
    for (std::size_t i = first; i < last; ++i) {
      const std::vector<Span>& cells = lines[i].cells;
      if (goes_on[i - first]) {
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

// The translation with the line breaks of the segment in it; after it where it has no white space for them.
std::u32string with_breaks(const Segment& segment, Text translation) {
  std::u32string made;
  std::size_t at = 0;
  for (const Break& each : segment.breaks) {
    const std::size_t near = (each.place * translation.size() + segment.text.size() / 2) / segment.text.size();
    const auto distance = [near](std::size_t place) { return place < near ? near - place : place - near; };
    std::size_t best = translation.size();
    for (std::size_t place = at; place < translation.size(); ++place) {
      const bool nearer = best == translation.size() || distance(place) < distance(best);
      if (nearer && is_space(translation[place])) best = place;
    }
    made += translation.substr(at, best - at);
    made += each.layout;
    at = std::min(best + 1, translation.size());
  }
  made += translation.substr(at);
  return made;
}

// Whether there must be white space between two texts.
bool spaced(Text before, Text after) {
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
  for (std::size_t place = start; place < end; ++place) {
    if (!is_break(text[place])) continue;
    std::size_t first = place;
    while (is_space(text[first - 1])) --first;
    while (is_space(text[place])) ++place;
    segment.text += text.substr(at, first - at);
    segment.breaks.push_back({segment.text.size(), std::u32string(text.substr(first, place - first))});
    segment.text += U' ';
    at = place;
  }
  segment.text += text.substr(at, end - at);
  return segment;
}

std::pair<std::u32string, std::vector<Span>> join(Text text, const std::vector<Segment>& segments,
                                                  const std::vector<std::u32string>& translations) {
  std::u32string made;
  std::vector<Span> spans;
  std::size_t at = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Text layout = text.substr(at, segments[i].start - at);
    // A script without spaces needs none between sentences.
    const bool lacks_space = layout.empty() && i > 0 && spaced(translations[i - 1], translations[i]) &&
                             !spaced(segments[i - 1].text, segments[i].text);
    made += lacks_space ? Text(U" ") : layout;
    const std::size_t start = made.size();
    made += with_breaks(segments[i], translations[i]);
    spans.push_back({start, made.size()});
    at = segments[i].end;
  }
  made += text.substr(at);
  return {std::move(made), std::move(spans)};
}

}  // namespace txport::core
