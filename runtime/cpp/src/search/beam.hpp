// Beam search as Hugging Face's `generate` does it (transformers 5, generation/utils.py, `_beam_search`).
//
// A sentence has Search::beam rows in a batch. Its first step has one of them; then the best continuations fork, and
// after each step rows continue those hypotheses that are best among all continuations.
#pragma once

#include <vector>

#include "search/rules.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// One token more for a hypothesis that runs.
struct Candidate {
  double total;        // the log-probability of the hypothesis with this token
  std::size_t parent;  // which hypothesis of its sentence
  std::int64_t token;
  double score;  // the log-probability of the token
};

// A hypothesis that has not ended.
struct Running {
  Ids ids;
  std::vector<double> scores;
  double total = 0;
};

// A sentence whose rows are hypotheses, by descending log-probability; `ids` and `scores` stay empty.
struct BeamSlot : Slot {
  std::vector<Running> running{1};  // hypotheses that continue, one for each of the first rows
  // At most Search::beam (times the patience) finished hypotheses, by descending score.
  std::vector<Hypothesis> ended;

  BeamSlot(std::size_t index, Request request, std::int64_t limit);

  // Whether the prefix is complete.
  bool begun() const { return length >= static_cast<std::int64_t>(request.prefix.size()); }
  // Append the next token of the prefix to the one hypothesis there is; returns as `advance`.
  std::vector<Candidate> force();
  // Take the best continuations: candidates by descending total, as many as leave `beam` of them that do not end.
  // Returns the running hypotheses; none if the sentence is finished.
  std::vector<Candidate> advance(const std::vector<Candidate>& candidates, const Constraints& constraints);
  Result result() override;

 private:
  std::size_t most_;        // hypotheses to end
  std::int64_t uncounted_;  // tokens that are none of a hypothesis' length

  Running continued(const Candidate& candidate) const;
  void end(std::vector<Running> ending);
  bool none_better() const;
};

// The policy of beam search; `vocabulary`: logits of a row. Of an engine that `recomputes_logits` few are read for
// rules.
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
  // `choose`, and up to `more` steps likewise, as long as no sentence ends and there is room in the caches. Returns the
  // number of tokens that were chosen.
  std::int64_t go_on(DecoderState& state, const Slots& slots, std::int64_t more) const;

 private:
  // Of the best tokens of a row: ids `[k]` and log-probabilities `[k]`.
  struct Scored {
    Ids ids;
    std::vector<double> scores;
  };

  const Constraints constraints_;
  const bool renormalize_;
  const bool recomputes_logits_;
  const std::int64_t pad_;
  const std::size_t kept_;  // candidates of a sentence: all may be ends of hypotheses, and `beam` must continue

  BeamSearch(Constraints constraints, const SpecialTokens& tokens, const Search& search, std::int64_t vocabulary,
             bool recomputes_logits);
  std::vector<Scored> scored(DecoderState& state, const Slots& slots) const;
  Scored by_rules(DecoderState& state, std::size_t row, double normaliser, const Scored& best, const Ids& made,
                  const Request& request) const;
  Scored by_rules(const std::vector<float>& logits, const Ids& made, const Request& request) const;
  std::vector<Candidate> candidates(const BeamSlot& slot, const Scored* rows) const;
};

}  // namespace txport::core
