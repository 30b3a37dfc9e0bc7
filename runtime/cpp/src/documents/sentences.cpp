#include "documents/sentences.hpp"

#include <algorithm>

#include "text/letters.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

using Text = std::u32string_view;

constexpr char32_t kFullStop = U'.';
constexpr char32_t kQuestionMark = U'?';
constexpr char32_t kWideFullStop = U'\uFF0E';
// Terminators that must be followed by white space, and terminators that need not be.
constexpr Text kWeak = U".!?\u2026\u203C\u203D\u2047\u2048\u2049";
constexpr Text kStrong =
    U"\u3002\uFF01\uFF1F\uFF61\uFF0E\u0964\u0965\u061F\u06D4\u0589\u1362\u1367\u1368\u104B\u17D4\u17D5\u1803\u1809"
    U"\uA4FF";
constexpr Text kOpens = U"([{\uFF08\uFF3B\uFF5B\u300C\u300E\u3010\u3008\u300A\u3014\uFF62";
constexpr Text kCloses = U")]}\uFF09\uFF3D\uFF5D\u300D\u300F\u3011\u3009\u300B\u3015\uFF63";
// Quotes that both open and close; quotes that open in some languages and close in others; quotes that mostly close.
constexpr Text kPlainQuotes = U"\"'`\u00B4";
constexpr Text kOpeningQuotes = U"\u201C\u2018\u201E\u201F\u201A\u201B\u00AB\u2039";
constexpr Text kClosingQuotes = U"\u201D\u2019\u00BB\u203A";
constexpr Text kSpanish = U"\u00BF\u00A1";
// Characters that no sentence begins with, in addition to wide closing brackets.
constexpr Text kFollowing = U",;:)]}!?.\u2026&%=+/\u3001\uFF0C\uFF1B\uFF1A";
constexpr Text kDashes = U"-\u2013\u2014";
// Maximum length of bracketed text that is not split.
constexpr std::size_t kMaxBracketed = 100;

bool is_one_of(char32_t character, Text set) { return set.find(character) != Text::npos; }

bool is_digit(char32_t character) { return U'0' <= character && character <= U'9'; }

bool is_letter(char32_t character) { return kind_of(character) == Kind::letter; }

bool is_quote(char32_t character) {
  return is_one_of(character, kPlainQuotes) || is_one_of(character, kOpeningQuotes) ||
         is_one_of(character, kClosingQuotes);
}

bool is_opening(char32_t character) {
  return is_one_of(character, kOpens) || is_one_of(character, kSpanish) || is_quote(character);
}

bool is_following(char32_t character) {
  return is_one_of(character, kFollowing) || is_one_of(character, kCloses.substr(3));
}

// Return whether a sentence may end with a character, including Greek ";" and Armenian ":".
bool is_terminator(char32_t character) {
  return is_one_of(character, kWeak) || is_one_of(character, kStrong) || character == U';' || character == U':';
}

// Return whether `mark` is a terminator after `before`: ";" only after Greek, ":" only after Armenian.
bool ends_after(char32_t mark, char32_t before) {
  if (mark == U';') return U'\u0370' <= before && before <= U'\u03FF';
  if (mark == U':') return U'\u0530' <= before && before <= U'\u058F';
  return true;
}

// Splits a text up to `end`, according to the rules of its language.
class Splitter {
 public:
  Splitter(Text text, std::size_t end, const Abbreviations& rules) : text_(text.substr(0, end)), rules_(rules) {}

  // Return the ends of the sentences from `start` on.
  std::vector<std::size_t> boundaries(std::size_t start) const {
    std::vector<std::size_t> positions;
    std::size_t sentence_start = start;
    std::size_t depth = 0;  // number of open brackets
    for (std::size_t position = start; position < text_.size();) {
      const char32_t character = text_[position];
      if (is_one_of(character, kOpens)) ++depth;
      if (depth > 0 && is_one_of(character, kCloses)) --depth;
      if (!is_terminator(character)) {
        ++position;
        continue;
      }
      std::size_t stop = position;
      while (stop < text_.size() && is_terminator(text_[stop])) ++stop;
      const std::size_t boundary = depth > 0 && closes(stop) ? 0 : boundary_of(sentence_start, position, stop);
      position = stop;
      if (boundary == 0) continue;
      positions.push_back(boundary);
      position = sentence_start = boundary;
      depth = 0;
    }
    return positions;
  }

 private:
  Text text_;
  const Abbreviations& rules_;

  bool is_space_at(std::size_t position) const { return is_space(text_[position]); }

  // Return whether a bracket closes soon, but not immediately.
  bool closes(std::size_t start) const {
    if (start >= text_.size() || is_closing(text_[start])) return false;
    const std::size_t end = std::min(text_.size(), start + kMaxBracketed);
    for (std::size_t position = start + 1; position < end; ++position) {
      if (is_one_of(text_[position], kCloses)) return true;
      if (is_one_of(text_[position], kOpens)) return false;
    }
    return false;
  }

