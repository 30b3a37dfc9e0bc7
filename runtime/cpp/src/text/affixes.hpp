// What stands around the ids of a text: language tokens, end of sequence, and the forced beginning of an answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "bundle/manifest.hpp"

namespace txport::core {

// The languages that were asked for; nothing is the bundle's default.
struct LanguageChoice {
  std::optional<std::string> source;
  std::optional<std::string> target;
};

// Ids for the languages of one sentence.
struct Affixes {
  Ids source_prefix;  // before the source text's ids
  Ids source_suffix;  // after them
  Ids target_prefix;  // what the answer is forced to begin with
};

// The affixes for chosen languages. Throws InputError: a language is unknown, or there is none to choose, or one must
// be chosen and was not.
Affixes affixes(const TokenizerDescription& description, const LanguageChoice& choice);

// As `affixes`, for one text, which may choose its target language by itself if the bundle has that: by >>name<< at
// its very start, which is then taken off; `unk` stands for a name that is unknown.
Affixes affixes_of(std::string_view& text, const TokenizerDescription& description, const LanguageChoice& choice,
                   std::int64_t unk);

}  // namespace txport::core
