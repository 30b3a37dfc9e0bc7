#include "search/decoding.hpp"

#include <algorithm>
#include <deque>
#include <future>
#include <numeric>
#include <utility>

#include "errors.hpp"
#include "search/beam.hpp"
#include "search/forks.hpp"
#include "search/greedy.hpp"

namespace txport::core {

namespace {

bool is_greedy(const Search& search) { return search.beam == 1 && !search.sampling && search.alternatives == 0; }

}  // namespace

std::unique_ptr<const Policy> policy_of(const Engine& engine, const Search& search) {
  if (search.shortlist && !engine.restricts())
    throw InputError("a shortlist needs the fused engine, and " + engine.name() + " runs this bundle: leave it out");
  if (search.beam > 1)
    return std::make_unique<BeamSearch>(engine.tokens(), search, engine.vocabulary(), engine.recomputes_logits());
  if (!is_greedy(search)) return std::make_unique<Forks>(engine.tokens(), search, engine.recomputes_logits());
  return std::make_unique<Greedy>(engine.tokens(), search, engine.recomputes_logits());
}

// The composition of a batch may change the last digits of a score. Therefore each worker has its own queue: with a
// common queue, batches would depend on the speed of the workers.
std::vector<Result> decode_all(const Engine& engine, std::vector<Request> requests, const SearchOptions& options) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t first, std::size_t second) {
    return requests[first].source_length() > requests[second].source_length();
  });
  const auto max_workers = static_cast<std::size_t>(std::max<std::int64_t>(options.workers, 1));
  const std::size_t workers = std::max<std::size_t>(1, std::min(max_workers, requests.size()));
  const auto parts = static_cast<std::int64_t>(workers);
  SearchOptions each;
  each.rows = std::max<std::int64_t>(1, options.rows.value_or(engine.limits().batch) / parts);
  each.batch_tokens = options.batch_tokens / parts;
  const auto policy = policy_of(engine, requests.empty() ? Search{} : requests.front().search);
  std::deque<Scheduler> schedulers;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    std::vector<Request> share;
    for (std::size_t i = worker; i < order.size(); i += workers) share.push_back(std::move(requests[order[i]]));
    schedulers.emplace_back(engine, *policy, each).submit(std::move(share));
  }
  std::vector<Result> results(order.size());
  const auto answer = [&](std::size_t worker) {
    try {
      schedulers[worker].drain([&](Result result) {
        result.index = order[worker + workers * result.index];
        results[result.index] = std::move(result);
      });
    } catch (...) {
      for (Scheduler& scheduler : schedulers) scheduler.stop();  // results of the other threads are not needed
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
  std::unique_ptr<const Policy> policy;
  Scheduler scheduler;
  Worker worker;

  Work(const Engine& engine, const Search& search)
      : policy(policy_of(engine, search)), scheduler(engine, *policy, {1}, 1), worker(scheduler) {}
};

void check_streams(const Search& search) {
  if (!is_greedy(search)) throw InputError("a stream is greedy: beams, samples and alternatives need `translate`");
}

TokenStream::TokenStream(const Engine& engine, Request request) {
  check_streams(request.search);
  work_ = std::make_unique<Work>(engine, request.search);
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  work_->scheduler.submit(std::move(requests));
}

TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&& other) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&& other) noexcept = default;

std::optional<Token> TokenStream::next() {
  if (ended_) return std::nullopt;
  // A step of one row generates one token.
  const Slots working = work_->worker.step();
  if (working.empty()) return std::nullopt;
  const Slot& slot = *working.front();
  ended_ = slot.done;
  return Token{slot.ids.back(), slot.request.scores ? std::optional(slot.scores.back()) : std::nullopt, slot.done};
}

}  // namespace txport::core
