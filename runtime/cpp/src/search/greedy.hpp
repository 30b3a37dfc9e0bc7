// Greedy search: each token is the most probable one, which the device chooses, unless a rule overrides it.
#pragma once

#include "engine.hpp"
#include "search/requests.hpp"
#include "search/rules.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// The policy of greedy search.
class Greedy : public Policy {
 public:
  // `recomputes_logits`: see Engine.
  explicit Greedy(const SpecialTokens& tokens, const Search& search = {}, bool recomputes_logits = false);

  bool needs_logits(const Request& request) const override;
  bool steps_one_by_one(const Slots& slots) const override;
  void choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool one_by_one) const override;
  // Return the next token after rules, given the token `best` that the device chose. Of equal scores the first one
  // wins, as in ArgMax.
  std::int64_t next_token(DecoderState& state, std::size_t row, const Slot& slot, std::int64_t best) const;

 private:
  const Constraints constraints_;
  const SpecialTokens tokens_;
  const bool recomputes_logits_;

  void choose_one(DecoderState& state, const Slots& slots, const Ids& token_ids) const;
};

}  // namespace txport::core
