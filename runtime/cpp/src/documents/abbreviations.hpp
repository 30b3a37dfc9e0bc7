// Abbreviations that end with a full stop and no sentence, of some languages; the tables are in
// abbreviations.inc, which Python reads as well.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

namespace txport::core {

// Abbreviations of a language, and other words that decide whether a full stop ends a sentence.
struct Abbreviations {
  std::unordered_set<std::u32string> never;           // words before a full stop that never end a sentence
  std::unordered_set<std::u32string> before_numbers;  // abbreviations that do not end a sentence before a number
  std::unordered_set<std::u32string> starters;        // words that begin a sentence after an initial or an ordinal
  bool ordinals = false;                              // whether a number of two digits at most may be an ordinal
};

// Those of a language as a bundle names it ("en", "deu_Latn", "fr_XX"): of all languages together where it is unknown
// (empty), and nearly empty ones if it has none.
const Abbreviations& abbreviations_of(std::string_view language);

}  // namespace txport::core
