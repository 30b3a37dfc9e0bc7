// Searches with several independent translations per sentence: sampling, and alternatives at a position.
//
// The prefix and the first step after it use one row. Then each translation has its own row.
#pragma once

#include <deque>
#include <optional>

#include "search/continuations.hpp"
#include "search/greedy.hpp"
#include "search/rules.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// A sentence with a slot for each of its translations. `ids` and `scores` contain their common prefix.
struct ForkedSlot : Slot {
  std::deque<Slot> answers;

  using Slot::Slot;
  // Return the translations in the order in which their first tokens were chosen.
  Result result() override;
};

// The policy of sampling and of alternatives.
class Forks : public Policy {
 public:
  // `recomputes_logits`: see Engine.
  Forks(const SpecialTokens& tokens, const Search& search, bool recomputes_logits = false);

  std::shared_ptr<Slot> slot(std::size_t index, Request request, std::int64_t limit) const override;
  bool needs_logits(const Request& request) const override;
  bool steps_one_by_one(const Slots& /*slots*/) const override { return true; }
  void choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool one_by_one) const override;

 private:
  const Constraints constraints_;
  const Greedy greedy_;
  const std::optional<Sampling> sampling_;
  const std::int64_t pad_;
  const bool recomputes_logits_;

  void extend_all(DecoderState& state, ForkedSlot& slot, std::size_t first, const Ids& token_ids,
                  Continuations& next) const;
  Ids first_tokens(DecoderState& state, std::size_t row, const Slot& slot) const;
  Ids alternatives(DecoderState& state, std::size_t row, const Slot& slot) const;
  std::int64_t sample_next(DecoderState& state, std::size_t row, const Slot& answer, std::size_t number) const;
  std::vector<float> constrain(DecoderState& state, std::size_t row, const Slot& answer) const;
};

}  // namespace txport::core
