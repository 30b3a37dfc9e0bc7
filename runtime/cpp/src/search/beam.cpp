#include "search/beam.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "search/continuations.hpp"

namespace txport::core {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
// Minimum share of a normaliser that rules may leave; below it, the remaining digits are too few.
constexpr double kMinMass = 0.25;

double sum_of_exp(const std::vector<double>& scores) {
  return std::accumulate(scores.begin(), scores.end(), 0.0, [](double sum, double x) { return sum + std::exp(x); });
}

BeamSlot* beam_slot(const std::shared_ptr<Slot>& slot) { return static_cast<BeamSlot*>(slot.get()); }

// Turn logits of a row into log-probabilities.
void log_softmax(std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double& logit : logits) {
    logit -= largest;
    sum += std::exp(logit);
  }
  const double normaliser = std::log(sum);
  for (double& logit : logits) logit -= normaliser;
}

}  // namespace

BeamSlot::BeamSlot(std::size_t number, Request asked, std::int64_t most) : Slot(number, std::move(asked), most) {
  const Search& search = request.search;
  const double patience = search.early_stopping == EarlyStopping::kTrue ? search.patience : 1;
  most_ = static_cast<std::size_t>(std::max(1.0, std::nearbyint(static_cast<double>(search.beam) * patience)));
  uncounted_ = static_cast<std::int64_t>(request.prefix.size() - request.forced);
}

std::vector<Candidate> BeamSlot::force() {
  const std::int64_t token = request.prefix[static_cast<std::size_t>(length)];
  ++length;
  Running& only = running.front();
  only.ids.push_back(token);
  only.scores.push_back(0);
  done = length >= limit;
  if (!done) return {{only.total, 0, token, 0}};
  end(std::move(running));
  return {};
}

std::vector<Candidate> BeamSlot::advance(const std::vector<Candidate>& candidates, const Constraints& constraints) {
  const auto beam = static_cast<std::size_t>(request.search.beam);
  ++length;
  std::vector<Candidate> kept;
  std::vector<Running> ending;
  for (std::size_t rank = 0; rank < candidates.size(); ++rank) {
    if (length >= limit || constraints.is_end(candidates[rank].token)) {
      if (rank < beam) ending.push_back(continued(candidates[rank]));
    } else if (kept.size() < beam) {
      kept.push_back(candidates[rank]);
    }
  }
  end(std::move(ending));
  std::vector<Running> next;
  for (const Candidate& candidate : kept) next.push_back(continued(candidate));
  running = std::move(next);
  done = kept.empty() || none_better();
  if (done) kept.clear();
  return kept;
}

Running BeamSlot::continued(const Candidate& candidate) const {
  Running made = running[candidate.parent];
  made.ids.push_back(candidate.token);
  made.scores.push_back(candidate.score);
  made.total = candidate.total;
  return made;
}

void BeamSlot::end(std::vector<Running> ending) {
  const auto counted = static_cast<double>(std::max<std::int64_t>(1, length - uncounted_));
  const double penalty = std::pow(counted, request.search.length_penalty);
  for (Running& made : ending) ended.push_back({std::move(made.ids), std::move(made.scores), made.total / penalty});
  // Of equals, the one that ended first.
  std::stable_sort(ended.begin(), ended.end(),
                   [](const Hypothesis& a, const Hypothesis& b) { return *a.score > *b.score; });
  if (ended.size() > most_) ended.erase(ended.begin() + static_cast<std::ptrdiff_t>(most_), ended.end());
}

// Whether the search ends here, by Search::early_stopping.
bool BeamSlot::none_better() const {
  const Search& search = request.search;
  if (ended.size() < most_) return false;
  if (search.early_stopping == EarlyStopping::kTrue) return true;
  const bool at_best = search.early_stopping == EarlyStopping::kNever && search.length_penalty > 0;
  const auto counted = std::max<std::int64_t>(1, (at_best ? limit : length) - uncounted_);
  const double possible = running.front().total / std::pow(static_cast<double>(counted), search.length_penalty);
  return possible <= *ended.back().score;
}

Result BeamSlot::result() {
  ended.resize(std::min(ended.size(), static_cast<std::size_t>(request.search.n_best)));
  for (Hypothesis& hypothesis : ended) {
    if (!request.scores) hypothesis.scores.reset();
  }
  return {index, std::move(ended)};
}

BeamSearch::BeamSearch(const SpecialTokens& tokens, const Search& search, std::int64_t vocabulary,
                       bool recomputes_logits)
    : BeamSearch(Constraints(search.rules, tokens), tokens, search, vocabulary, recomputes_logits) {}

BeamSearch::BeamSearch(Constraints constraints, const SpecialTokens& tokens, const Search& search,
                       std::int64_t vocabulary, bool recomputes_logits)
    : Policy(static_cast<std::size_t>(search.beam),
             std::min((1 + constraints.ends() + (recomputes_logits && search.rules.change_scores() ? 1 : 0)) *
                          static_cast<std::size_t>(search.beam),
                      static_cast<std::size_t>(vocabulary))),
      constraints_(std::move(constraints)),
      renormalize_(search.rules.renormalize),
      recomputes_logits_(recomputes_logits),
      pad_(tokens.pad),
      kept_((1 + constraints_.ends()) * rows()) {}

std::shared_ptr<Slot> BeamSearch::slot(std::size_t index, Request request, std::int64_t limit) const {
  return std::make_shared<BeamSlot>(index, std::move(request), limit);
}

