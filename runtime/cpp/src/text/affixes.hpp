// Ids that are added to those of a text: language tokens, end of sequence, and the forced beginning of the answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "bundle/manifest.hpp"

namespace txport::core {

// The languages that a caller chose; without a value, the bundle's default.
struct LanguageChoice {
  std::optional<std::string> source;
  std::optional<std::string> target;
};

// Ids for the languages of one sentence.
struct Affixes {
  Ids source_prefix;  // before the source text's ids
  Ids source_suffix;  // after them
  Ids target_prefix;  // the forced beginning of the answer

  // Prefix, ids and suffix of a source text.
  Ids wrap(const Ids& ids) const;
};

// The affixes for chosen languages. Throws InputError: a language is unknown, or there is none to choose, or one must
// be chosen and was not.
Affixes affixes(const TokenizerDescription& description, const LanguageChoice& choice);

// As `affixes`, for one text, which may choose its target language itself if the bundle allows that: >>name<< at its
// very start, which is then removed. An unknown name becomes `unk`. With another marker, such as MADLAD's <2name>,
// white space may stand before it, and a text with an unknown name is left alone.
Affixes affixes_of(std::string_view& text, const TokenizerDescription& description, const LanguageChoice& choice,
                   std::int64_t unk);

}  // namespace txport::core
