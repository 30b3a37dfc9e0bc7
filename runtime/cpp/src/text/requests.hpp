// From texts and ids to requests for the search: one way for all that translate and measure.
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

// Default length limit of an answer: kLengthRatio x source tokens + kLengthOffset. A model that has learnt little does
// not end its answers, and few real answers are longer.
inline constexpr std::int64_t kLengthRatio = 2;
inline constexpr std::int64_t kLengthOffset = 20;

// This limit for `source` tokens, eos and languages included, and an answer that must have `begun` tokens, by a prefix
// or a minimum; at most what the engine makes.
std::int64_t length_limit(std::size_t source, std::size_t begun, std::int64_t most);

// Takes one sentence of warning; may be empty.
using Warn = std::function<void(const std::string&)>;

// A sentence as the search takes it, and what is remembered of its text.
struct Sentence {
  Request request;
  std::string_view text;  // the sentence; empty if only its ids are known
  std::size_t first = 0;  // of the source ids, the first that is of the text,
  std::size_t last = 0;   // and the one after the last
  // The bytes of each id from `first` to `last`, without white space, if alignments are asked for.
  std::vector<Span> spans;
  std::size_t forced = 0;  // how many ids of the request's prefix its languages put there
  bool truncated = false;  // whether the text was cut to fit
};

// The options of one call, checked, and the sentences that they are for. All that it is made of must outlive it.
class Call {
 public:
  // Throws InputError: an option cannot be used, or options of the search cannot be together.
  // `shortlist` is null if the bundle has none.
  Call(const Manifest& manifest, const Tokenizer& tokenizer, const Limits& limits, Options options, Warn warn,
       const Shortlist* shortlist = nullptr);

  const Options& options() const { return options_; }

  // The sentence of a text, or nothing if there is nothing in it to translate; `what` names it in messages. Random
  // draws follow from its `number` in its text, from 1.
  // Throws InputError: it is not UTF-8, or too long and the call is strict.
  std::optional<Sentence> sentence(std::string_view text, const std::string& what, std::size_t number = 1) const {
    return sentence(text, what, number, warn_);
  }
  std::optional<Sentence> sentence(std::string_view text, const std::string& what, std::size_t number,
                                   const Warn& warn) const;

  // The number of characters at the beginning of a text in UTF-8 that the model takes, perhaps all of them.
  std::size_t fitting(std::string_view text) const;

  // Maximum number of tokens of a source that the model takes.
  std::size_t most_tokens() const { return static_cast<std::size_t>(limits_.source); }

  // How many bytes at the beginning of a text choose its target language.
  std::size_t marker(std::string_view text) const;

  // The language of the texts, as the bundle names it; empty if it does not.
  std::string source_language() const;

  const Warn& warn() const { return warn_; }

  // As `sentence`, of a text in which there must be something. Throws InputError: it is empty.
  Sentence needed(std::string_view text, const std::string& what) const;

  // The sentence of whole source ids, which must have been checked.
  Sentence of_ids(Ids source, std::size_t number = 1) const;
  // The same of vectors.
  Sentence of_vectors(std::shared_ptr<const FloatMatrix> vectors, std::size_t number) const;

 private:
  const Manifest& manifest_;
  const Tokenizer& tokenizer_;
  Limits limits_;
  Options options_;
  Warn warn_;
  LanguageChoice languages_;
  Ids target_prefix_;  // what all answers begin with in these languages,
  Ids prefix_;         // and the option of this name, which follows
  Search search_;
  const Shortlist* shortlist_;

  Request request(EncoderInput source, const Ids& target_prefix, std::size_t number) const;
};

}  // namespace txport::core
