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
// Terminators that need white space after them, and terminators that do not.
constexpr Text kWeak = U".!?\u2026\u203C\u203D\u2047\u2048\u2049";
constexpr Text kStrong =
    U"\u3002\uFF01\uFF1F\uFF61\uFF0E\u0964\u0965\u061F\u06D4\u0589\u1362\u1367\u1368\u104B\u17D4\u17D5\u1803\u1809"
    U"\uA4FF";
constexpr Text kOpens = U"([{\uFF08\uFF3B\uFF5B\u300C\u300E\u3010\u3008\u300A\u3014\uFF62";
constexpr Text kCloses = U")]}\uFF09\uFF3D\uFF5D\u300D\u300F\u3011\u3009\u300B\u3015\uFF63";
// Quotes that open and close, that open in one language and close in another, and that mostly close.
constexpr Text kPlainQuotes = U"\"'`\u00B4";
constexpr Text kOpeningQuotes = U"\u201C\u2018\u201E\u201F\u201A\u201B\u00AB\u2039";
constexpr Text kClosingQuotes = U"\u201D\u2019\u00BB\u203A";
constexpr Text kSpanish = U"\u00BF\u00A1";
// What no sentence begins with, beside wide brackets.
constexpr Text kFollowing = U",;:)]}!?.\u2026&%=+/\u3001\uFF0C\uFF1B\uFF1A";
constexpr Text kDashes = U"-\u2013\u2014";
// Maximum number of characters of what stands in brackets and is not split.
constexpr std::size_t kBracketed = 100;

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

// Whether a sentence may end with it: the terminators, and those of Greek and Armenian.
bool is_terminator(char32_t character) {
  return is_one_of(character, kWeak) || is_one_of(character, kStrong) || character == U';' || character == U':';
}

// Whether a terminator is one after this character: ";" after Greek, and ":" after Armenian.
bool ends_after(char32_t mark, char32_t before) {
  if (mark == U';') return U'\u0370' <= before && before <= U'\u03FF';
  if (mark == U':') return U'\u0530' <= before && before <= U'\u058F';
  return true;
}

// A text that is split, up to its end, by the rules of its language.
class Splitter {
 public:
  Splitter(Text text, std::size_t end, const Abbreviations& rules) : text_(text.substr(0, end)), rules_(rules) {}

  // The places where sentences end that begin at `start` and after each other.
  std::vector<std::size_t> boundaries(std::size_t start) const {
    std::vector<std::size_t> found;
    std::size_t begin = start;
    std::size_t depth = 0;  // of brackets
    for (std::size_t place = start; place < text_.size();) {
      const char32_t character = text_[place];
      if (is_one_of(character, kOpens)) ++depth;
      if (depth > 0 && is_one_of(character, kCloses)) --depth;
      if (!is_terminator(character)) {
        ++place;
        continue;
      }
      std::size_t stop = place;
      while (stop < text_.size() && is_terminator(text_[stop])) ++stop;
      const std::size_t boundary = depth > 0 && closes(stop) ? 0 : boundary_of(begin, place, stop);
      place = stop;
      if (boundary == 0) continue;
      found.push_back(boundary);
      place = begin = boundary;
      depth = 0;
    }
    return found;
  }

 private:
  Text text_;
  const Abbreviations& rules_;

  bool is_space_at(std::size_t place) const { return is_space(text_[place]); }

  // Whether a bracket closes soon, but not at once.
  bool closes(std::size_t start) const {
    if (start >= text_.size() || is_closing(text_[start])) return false;
    const std::size_t end = std::min(text_.size(), start + kBracketed);
    for (std::size_t place = start + 1; place < end; ++place) {
      if (is_one_of(text_[place], kCloses)) return true;
      if (is_one_of(text_[place], kOpens)) return false;
    }
    return false;
  }

  // The end of the sentence that began at `begin`, for a run of terminators from `start` to `stop`; 0 if it continues.
  std::size_t boundary_of(std::size_t begin, std::size_t start, std::size_t stop) const {
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
    return full_stop && !ends_by_full_stop(begin, start, word) ? 0 : after;
  }

  // Whether a full stop at `stop`, with no lower case after it, ends the sentence that began at `begin`.
  bool ends_by_full_stop(std::size_t begin, std::size_t stop, std::size_t following) const {
    std::size_t start = stop;
    while (start > begin && !is_space_at(start - 1) && !is_opening(text_[start - 1])) --start;
    const std::u32string word(text_.substr(start, stop - start));
    const bool number = !word.empty() && word.size() <= 3 && std::all_of(word.begin(), word.end(), is_digit);
    if (rules_.never.count(word) > 0 || (number && is_first(begin, start))) return false;
    if (rules_.before_numbers.count(word) > 0 && is_digit(text_[following])) return false;
    const bool ordinal = rules_.ordinals && number && word.size() < 3;
    const bool initial = word.size() == 1 && is_letter(word[0]);
    return !(ordinal || initial || is_dotted(word)) || is_starter(following);
  }

  // Whether nothing but white space stands before a word of a sentence: a number there marks an item of a list.
  bool is_first(std::size_t begin, std::size_t word) const {
    while (word > begin && is_space_at(word - 1)) --word;
    return word == begin;
  }

  // Whether a word has one or two letters before each full stop.
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

  // Whether the word at `start` begins a sentence and is not an initial.
  bool is_starter(std::size_t start) const {
    std::size_t stop = start;
    while (stop < text_.size() && is_letter(text_[stop])) ++stop;
    if (stop < text_.size() && text_[stop] == kFullStop) return false;
    return rules_.starters.count(std::u32string(text_.substr(start, stop - start))) > 0;
  }

  // The position after closing quotes and brackets, and after opening ones of other languages if `any`; one that only
  // closes may have white space around it.
  std::size_t after_closing(std::size_t place, bool any) const {
    while (place < text_.size()) {
      if (is_closing(text_[place]) && (any || !is_one_of(text_[place], kOpeningQuotes))) {
        ++place;
        continue;
      }
      std::size_t after = place;
      while (after < text_.size() && is_one_of(text_[after], U" \u00A0\u202F")) ++after;
      if (after == place || after == text_.size()) break;
      const bool alone = is_closing(text_[after]) && !is_one_of(text_[after], kPlainQuotes) &&
                         !is_one_of(text_[after], kOpeningQuotes);
      if (!alone || !(after + 1 == text_.size() || is_space_at(after + 1))) break;
      place = after + 1;
    }
    return place;
  }

  // The place after references to notes, as in "known.[1] [2]".
  std::size_t after_notes(std::size_t place) const {
    while (true) {
      const std::size_t at = place + (place < text_.size() && text_[place] == U' ' ? 1 : 0);
      if (at == text_.size() || text_[at] != U'[') return place;
      std::size_t close = at + 1;
      while (close < text_.size() && is_digit(text_[close])) ++close;
      if (close == at + 1 || close == text_.size() || text_[close] != U']') return place;
      place = close + 1;
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
  std::vector<Span> found;
  std::vector<std::size_t> ends = Splitter(text, end, rules).boundaries(start);
  ends.push_back(end);
  for (std::size_t stop : ends) {
    std::size_t begin = start;
    start = stop;
    while (begin < stop && is_space(text[begin])) ++begin;
    while (begin < stop && is_space(text[stop - 1])) --stop;
    if (begin < stop) found.push_back({begin, stop});
  }
  return found;
}

}  // namespace txport::core