void BeamSearch::choose(DecoderState& state, const Slots& slots, const Ids& /*token_ids*/, bool /*one_by_one*/) const {
  const std::vector<Scored> best = scored(state, slots);
  Continuations next(state.rows());
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (!slots[index]) continue;
    BeamSlot& slot = *beam_slot(slots[index]);
    const std::size_t first = index * rows();
    const std::size_t before = slot.running.size();
    const std::vector<Candidate> kept =
        slot.begun() ? slot.advance(candidates(slot, &best[first]), constraints_) : slot.force();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      next.fork(first + i, first + kept[i].parent);
      next.set(first + i, kept[i].token, false);
    }
    for (std::size_t i = kept.size(); i < before; ++i) next.set(first + i, pad_, true);
  }
  next.apply(state);
}

std::int64_t BeamSearch::go_on(DecoderState& state, const Slots& slots, std::int64_t more) const {
  const auto ready = [&](const auto& slot) { return !slot || (!slot->done && slot->length < state.target()); };
  for (std::int64_t steps = 1;; ++steps) {
    choose(state, slots, {}, true);
    if (steps > more || !std::all_of(slots.begin(), slots.end(), ready)) return steps;
    state.step(1);
    state.read();
  }
}

// The best continuations of a slot, by descending total: of equals, that of the first hypothesis.
std::vector<Candidate> BeamSearch::candidates(const BeamSlot& slot, const Scored* best) const {
  std::vector<Candidate> all;
  for (std::size_t parent = 0; parent < slot.running.size(); ++parent) {
    for (std::size_t i = 0; i < best[parent].ids.size(); ++i) {
      const double score = best[parent].scores[i];
      const double total = slot.running[parent].total + score;
      if (total > kNever) all.push_back({total, parent, best[parent].ids[i], score});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.total > b.total; });
  if (all.size() > kept_) all.resize(kept_);
  return all;
}

// The best tokens of each row; none for rows that are free or have a prefix before them.
std::vector<BeamSearch::Scored> BeamSearch::scored(DecoderState& state, const Slots& slots) const {
  std::vector<Scored> best(state.rows());
  const auto begun = [](const auto& slot) { return slot && beam_slot(slot)->begun(); };
  const auto by_logits = [this](const Slot& slot) { return slot.ruled && !recomputes_logits_; };
  const bool by_state = std::any_of(slots.begin(), slots.end(), [&](const auto& slot) {
    return begun(slot) && !by_logits(*slot) && !forced_token(*slot);
  });
  const Top found = by_state ? state.top(top()) : Top{};
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (!begun(slots[index])) continue;
    const BeamSlot& slot = *beam_slot(slots[index]);
    const auto forced = forced_token(slot);
    for (std::size_t i = 0; i < slot.running.size(); ++i) {
      const std::size_t row = index * rows() + i;
      if (forced) {
        best[row] = {{*forced}, {0}};
        continue;
      }
      if (by_logits(slot)) {
        best[row] = by_rules(state.logits(row), slot.running[i].ids, slot.request);
        continue;
      }
      for (std::size_t at = row * top(); at < (row + 1) * top(); ++at) {
        best[row].ids.push_back(found.token_ids[at]);
        best[row].scores.push_back(static_cast<double>(found.logits[at]) - found.normaliser[row]);
      }
      if (slot.ruled) {
        best[row] = by_rules(state, row, found.normaliser[row], best[row], slot.running[i].ids, slot.request);
      }
    }
  }
  return best;
}

// What the rules make of the best tokens of a row. They change few scores, which alone are looked at besides; the best
// that they leave alone may be too few, or too little, and then all logits are.
BeamSearch::Scored BeamSearch::by_rules(DecoderState& state, std::size_t row, double normaliser, const Scored& best,
                                        const Ids& made, const Request& request) const {
  const Ids changed = constraints_.changed(made, request);
  if (changed.empty()) return best;
  std::vector<double> scores;
  for (const float logit : state.some_logits(row, changed)) scores.push_back(static_cast<double>(logit) - normaliser);
  double mass = 1 - sum_of_exp(scores);
  constraints_.change(changed, scores, made, request);
  mass += sum_of_exp(scores);
  std::vector<std::pair<double, std::int64_t>> order;  // by descending score, equal ones by ascending id
  for (std::size_t i = 0; i < best.ids.size(); ++i) {
    const bool alone = !std::binary_search(changed.begin(), changed.end(), best.ids[i]);
    if (alone && best.scores[i] > kNever) order.emplace_back(-best.scores[i], best.ids[i]);
  }
  const bool enough = order.size() >= rows() + constraints_.ends() && (!renormalize_ || mass >= kMinMass);
  if (!enough) return by_rules(state.logits(row), made, request);
  for (std::size_t i = 0; i < changed.size(); ++i) {
    if (scores[i] > kNever) order.emplace_back(-scores[i], changed[i]);
  }
  std::sort(order.begin(), order.end());
  const double second = renormalize_ ? std::log(mass) : 0;
  Scored next;
  for (const auto& [negative, id] : order) {
    next.ids.push_back(id);
    next.scores.push_back(-negative - second);
  }
  return next;
}

BeamSearch::Scored BeamSearch::by_rules(const std::vector<float>& logits, const Ids& made,
                                        const Request& request) const {
  std::vector<double> scores(logits.begin(), logits.end());
  log_softmax(scores);
  constraints_.apply(scores, made, request);
  if (renormalize_) log_softmax(scores);
  Scored best{best_ids(scores, top()), {}};
  for (const std::int64_t id : best.ids) best.scores.push_back(scores[static_cast<std::size_t>(id)]);
  return best;
}

}  // namespace txport::core
