// Ids around the ids of a text: language tokens, eos, and the forced target prefix.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "bundle/manifest.hpp"

namespace txport::core {

// The languages that a caller chose. No value selects the bundle's default.
struct LanguageChoice {
  std::optional<std::string> source;
  std::optional<std::string> target;
};

// Ids for the languages of one sentence.
struct Affixes {
  Ids source_prefix;  // before the source text's ids
  Ids source_suffix;  // after them
  Ids target_prefix;  // forced beginning of the translation

  // Return source prefix, ids and source suffix.
  Ids wrap(const Ids& ids) const;
};

// Return the affixes for chosen languages. Throws InputError: a language is unknown, the bundle has no languages, or a
// language must be chosen.
Affixes affixes(const TokenizerDescription& description, const LanguageChoice& choice);

// Like `affixes`, for a text that may select its target language if the bundle supports this. The marker >>name<< at
// the start of the text is removed; an unknown name becomes `unk`. Before other markers, such as MADLAD's <2name>,
// white space is allowed, and a text with an unknown name is not changed.
Affixes affixes_of(std::string_view& text, const TokenizerDescription& description, const LanguageChoice& choice,
                   std::int64_t unk);

}  // namespace txport::core
