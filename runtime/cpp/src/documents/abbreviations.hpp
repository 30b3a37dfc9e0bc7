// Abbreviations whose full stop does not end a sentence, by language. The tables are in abbreviations.inc, which Python
// also reads.
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
  bool ordinals = false;                              // whether a number of one or two digits may be an ordinal
};

// Return the abbreviations of a language, with the bundle's name of it ("en", "deu_Latn", "fr_XX"). An empty name
// stands for an unknown language and returns those of all languages. A language without a table gets only international
// ones.
const Abbreviations& abbreviations_of(std::string_view language);

}  // namespace txport::core
