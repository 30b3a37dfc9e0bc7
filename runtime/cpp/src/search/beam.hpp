// Beam search with the algorithm of Hugging Face's `generate` (transformers 5, generation/utils.py, `_beam_search`).
//
// A sentence has Search::beam rows in a batch. Its first step uses one of them. After each step, the rows continue the
// best hypotheses among all continuations of all rows.
#pragma once

#include <vector>

#include "search/rules.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// A running hypothesis with one more token.
struct Candidate {
  double total;        // log-probability of the hypothesis including this token
  std::size_t parent;  // index of the hypothesis in BeamSlot::running
  std::int64_t token;
  double score;  // log-probability of the token
};

// An unfinished hypothesis.
struct Running {
  Ids ids;
  std::vector<double> scores;
  double total = 0;
};

// A sentence whose rows are hypotheses, sorted by descending log-probability. `ids` and `scores` stay empty.
struct BeamSlot : Slot {
  std::vector<Running> running{1};  // running hypotheses, one for each of the first rows
  // Finished hypotheses, sorted by descending score; at most Search::beam (times the patience).
  std::vector<Hypothesis> finished;

  BeamSlot(std::size_t index, Request request, std::int64_t limit);

  // Return whether the prefix is complete.
  bool begun() const { return length >= static_cast<std::int64_t>(request.prefix.size()); }
  // Append the next token of the prefix to the only hypothesis. Return the same as `advance`.
  std::vector<Candidate> append_forced();
  // Choose the next hypotheses among candidates, which must be sorted by descending total and contain at least `beam`
  // that do not end. Return the candidates that become running hypotheses; none if the sentence is finished.
  std::vector<Candidate> advance(const std::vector<Candidate>& candidates, const Constraints& constraints);
  Result result() override;

 private:
  std::size_t max_finished_;       // maximum size of `finished`
  std::int64_t uncounted_tokens_;  // tokens of the prefix that do not count towards the length

  Running extend(const Candidate& candidate) const;
  void finish(std::vector<Running> ending);
  bool is_search_over() const;
};

// The policy of beam search. `vocabulary` is the number of logits of a row. If the engine `recomputes_logits`, rules
// read only a few of them.
class BeamSearch : public Policy {
 public:
  BeamSearch(const SpecialTokens& tokens, const Search& search, std::int64_t vocabulary,
             bool recomputes_logits = false);

  std::shared_ptr<Slot> slot(std::size_t index, Request request, std::int64_t limit) const override;
  bool needs_logits(const Request& request) const override {
    return request.ruled() && (!recomputes_logits_ || constraints_.penalises());
  }
  bool steps_one_by_one(const Slots& /*slots*/) const override { return true; }
  void choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool one_by_one) const override;
  // Call `choose`, then run up to `more` further steps in the same way, until a sentence is done or a cache is full.
  // Return the number of tokens chosen for each hypothesis.
  std::int64_t choose_and_step(DecoderState& state, const Slots& slots, std::int64_t more) const;

 private:
  // The best tokens of a row: ids `[k]` and log-probabilities `[k]`.
  struct Scored {
    Ids ids;
    std::vector<double> scores;
  };

  const Constraints constraints_;
  const bool renormalize_;
  const bool recomputes_logits_;
  const std::int64_t pad_;
  const std::size_t max_candidates_;  // per sentence; enough for `beam` candidates that do not end

  BeamSearch(Constraints constraints, const SpecialTokens& tokens, const Search& search, std::int64_t vocabulary,
             bool recomputes_logits);
  std::vector<Scored> score_rows(DecoderState& state, const Slots& slots) const;
  Scored with_rules(DecoderState& state, std::size_t row, double normaliser, const Scored& best, const Ids& generated,
                    const Request& request) const;
  Scored with_rules(const std::vector<float>& logits, const Ids& generated, const Request& request) const;
  std::vector<Candidate> candidates(const BeamSlot& slot, const Scored* rows) const;
};

}  // namespace txport::core
