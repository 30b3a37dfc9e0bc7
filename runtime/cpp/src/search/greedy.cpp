#include "search/greedy.hpp"

#include <algorithm>
#include <deque>
#include <future>
#include <numeric>
#include <utility>

#include "search/constraints.hpp"

namespace txport::core {

// Who shares a batch may change the last digits of a score. So each worker has a queue of its own: with one for all,
// batches would depend on who is faster.
std::vector<Result> decode_all(const Engine& engine, std::vector<Request> requests, const SearchOptions& options) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t first, std::size_t second) {
    return requests[first].width() > requests[second].width();
  });
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(options.workers, 1));
  const std::size_t workers = std::max<std::size_t>(1, std::min(most, requests.size()));
  const auto parts = static_cast<std::int64_t>(workers);
  SearchOptions each;
  each.rows = std::max<std::int64_t>(1, options.rows.value_or(engine.limits().batch) / parts);
  each.batch_tokens = options.batch_tokens / parts;
  const Greedy greedy(engine.tokens());
  std::deque<Scheduler> schedulers;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    std::vector<Request> share;
    for (std::size_t i = worker; i < order.size(); i += workers) share.push_back(std::move(requests[order[i]]));
    schedulers.emplace_back(engine, greedy, each).submit(std::move(share));
  }
  std::vector<Result> results(order.size());
  const auto answer = [&](std::size_t worker) {
    try {
      schedulers[worker].drain([&](Result result) {
        result.index = order[worker + workers * result.index];
        results[result.index] = std::move(result);
      });
    } catch (...) {
      for (Scheduler& scheduler : schedulers) scheduler.stop();  // nobody will take what the others would make
      throw;
    }
  };
  std::vector<std::future<void>> others;
  for (std::size_t worker = 1; worker < workers; ++worker) {
    others.push_back(std::async(std::launch::async, answer, worker));
  }
  answer(0);
  for (auto& other : others) other.get();
  return results;
}

struct TokenStream::Work {
  Greedy greedy;
  Scheduler scheduler;
  Worker worker;

  explicit Work(const Engine& engine) : greedy(engine.tokens()), scheduler(engine, greedy, {1}, 1), worker(scheduler) {}
};

TokenStream::TokenStream(const Engine& engine, Request request) : work_(std::make_unique<Work>(engine)) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  work_->scheduler.submit(std::move(requests));
}

TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&& other) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&& other) noexcept = default;

std::optional<Token> TokenStream::next() {
  if (ended_) return std::nullopt;
  // A step of one row makes one token; there is none if the maximum length leaves no room for any.
  const Slots working = work_->worker.step();
  if (working.empty()) return std::nullopt;
  const Slot& slot = *working.front();
  ended_ = slot.done;
  return Token{slot.ids.back(), slot.request.scores ? std::optional(slot.scores.back()) : std::nullopt, slot.done};
}

bool Greedy::needs_logits(const Request& request) const { return request.scores || may_forbid(request); }

bool Greedy::stepwise(const Slots& slots) const {
  return std::any_of(slots.begin(), slots.end(),
                     [](const auto& slot) { return slot->request.scores || has_constraint(*slot); });
}

void Greedy::choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool stepwise) const {
  if (stepwise) {
    choose_one(state, slots, token_ids);
    return;
  }
  for (std::size_t row = 0; row < slots.size(); ++row) {
    if (!slots[row]) continue;
    Slot& slot = *slots[row];
    for (std::size_t i = row; i < token_ids.size() && !slot.done; i += slots.size()) {
      slot.add(token_ids[i], tokens_.eos);
    }
  }
}

// One token for each row, with its score.
void Greedy::choose_one(DecoderState& state, const Slots& slots, const Ids& token_ids) const {
  std::vector<std::size_t> rows;
  Ids tokens;
  std::vector<bool> finished;
  for (std::size_t row = 0; row < slots.size(); ++row) {
    if (!slots[row]) continue;
    Slot& slot = *slots[row];
    std::int64_t token = token_ids[row];
    if (const auto forced = forced_token(slot)) {
      token = *forced;
    } else {
      const Ids forbidden = forbidden_tokens(slot, tokens_);
      if (std::find(forbidden.begin(), forbidden.end(), token) != forbidden.end()) {
        token = best_but(state.logits(row), forbidden);
      }
    }
    slot.add(token, tokens_.eos);
    if (token != token_ids[row]) {
      rows.push_back(row);
      tokens.push_back(token);
      finished.push_back(slot.done);
    }
    if (slot.request.scores) slot.scores.push_back(state.log_probability(row, token));
  }
  if (!rows.empty()) state.override_tokens(rows, tokens, finished);
}

}  // namespace txport::core
