#include "search/beam.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "search/continuations.hpp"

namespace txport::core {

namespace {

constexpr double kBanned = -std::numeric_limits<double>::infinity();
// Minimum probability mass after rules for renormalization; with less, too few digits would be significant.
constexpr double kMinMass = 0.25;

double sum_of_exp(const std::vector<double>& scores) {
  return std::accumulate(scores.begin(), scores.end(), 0.0, [](double sum, double x) { return sum + std::exp(x); });
}

BeamSlot* beam_slot(const std::shared_ptr<Slot>& slot) { return static_cast<BeamSlot*>(slot.get()); }

// Convert logits of a row to log-probabilities.
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

BeamSlot::BeamSlot(std::size_t number, Request new_request, std::int64_t max_length)
    : Slot(number, std::move(new_request), max_length) {
  const Search& search = request.search;
  const double patience = search.early_stopping == EarlyStopping::kTrue ? search.patience : 1;
  max_finished_ = static_cast<std::size_t>(std::max(1.0, std::nearbyint(static_cast<double>(search.beam) * patience)));
  uncounted_tokens_ = static_cast<std::int64_t>(request.prefix.size() - request.forced);
}

std::vector<Candidate> BeamSlot::append_forced() {
  const std::int64_t token = request.prefix[static_cast<std::size_t>(length)];
  ++length;
  Running& only = running.front();
  only.ids.push_back(token);
  only.scores.push_back(0);
  done = length >= limit;
  if (!done) return {{only.total, 0, token, 0}};
  finish(std::move(running));
  return {};
}

std::vector<Candidate> BeamSlot::advance(const std::vector<Candidate>& candidates, const Constraints& constraints) {
  const auto beam = static_cast<std::size_t>(request.search.beam);
  ++length;
  std::vector<Candidate> continuing;
  std::vector<Running> ending;
  for (std::size_t rank = 0; rank < candidates.size(); ++rank) {
    if (length >= limit || constraints.is_end(candidates[rank].token)) {
      if (rank < beam) ending.push_back(extend(candidates[rank]));
    } else if (continuing.size() < beam) {
      continuing.push_back(candidates[rank]);
    }
  }
  finish(std::move(ending));
  std::vector<Running> next;
  for (const Candidate& candidate : continuing) next.push_back(extend(candidate));
  running = std::move(next);
  done = continuing.empty() || is_search_over();
  if (done) continuing.clear();
  return continuing;
}

Running BeamSlot::extend(const Candidate& candidate) const {
  Running next = running[candidate.parent];
  next.ids.push_back(candidate.token);
  next.scores.push_back(candidate.score);
  next.total = candidate.total;
  return next;
}

void BeamSlot::finish(std::vector<Running> ending) {
  const auto counted = static_cast<double>(std::max<std::int64_t>(1, length - uncounted_tokens_));
  const double penalty = std::pow(counted, request.search.length_penalty);
  for (Running& each : ending) finished.push_back({std::move(each.ids), std::move(each.scores), each.total / penalty});
  // stable: of equal scores, the hypothesis that finished first comes first
  std::stable_sort(finished.begin(), finished.end(),
                   [](const Hypothesis& a, const Hypothesis& b) { return *a.score > *b.score; });
  if (finished.size() > max_finished_)
    finished.erase(finished.begin() + static_cast<std::ptrdiff_t>(max_finished_), finished.end());
}

// Return whether the search of this sentence ends, according to Search::early_stopping.
bool BeamSlot::is_search_over() const {
  const Search& search = request.search;
  if (finished.size() < max_finished_) return false;
  if (search.early_stopping == EarlyStopping::kTrue) return true;
  const bool at_best = search.early_stopping == EarlyStopping::kNever && search.length_penalty > 0;
  const auto counted = std::max<std::int64_t>(1, (at_best ? limit : length) - uncounted_tokens_);
  const double possible = running.front().total / std::pow(static_cast<double>(counted), search.length_penalty);
  return possible <= *finished.back().score;
}

Result BeamSlot::result() {
  finished.resize(std::min(finished.size(), static_cast<std::size_t>(request.search.n_best)));
  for (Hypothesis& hypothesis : finished) {
    if (!request.scores) hypothesis.scores.reset();
  }
  return {index, std::move(finished)};
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
      max_candidates_((1 + constraints_.ends()) * rows_per_sentence()) {}

std::shared_ptr<Slot> BeamSearch::slot(std::size_t index, Request request, std::int64_t limit) const {
  return std::make_shared<BeamSlot>(index, std::move(request), limit);
}

void BeamSearch::choose(DecoderState& state, const Slots& slots, const Ids& /*token_ids*/, bool /*one_by_one*/) const {
  const std::vector<Scored> best = score_rows(state, slots);
  Continuations next(state.rows());
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (!slots[index]) continue;
    BeamSlot& slot = *beam_slot(slots[index]);
    const std::size_t first = index * rows_per_sentence();
    const std::size_t before = slot.running.size();
    const std::vector<Candidate> continuing =
        slot.begun() ? slot.advance(candidates(slot, &best[first]), constraints_) : slot.append_forced();
    for (std::size_t i = 0; i < continuing.size(); ++i) {
      next.fork(first + i, first + continuing[i].parent);
      next.set(first + i, continuing[i].token, false);
    }
    for (std::size_t i = continuing.size(); i < before; ++i) next.set(first + i, pad_, true);
  }
  next.apply(state);
}

std::int64_t BeamSearch::choose_and_step(DecoderState& state, const Slots& slots, std::int64_t more) const {
  const auto ready = [&](const auto& slot) { return !slot || (!slot->done && slot->length < state.target()); };
  for (std::int64_t steps = 1;; ++steps) {
    choose(state, slots, {}, true);
    if (steps > more || !std::all_of(slots.begin(), slots.end(), ready)) return steps;
    state.step(1);
    state.read();
  }
}

// Return the best continuations of a slot, sorted by descending total, then by hypothesis.
std::vector<Candidate> BeamSearch::candidates(const BeamSlot& slot, const Scored* best) const {
  std::vector<Candidate> all;
  for (std::size_t parent = 0; parent < slot.running.size(); ++parent) {
    for (std::size_t i = 0; i < best[parent].ids.size(); ++i) {
      const double score = best[parent].scores[i];
      const double total = slot.running[parent].total + score;
      if (total > kBanned) all.push_back({total, parent, best[parent].ids[i], score});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.total > b.total; });
  if (all.size() > max_candidates_) all.resize(max_candidates_);
  return all;
}

// Return the best tokens of each row; none for free rows and rows with an unfinished prefix.
std::vector<BeamSearch::Scored> BeamSearch::score_rows(DecoderState& state, const Slots& slots) const {
  std::vector<Scored> best(state.rows());
  const auto begun = [](const auto& slot) { return slot && beam_slot(slot)->begun(); };
  const auto reads_logits = [this](const Slot& slot) { return slot.ruled && !recomputes_logits_; };
  const bool reads_top = std::any_of(slots.begin(), slots.end(), [&](const auto& slot) {
    return begun(slot) && !reads_logits(*slot) && !forced_token(*slot);
  });
  const Top tops = reads_top ? state.top(top()) : Top{};
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (!begun(slots[index])) continue;
    const BeamSlot& slot = *beam_slot(slots[index]);
    const auto forced = forced_token(slot);
    for (std::size_t i = 0; i < slot.running.size(); ++i) {
      const std::size_t row = index * rows_per_sentence() + i;
      if (forced) {
        best[row] = {{*forced}, {0}};
        continue;
      }
      if (reads_logits(slot)) {
        best[row] = with_rules(state.logits(row), slot.running[i].ids, slot.request);
        continue;
      }
      for (std::size_t at = row * top(); at < (row + 1) * top(); ++at) {
        best[row].ids.push_back(tops.token_ids[at]);
        best[row].scores.push_back(static_cast<double>(tops.logits[at]) - tops.normaliser[row]);
      }
      if (slot.ruled) {
        best[row] = with_rules(state, row, tops.normaliser[row], best[row], slot.running[i].ids, slot.request);
      }
    }
  }
  return best;
}

// Apply the rules to the best tokens of a row. Rules change few scores, so only the logits of those tokens are read in
// addition. If too few of the best tokens, or too little probability mass, remain unchanged, all logits are read.
BeamSearch::Scored BeamSearch::with_rules(DecoderState& state, std::size_t row, double normaliser, const Scored& best,
                                          const Ids& generated, const Request& request) const {
  const Ids changed = constraints_.affected_ids(generated, request);
  if (changed.empty()) return best;
  std::vector<double> scores;
  for (const float logit : state.some_logits(row, changed)) scores.push_back(static_cast<double>(logit) - normaliser);
  double mass = 1 - sum_of_exp(scores);
  constraints_.change(changed, scores, generated, request);
  mass += sum_of_exp(scores);
  // Pairs of negative score and id: sorting them gives descending scores, then ascending ids.
  std::vector<std::pair<double, std::int64_t>> order;
  for (std::size_t i = 0; i < best.ids.size(); ++i) {
    const bool unchanged = !std::binary_search(changed.begin(), changed.end(), best.ids[i]);
    if (unchanged && best.scores[i] > kBanned) order.emplace_back(-best.scores[i], best.ids[i]);
  }
  const bool enough = order.size() >= rows_per_sentence() + constraints_.ends() && (!renormalize_ || mass >= kMinMass);
  if (!enough) return with_rules(state.logits(row), generated, request);
  for (std::size_t i = 0; i < changed.size(); ++i) {
    if (scores[i] > kBanned) order.emplace_back(-scores[i], changed[i]);
  }
  std::sort(order.begin(), order.end());
  const double normaliser_of_rules = renormalize_ ? std::log(mass) : 0;
  Scored next;
  for (const auto& [negative, id] : order) {
    next.ids.push_back(id);
    next.scores.push_back(-negative - normaliser_of_rules);
  }
  return next;
}

BeamSearch::Scored BeamSearch::with_rules(const std::vector<float>& logits, const Ids& generated,
                                          const Request& request) const {
  std::vector<double> scores(logits.begin(), logits.end());
  log_softmax(scores);
  constraints_.apply(scores, generated, request);
  if (renormalize_) log_softmax(scores);
  Scored best{best_ids(scores, top()), {}};
  for (const std::int64_t id : best.ids) best.scores.push_back(scores[static_cast<std::size_t>(id)]);
  return best;
}

}  // namespace txport::core
