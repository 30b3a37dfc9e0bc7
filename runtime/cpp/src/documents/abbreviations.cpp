#include "documents/abbreviations.hpp"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "text/letters.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

constexpr std::string_view kTables =
#include "documents/abbreviations.inc"
    ;

bool is_ascii_letter(char byte) { return ('a' <= byte && byte <= 'z') || ('A' <= byte && byte <= 'Z'); }

// Return the code of a language: "deu" for "deu_Latn", "de" for "de_DE".
std::string code_of(std::string_view language) {
  const auto* const start = std::find_if(language.begin(), language.end(), is_ascii_letter);
  std::string code(start, std::find_if_not(start, language.end(), is_ascii_letter));
  for (char& letter : code) {
    if (letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return code;
}

// The capital of a small letter of the tables.
char32_t upper(char32_t letter) {
  const auto is_in = [letter](char32_t first, char32_t last) { return first <= letter && letter <= last; };
  if (is_in(U'a', U'z') || (is_in(0xE0, 0xFE) && letter != 0xF7) || is_in(0x3B1, 0x3C9) || is_in(0x430, 0x44F))
    return letter - 0x20;
  if (is_in(0x450, 0x45F)) return letter - 0x50;
  return (is_in(0x100, 0x17F) || letter >= 0x460) && is_lower(letter) ? letter - 1 : letter;
}

// A word in lower case, with a capital, and in capitals.
void add_forms(std::unordered_set<std::u32string>& to, std::u32string word) {
  to.insert(word);
  for (char32_t& letter : word) {
    letter = upper(letter);
    if (&letter == &word.front()) to.insert(word);
  }
  to.insert(std::move(word));
}

void add(Abbreviations& to, std::string_view kind, std::string_view word) {
  if (kind == "never") add_forms(to.never, characters_of(word));
  if (kind == "before_numbers") add_forms(to.before_numbers, characters_of(word));
  if (kind == "starters") to.starters.insert(characters_of(word));
}

// The tables of txport.runtime.documents.abbreviations, which describes their form.
struct All {
  std::map<std::string, Abbreviations, std::less<>> by_code;
  std::map<std::string, std::string, std::less<>> codes;
  Abbreviations all_languages;

  All() {
    std::istringstream words{std::string(kTables)};
    std::string kind;
    std::string language;
    for (std::string word; words >> word;) {
      const std::size_t separator = word.find(word.back() == ':' ? '.' : '=');
      if (word.back() == ':') {
        kind = word.substr(0, std::min(separator, word.size() - 1));
        language = separator == std::string::npos ? "" : word.substr(separator + 1, word.size() - separator - 2);
      } else if (kind == "codes") {
        codes[word.substr(0, separator)] = word.substr(separator + 1);
      } else if (kind == "ordinals") {
        by_code[word].ordinals = true;
      } else {
        add(by_code[language], kind, word);
        add(all_languages, kind, word);
      }
    }
    const Abbreviations& any = by_code[""];
    for (auto& [code, own] : by_code) {
      own.never.insert(any.never.begin(), any.never.end());
      own.before_numbers.insert(any.before_numbers.begin(), any.before_numbers.end());
    }
  }
};

}  // namespace

const Abbreviations& abbreviations_of(std::string_view language) {
  static const All all;
  if (language.empty()) return all.all_languages;
  const std::string code = code_of(language);
  const auto longer = all.codes.find(code);
  const auto found = all.by_code.find(longer == all.codes.end() ? code : longer->second);
  return found == all.by_code.end() ? all.by_code.find("")->second : found->second;
}

}  // namespace txport::core
