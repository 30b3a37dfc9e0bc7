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
  Result made{index, {}};
  for (Slot& answer : answers) made.hypotheses.push_back(answer.hypothesis());
  return made;
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
  // Of each step, or only where alternatives begin.
  return sampling_ || !recomputes_logits_ || greedy_.needs_logits(request);
}

void Forks::choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool /*one_by_one*/) const {
  Continuations next(state.rows());
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (!slots[index]) continue;
    extend_all(state, static_cast<ForkedSlot&>(*slots[index]), index * rows(), token_ids, next);
  }
  next.apply(state);
}

// One token more for each answer of a slot, whose rows begin at `first`.
void Forks::extend_all(DecoderState& state, ForkedSlot& slot, std::size_t first, const Ids& token_ids,
                       Continuations& next) const {
  const auto extend = [&](Slot& answer, std::size_t from, std::size_t row, std::int64_t token) {
    if (answer.request.scores) answer.scores.push_back(state.log_probability(from, token));
    answer.extend(token, constraints_.is_end(token));
    if (row != from) next.fork(row, from);
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
          sampling_ ? draw_next(state, row, answer, number) : greedy_.next_token(state, row, answer, token_ids[row]));
    }
  }
  ++slot.length;
  slot.done = std::all_of(slot.answers.begin(), slot.answers.end(), [](const Slot& answer) { return answer.done; });
}

// The first token of each answer.
Ids Forks::first_tokens(DecoderState& state, std::size_t row, const Slot& slot) const {
  if (!sampling_) return alternatives(state, row, slot);
  Ids tokens;
  for (std::size_t number = 0; number < rows(); ++number) tokens.push_back(draw_next(state, row, slot, number));
  return tokens;
}

// The best tokens by the rules.
Ids Forks::alternatives(DecoderState& state, std::size_t row, const Slot& slot) const {
  if (const auto forced = forced_token(slot)) return {*forced};
  const std::vector<float> scores = constrained(state, row, slot);
  Ids tokens = best_ids(scores, std::min(rows(), scores.size()));
  const auto never = std::find_if(tokens.begin(), tokens.end(),
                                  [&](std::int64_t id) { return std::isinf(scores[static_cast<std::size_t>(id)]); });
  tokens.erase(never, tokens.end());
  return tokens;
}

// The next token of the sample of this number.
std::int64_t Forks::draw_next(DecoderState& state, std::size_t row, const Slot& answer, std::size_t number) const {
  if (const auto forced = forced_token(answer)) return *forced;
  const DrawPlace place{answer.request.key, number, static_cast<std::uint64_t>(answer.length)};
  return draw(constrained(state, row, answer), *sampling_, place);
}

// A copy of the logits, as the rules change them.
std::vector<float> Forks::constrained(DecoderState& state, std::size_t row, const Slot& answer) const {
  std::vector<float> scores = state.logits(row);
  constraints_.apply(scores, answer.ids, answer.request);
  return scores;
}

}  // namespace txport::core
