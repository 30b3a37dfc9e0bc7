// Settings of a search. They mean what they mean in Hugging Face's `generate` (transformers 5, generation/utils.py).
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "engine.hpp"

namespace txport::core {

// Constraints on the next token, in addition to the model. With beams and in sampling, rules act on log-probabilities;
// in greedy search, on logits.
struct Rules {
  // Each token of the answer so far, bos included, gets its score times this where the score is negative, else divided
  // by it (Keskar et al., CTRL, section 4.1); 1 for none.
  double repetition_penalty = 1;
  // Never repeat an n-gram of this size, bos included (Paulus et al., section 2.5); 0 for no rule.
  std::int64_t no_repeat_ngram = 0;
  std::vector<Ids> bad_words;              // sequences of ids that never occur
  Ids suppress;                            // ids that never occur
  Ids begin_suppress;                      // ids that are not the first of an answer, what it must begin with aside
  Ids end_ids;                             // ids that end an answer, besides eos
  std::optional<std::int64_t> forced_end;  // the last id of an answer at its limit; with beams its score is 0
  bool renormalize = false;                // with beams, probabilities are normalised again after all rules

  // Whether there is one that may change what comes.
  bool any() const { return change_scores() || !end_ids.empty() || forced_end.has_value(); }
  // Whether there is one that may change the score of a token.
  bool change_scores() const {
    return repetition_penalty != 1 || no_repeat_ngram > 0 || !bad_words.empty() || !suppress.empty() ||
           !begin_suppress.empty();
  }
};

// Random choice of tokens.
struct Sampling {
  double temperature = 1;  // what logits are divided by
  std::int64_t top_k = 0;  // sample from the k most likely tokens; 0 for all
  // Choose among the most probable tokens whose probabilities sum up to this (Holtzman et al., section 3.1).
  double top_p = 1;
  double min_p = 0;        // choose among tokens of at least this share of the best one's (Nguyen et al., section 3)
  std::uint64_t seed = 0;  // one seed gives one answer to a sentence, wherever it stands in a batch
};

// When the beam search of a sentence ends.
enum class EarlyStopping {
  kFalse,  // no running hypothesis is better than the worst finished one, by its score at its present length
  kTrue,   // as many hypotheses as the beam has have ended
  kNever,  // none can become better, at the best length that it may reach
};

// How answers are searched for.
struct Search {
  std::int64_t beam = 1;      // hypotheses that are followed side by side; 1 for greedy search
  std::int64_t n_best = 1;    // hypotheses of each result, at most `beam`; with sampling, independent samples
  double length_penalty = 1;  // a hypothesis has its log-probability divided by its length to this power as its score
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  double patience = 1;  // with kTrue, a sentence ends when `beam` times this have ended (Kasai et al., 2022)
  std::optional<Sampling> sampling;  // nothing: the best tokens
  std::int64_t alternatives = 0;     // number of best tokens after the prefix that are continued by greedy search
  Rules rules;
  bool shortlist = false;  // each request has words of its own
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
