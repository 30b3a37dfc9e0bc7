#include "search/forks.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "search/sampling.hpp"

namespace txport::core {

namespace {

std::size_t rows_of(const Search& search) {
  return static_cast<std::size_t>(search.alternatives > 0 ? search.alternatives : search.n_best);
}

}  // namespace

Result ForkedSlot::result() {
  if (answers.empty()) return Slot::result();
  Result result{index, {}};
  for (Slot& answer : answers) result.hypotheses.push_back(answer.hypothesis());
  return result;
}

Forks::Forks(const SpecialTokens& tokens, const Search& search, bool recomputes_logits)
    : Policy(rows_of(search)),
      constraints_(search.rules, tokens),
      greedy_(tokens, search, recomputes_logits),
      sampling_(search.sampling),
      pad_(tokens.pad),
      recomputes_logits_(recomputes_logits) {}

std::shared_ptr<Slot> Forks::slot(std::size_t index, Request request, std::int64_t limit) const {
  return std::make_shared<ForkedSlot>(index, std::move(request), limit);
}

bool Forks::needs_logits(const Request& request) const {
  // Sampling reads them at each step; alternatives only at the first step after the prefix.
  return sampling_ || !recomputes_logits_ || greedy_.needs_logits(request);
}

void Forks::choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool /*one_by_one*/) const {
  Continuations next(state.rows());
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (!slots[index]) continue;
    extend_all(state, static_cast<ForkedSlot&>(*slots[index]), index * rows_per_sentence(), token_ids, next);
  }
  next.apply(state);
}

// Append one token to each translation of a slot, whose first row is `first`.
void Forks::extend_all(DecoderState& state, ForkedSlot& slot, std::size_t first, const Ids& token_ids,
                       Continuations& next) const {
  const auto extend = [&](Slot& answer, std::size_t parent, std::size_t row, std::int64_t token) {
    if (answer.request.scores) answer.scores.push_back(state.log_probability(parent, token));
    answer.extend(token, constraints_.is_end(token));
    if (row != parent) next.fork(row, parent);
    next.set(row, answer.done ? pad_ : token, answer.done);
  };
  if (static_cast<std::size_t>(slot.length) < slot.request.prefix.size()) {
    extend(slot, first, first, slot.request.prefix[static_cast<std::size_t>(slot.length)]);
    return;
  }
  if (slot.answers.empty()) {
    const Slot common = slot;
    const Ids tokens = first_tokens(state, first, common);
    for (std::size_t number = 0; number < tokens.size(); ++number) {
      extend(slot.answers.emplace_back(common), first, first + number, tokens[number]);
    }
  } else {
    for (std::size_t number = 0; number < slot.answers.size(); ++number) {
      Slot& answer = slot.answers[number];
      const std::size_t row = first + number;
      if (answer.done) continue;
      extend(
          answer, row, row,
          sampling_ ? sample_next(state, row, answer, number) : greedy_.next_token(state, row, answer, token_ids[row]));
    }
  }
  ++slot.length;
  slot.done = std::all_of(slot.answers.begin(), slot.answers.end(), [](const Slot& answer) { return answer.done; });
}

// Return the first token of each translation.
Ids Forks::first_tokens(DecoderState& state, std::size_t row, const Slot& slot) const {
  if (!sampling_) return alternatives(state, row, slot);
  Ids tokens;
  for (std::size_t number = 0; number < rows_per_sentence(); ++number) {
    tokens.push_back(sample_next(state, row, slot, number));
  }
  return tokens;
}

// Return the best tokens after the rules were applied.
Ids Forks::alternatives(DecoderState& state, std::size_t row, const Slot& slot) const {
  if (const auto forced = forced_token(slot)) return {*forced};
  const std::vector<float> scores = constrain(state, row, slot);
  Ids tokens = best_ids(scores, std::min(rows_per_sentence(), scores.size()));
  const auto banned = std::find_if(tokens.begin(), tokens.end(),
                                   [&](std::int64_t id) { return std::isinf(scores[static_cast<std::size_t>(id)]); });
  tokens.erase(banned, tokens.end());
  return tokens;
}

// Return the next token of sample `number`.
std::int64_t Forks::sample_next(DecoderState& state, std::size_t row, const Slot& answer, std::size_t number) const {
  if (const auto forced = forced_token(answer)) return *forced;
  const DrawPlace place{answer.request.key, number, static_cast<std::uint64_t>(answer.length)};
  return draw(constrain(state, row, answer), *sampling_, place);
}

// Return a copy of the logits with the rules applied.
std::vector<float> Forks::constrain(DecoderState& state, std::size_t row, const Slot& answer) const {
  std::vector<float> scores = state.logits(row);
  constraints_.apply(scores, answer.ids, answer.request);
  return scores;
}

}  // namespace txport::core