  // Return the end of the sentence from `sentence_start`, given a run of terminators from `start` to `stop`; 0 if the
  // sentence continues.
  std::size_t boundary_of(std::size_t sentence_start, std::size_t start, std::size_t stop) const {
    const char32_t mark = text_[stop - 1];
    const bool strong = is_one_of(mark, kStrong);
    std::size_t after = after_closing(stop, !strong);
    if (after == text_.size() || !ends_after(mark, start == 0 ? U'\0' : text_[start - 1])) return 0;
    if (strong) {
      const bool decimal = mark == kWideFullStop && is_word_character(text_[stop]);
      const bool ends = (after == stop && !decimal) || is_space_at(after) || is_opening(text_[after]);
      return ends ? after_notes(after) : 0;
    }
    after = after_notes(after);
    if (after == text_.size() || !is_space_at(after)) return 0;
    std::size_t following = after;
    while (following < text_.size() && is_space_at(following)) ++following;
    std::size_t word = following;
    while (word < text_.size() && (is_opening(text_[word]) || is_one_of(text_[word], kDashes) || is_space_at(word))) {
      ++word;
    }
    if (word == text_.size() || is_following(text_[following])) return 0;
    if (is_lower(text_[word]) && !(mark == kQuestionMark && after == stop && word == following)) return 0;
    const bool full_stop = stop - start == 1 && mark == kFullStop;
    return full_stop && !ends_by_full_stop(sentence_start, start, word) ? 0 : after;
  }

  // Return whether a full stop at `stop`, which no lower case follows, ends the sentence from `sentence_start`.
  bool ends_by_full_stop(std::size_t sentence_start, std::size_t stop, std::size_t following) const {
    std::size_t start = stop;
    while (start > sentence_start && !is_space_at(start - 1) && !is_opening(text_[start - 1])) --start;
    const std::u32string word(text_.substr(start, stop - start));
    const bool number = !word.empty() && word.size() <= 3 && std::all_of(word.begin(), word.end(), is_digit);
    if (rules_.never.count(word) > 0 || (number && is_first(sentence_start, start))) return false;
    if (rules_.before_numbers.count(word) > 0 && is_digit(text_[following])) return false;
    const bool ordinal = rules_.ordinals && number && word.size() < 3;
    const bool initial = word.size() == 1 && is_letter(word[0]);
    return !(ordinal || initial || is_dotted(word)) || is_starter(following);
  }

  // Return whether a word is the first of its sentence. A number there is the number of a list item.
  bool is_first(std::size_t sentence_start, std::size_t word) const {
    while (word > sentence_start && is_space_at(word - 1)) --word;
    return word == sentence_start;
  }

  // Return whether a word contains full stops with one or two letters before each.
  static bool is_dotted(Text word) {
    if (word.find(kFullStop) == Text::npos) return false;
    std::size_t letters = 0;
    for (const char32_t character : word) {
      const bool stop = character == kFullStop;
      if (stop ? letters == 0 : (++letters > 2 || !is_letter(character))) return false;
      if (stop) letters = 0;
    }
    return letters > 0;
  }

  // Return whether the word at `start` is one that begins sentences and not an initial.
  bool is_starter(std::size_t start) const {
    std::size_t stop = start;
    while (stop < text_.size() && is_letter(text_[stop])) ++stop;
    if (stop < text_.size() && text_[stop] == kFullStop) return false;
    return rules_.starters.count(std::u32string(text_.substr(start, stop - start))) > 0;
  }

  // Return the position after closing quotes and brackets. With `any`, quotes that open in other languages count as
  // closing. White space may surround a character that only closes.
  std::size_t after_closing(std::size_t position, bool any) const {
    while (position < text_.size()) {
      if (is_closing(text_[position]) && (any || !is_one_of(text_[position], kOpeningQuotes))) {
        ++position;
        continue;
      }
      std::size_t after = position;
      while (after < text_.size() && is_one_of(text_[after], U" \u00A0\u202F")) ++after;
      if (after == position || after == text_.size()) break;
      const bool alone = is_closing(text_[after]) && !is_one_of(text_[after], kPlainQuotes) &&
                         !is_one_of(text_[after], kOpeningQuotes);
      if (!alone || !(after + 1 == text_.size() || is_space_at(after + 1))) break;
      position = after + 1;
    }
    return position;
  }

  // Return the position after references to notes, such as "known.[1] [2]".
  std::size_t after_notes(std::size_t position) const {
    while (true) {
      const std::size_t at = position + (position < text_.size() && text_[position] == U' ' ? 1 : 0);
      if (at == text_.size() || text_[at] != U'[') return position;
      std::size_t close = at + 1;
      while (close < text_.size() && is_digit(text_[close])) ++close;
      if (close == at + 1 || close == text_.size() || text_[close] != U']') return position;
      position = close + 1;
    }
  }
};

}  // namespace

bool is_closing(char32_t character) { return is_one_of(character, kCloses) || is_quote(character); }

bool is_word_character(char32_t character) {
  const Kind kind = kind_of(character);
  return kind == Kind::letter || kind == Kind::number;
}

std::vector<Span> sentences(Text text, std::size_t start, std::size_t end, const Abbreviations& rules) {
  std::vector<Span> spans;
  std::vector<std::size_t> ends = Splitter(text, end, rules).boundaries(start);
  ends.push_back(end);
  for (std::size_t stop : ends) {
    std::size_t sentence_start = start;
    start = stop;
    while (sentence_start < stop && is_space(text[sentence_start])) ++sentence_start;
    while (sentence_start < stop && is_space(text[stop - 1])) --stop;
    if (sentence_start < stop) spans.push_back({sentence_start, stop});
  }
  return spans;
}

}  // namespace txport::core
