#include "search/greedy.hpp"

#include <algorithm>

#include "search/continuations.hpp"

namespace txport::core {

Greedy::Greedy(const SpecialTokens& tokens, const Search& search, bool recomputes_logits)
    : constraints_(search.rules, tokens), tokens_(tokens), recomputes_logits_(recomputes_logits) {}

bool Greedy::needs_logits(const Request& request) const {
  // Scores and penalties read logits at each step. Other rules read them only if the best token is banned, so they can
  // be recomputed.
  return request.scores || constraints_.penalises() || (request.ruled() && !recomputes_logits_);
}

bool Greedy::steps_one_by_one(const Slots& slots) const {
  return std::any_of(slots.begin(), slots.end(), [](const auto& slot) { return slot->length < slot->single_steps; });
}

void Greedy::choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool one_by_one) const {
  if (one_by_one) {
    choose_one(state, slots, token_ids);
    return;
  }
  for (std::size_t row = 0; row < slots.size(); ++row) {
    if (!slots[row]) continue;
    Slot& slot = *slots[row];
    for (std::size_t i = row; i < token_ids.size() && !slot.done; i += slots.size()) {
      slot.extend(token_ids[i], constraints_.is_end(token_ids[i]));
    }
  }
}

// Append one token to each slot, with its score.
void Greedy::choose_one(DecoderState& state, const Slots& slots, const Ids& token_ids) const {
  Continuations next(slots.size());
  for (std::size_t row = 0; row < slots.size(); ++row) {
    if (!slots[row]) continue;
    Slot& slot = *slots[row];
    const std::int64_t token = next_token(state, row, slot, token_ids[row]);
    const bool is_end = constraints_.is_end(token);
    slot.extend(token, is_end);
    // The device stops only at eos. It ignores other end ids of the rules, and it also stops at an eos inside a
    // forced prefix.
    const bool ends_by_rule = slot.done && is_end && token != tokens_.eos;
    const bool continues = token == tokens_.eos && !slot.done;
    if (ends_by_rule || continues || token != token_ids[row])
      next.set(row, ends_by_rule ? tokens_.pad : token, slot.done);
    if (slot.request.scores) slot.scores.push_back(state.log_probability(row, token));
  }
  next.apply(state);
}

std::int64_t Greedy::next_token(DecoderState& state, std::size_t row, const Slot& slot, std::int64_t best) const {
  if (const auto forced = forced_token(slot)) return *forced;
  if (!slot.ruled || !constraints_.may_change(best, slot.ids, slot.request)) return best;
  std::vector<float> scores = state.logits(row);
  constraints_.apply(scores, slot.ids, slot.request);
  return std::max_element(scores.begin(), scores.end()) - scores.begin();
}

}  // namespace txport::core
