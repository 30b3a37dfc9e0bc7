// Search settings, with the meaning that they have in Hugging Face's `generate` (transformers 5, generation/utils.py).
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "engine.hpp"

namespace txport::core {

// Constraints on the next token. In beam search and sampling they apply to log-probabilities, in greedy search to
// logits.
struct Rules {
  // Penalty for tokens generated so far, including bos: negative scores are multiplied by it, other scores divided by
  // it (Keskar et al., CTRL, section 4.1). 1: no penalty.
  double repetition_penalty = 1;
  // Never repeat an n-gram of this size, counting bos as a token (Paulus et al., section 2.5). 0: no rule.
  std::int64_t no_repeat_ngram = 0;
  std::vector<Ids> bad_words;              // id sequences that are never generated
  Ids suppress;                            // ids that are never generated
  Ids begin_suppress;                      // ids that are never generated first, after the prefix
  Ids end_ids;                             // ids that end a translation, in addition to eos
  std::optional<std::int64_t> forced_end;  // last id at the maximum length; score 0 in beam search
  bool renormalize = false;                // beam search: renormalize probabilities after all rules

  // Return whether a rule may change the translation.
  bool any() const { return change_scores() || !end_ids.empty() || forced_end.has_value(); }
  // Return whether a rule may change the score of a token.
  bool change_scores() const {
    return repetition_penalty != 1 || no_repeat_ngram > 0 || !bad_words.empty() || !suppress.empty() ||
           !begin_suppress.empty();
  }
};

// Settings of sampling.
struct Sampling {
  double temperature = 1;  // divides the logits
  std::int64_t top_k = 0;  // sample from the k most likely tokens; 0: all
  // Sample from the most likely tokens with this total probability (nucleus sampling, Holtzman et al., section 3.1).
  double top_p = 1;
  double min_p = 0;        // sample from tokens at least this fraction as likely as the best (Nguyen et al., section 3)
  std::uint64_t seed = 0;  // random seed; the sample of a sentence does not depend on its position in a batch
};

// Condition for the end of the beam search of a sentence.
enum class EarlyStopping {
  kFalse,  // no running hypothesis scores better than the worst finished one at its current length
  kTrue,   // `beam` hypotheses are finished
  kNever,  // no running hypothesis can score better at any length
};

// Settings of a search.
struct Search {
  std::int64_t beam = 1;      // number of beams; 1: greedy search
  std::int64_t n_best = 1;    // hypotheses of each result, at most `beam`; for sampling, independent samples
  double length_penalty = 1;  // exponent: score = log-probability / length^length_penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  double patience = 1;               // with kTrue, stop after beam x patience finished hypotheses (Kasai et al., 2022)
  std::optional<Sampling> sampling;  // no value: no sampling
  std::int64_t alternatives = 0;     // number of best tokens after the prefix that greedy search continues; 0: none
  Rules rules;
  bool shortlist = false;  // each request has its own Request::words
};

inline bool operator==(const Rules& one, const Rules& other) {
  const auto all = [](const Rules& of) {
    return std::tie(of.repetition_penalty, of.no_repeat_ngram, of.bad_words, of.suppress, of.begin_suppress, of.end_ids,
                    of.forced_end, of.renormalize);
  };
  return all(one) == all(other);
}

inline bool operator==(const Sampling& one, const Sampling& other) {
  const auto all = [](const Sampling& of) { return std::tie(of.temperature, of.top_k, of.top_p, of.min_p, of.seed); };
  return all(one) == all(other);
}

inline bool operator==(const Search& one, const Search& other) {
  const auto all = [](const Search& of) {
    return std::tie(of.beam, of.n_best, of.length_penalty, of.early_stopping, of.patience, of.sampling, of.alternatives,
                    of.rules, of.shortlist);
  };
  return all(one) == all(other);
}

}  // namespace txport::core
