// Searches of several independent answers: samples, and alternatives at a position.
//
// The first step after the prefix has one row; then each answer takes a row of its own.
#pragma once

#include <deque>
#include <optional>

#include "search/continuations.hpp"
#include "search/greedy.hpp"
#include "search/rules.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// A sentence with a slot for each of its answers; `ids` and `scores` are of what they have in common.
struct ForkedSlot : Slot {
  std::deque<Slot> answers;

  using Slot::Slot;
  // The answers, in the order in which they were chosen.
  Result result() override;
};

// The policy of sampling, and of alternatives.
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
  std::int64_t draw_next(DecoderState& state, std::size_t row, const Slot& answer, std::size_t number) const;
  std::vector<float> constrained(DecoderState& state, std::size_t row, const Slot& answer) const;
};

}  // namespace txport::core
