#include "documents/abbreviations.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include "utf8.hpp"

namespace txport::core {

namespace {

struct Table {
  std::string_view code;  // of a language; empty for any language
  bool ordinals;
  std::string_view never, before_numbers, starters;  // words with a space after each
};

struct Code {
  std::string_view code, of;
};

#include "documents/abbreviations.inc"

bool is_ascii_letter(char byte) { return ('a' <= byte && byte <= 'z') || ('A' <= byte && byte <= 'Z'); }

// Return the two-letter code of a language: "de" for "deu_Latn" and "de_DE".
std::string code_of(std::string_view language) {
  const auto* const start = std::find_if(language.begin(), language.end(), is_ascii_letter);
  std::string code(start, std::find_if_not(start, language.end(), is_ascii_letter));
  for (char& letter : code) {
    if (letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  const auto* const found =
      std::find_if(std::begin(kCodes), std::end(kCodes), [&](const Code& each) { return each.code == code; });
  return found == std::end(kCodes) ? code : std::string(found->of);
}

void add(std::unordered_set<std::u32string>& to, std::string_view words) {
  for (std::size_t end = words.find(' '); end != std::string_view::npos; end = words.find(' ')) {
    to.insert(characters_of(words.substr(0, end)));
    words.remove_prefix(end + 1);
  }
}

void add(Abbreviations& to, const Table& table) {
  add(to.never, table.never);
  add(to.before_numbers, table.before_numbers);
  add(to.starters, table.starters);
}

struct All {
  std::map<std::string, Abbreviations, std::less<>> by_code;
  Abbreviations all_languages;

  All() {
    for (const Table& table : kTables) {
      Abbreviations& entry = by_code[std::string(table.code)];
      entry.ordinals = table.ordinals;
      add(entry, table);
      add(all_languages, table);
    }
  }
};

}  // namespace

const Abbreviations& abbreviations_of(std::string_view language) {
  static const All all;
  if (language.empty()) return all.all_languages;
  const auto found = all.by_code.find(code_of(language));
  return found == all.by_code.end() ? all.by_code.find("")->second : found->second;
}

}  // namespace txport::core
