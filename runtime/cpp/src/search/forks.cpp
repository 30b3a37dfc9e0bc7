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

Forks::Forks(const SpecialTokens& tokens, const Search& search)
    : Policy(rows_of(search)), constraints_(search.rules, tokens), sampling_(search.sampling), pad_(tokens.pad) {}

std::shared_ptr<Slot> Forks::slot(std::size_t index, Request request, std::int64_t limit) const {
  return std::make_shared<ForkedSlot>(index, std::move(request), limit);
}

void Forks::choose(DecoderState& state, const Slots& slots, const Ids& /*token_ids*/, bool /*stepwise*/) const {
  Continuations next(state.rows());
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (slots[index]) extend_all(state, static_cast<ForkedSlot&>(*slots[index]), index * rows(), next);
  }
  next.apply(state);
}

// One token more for each answer of a slot, whose rows begin at `first`.
void Forks::extend_all(DecoderState& state, ForkedSlot& slot, std::size_t first, Continuations& next) const {
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
      if (!answer.done) extend(answer, row, row, best(state, row, answer, number, 1).front());
    }
  }
  ++slot.length;
  slot.done = std::all_of(slot.answers.begin(), slot.answers.end(), [](const Slot& answer) { return answer.done; });
}

// The first token of each answer.
Ids Forks::first_tokens(DecoderState& state, std::size_t row, const Slot& slot) const {
  if (!sampling_) return best(state, row, slot, 0, rows());
  Ids tokens;
  for (std::size_t number = 0; number < rows(); ++number) {
    tokens.push_back(best(state, row, slot, number, 1).front());
  }
  return tokens;
}

// The best tokens by the rules, or one that is drawn for the sample of this number.
Ids Forks::best(DecoderState& state, std::size_t row, const Slot& answer, std::size_t number, std::size_t count) const {
  if (const auto forced = forced_token(answer)) return {*forced};
  std::vector<float> scores = state.logits(row);
  constraints_.apply(scores, answer.ids, answer.request);
  if (sampling_) {
    return {draw(scores, *sampling_, {answer.request.key, number, static_cast<std::uint64_t>(answer.length)})};
  }
  Ids tokens = best_ids(scores, std::min(count, scores.size()));
  const auto never = std::find_if(tokens.begin(), tokens.end(),
                                  [&](std::int64_t id) { return std::isinf(scores[static_cast<std::size_t>(id)]); });
  tokens.erase(never, tokens.end());
  return tokens;
}

}  // namespace txport::core
