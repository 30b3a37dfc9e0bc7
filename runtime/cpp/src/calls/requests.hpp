// Conversion of texts and ids to search requests, shared by translation and measurement.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "bundle/shortlist.hpp"
#include "engine.hpp"
#include "options.hpp"
#include "search/requests.hpp"
#include "text/affixes.hpp"
#include "text/alignment.hpp"
#include "text/tokenizer.hpp"

namespace txport::core {

// Default maximum length of a translation: kLengthRatio x source tokens + kLengthOffset. Undertrained models do not end
// their translations, and few real translations are longer.
inline constexpr std::int64_t kLengthRatio = 2;
inline constexpr std::int64_t kLengthOffset = 20;

// Return this limit for `source` tokens, including eos and language tokens. `forced` is the length of the prefix or the
// minimum length, which is added. The limit is at most `max_target`, the engine's limit.
std::int64_t length_limit(std::size_t source, std::size_t forced, std::int64_t max_target);

// Callback for a warning, one sentence; may be empty.
using Warn = std::function<void(const std::string&)>;

// A sentence as a search request, with its text.
struct Sentence {
  Request request;
  std::string_view text;  // the sentence; empty if only its ids are known
  std::size_t first = 0;  // source ids [first, last) are part of the text; the others are affixes
  std::size_t last = 0;
  // Byte ranges of the ids in [first, last), without white space, if alignments are requested.
  std::vector<Span> spans;
  std::size_t forced = 0;  // number of ids of the request's prefix that languages added
  bool truncated = false;  // whether the text was truncated

  // Return the ids of an answer that have text: all except one of `end_ids` at the end.
  Ids visible(Ids ids) const;
};

// The checked options of one call, which turn texts into sentences. The arguments of the constructor must outlive it.
class Call {
 public:
  // Throws InputError: an option is invalid, or options contradict each other. `shortlist` is null if the bundle has
  // none.
  Call(const Manifest& manifest, const Tokenizer& tokenizer, const Limits& limits, Options options, Warn warn,
       const Shortlist* shortlist = nullptr);

  const Options& options() const { return options_; }

  // Return the sentence of a text, or no value if the text has no words. `what` is its name in messages. `number` is
  // its index in the input, from 1, which is part of the random key of sampling. Throws InputError: the text is not
  // UTF-8, or it is too long and `strict` is set.
  std::optional<Sentence> sentence(std::string_view text, const std::string& what, std::size_t number = 1) const {
    return sentence(text, what, number, warn_);
  }
  std::optional<Sentence> sentence(std::string_view text, const std::string& what, std::size_t number,
                                   const Warn& warn) const;

  // Return how many characters at the beginning of a UTF-8 text fit into the model's maximum source length.
  std::size_t fitting_characters(std::string_view text) const;

  // Return the maximum number of source tokens.
  std::size_t max_tokens() const { return static_cast<std::size_t>(limits_.source); }

  // Return the length in bytes of the marker at the beginning of a text that selects its target language; 0 for none.
  std::size_t marker_length(std::string_view text) const;

  // Return the bundle's name of the source language; empty if it has none.
  std::string source_language() const;

  const Warn& warn() const { return warn_; }

  // Like `sentence`, for a text that must not be empty. Throws InputError: it is empty.
  Sentence needed(std::string_view text, const std::string& what) const;

  // Return the sentence of complete source ids, which must have been checked.
  Sentence of_ids(Ids source, std::size_t number = 1) const;
  // Return the sentence of checked vectors.
  Sentence of_vectors(std::shared_ptr<const FloatMatrix> vectors, std::size_t number) const;

 private:
  const Manifest& manifest_;
  const Tokenizer& tokenizer_;
  Limits limits_;
  Options options_;
  Warn warn_;
  LanguageChoice languages_;
  Ids target_prefix_;  // ids that all translations begin with in these languages
  Ids prefix_;         // ids of the option prefix, which follow
  Search search_;
  const Shortlist* shortlist_;

  Request request(EncoderInput source, const Ids& target_prefix, std::size_t number) const;
};

}  // namespace txport::core
