// Batches that are fed, grow, shrink and drain, over an engine that records and checks how it is used.

#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <thread>

#include "memory_engine.hpp"
#include "search/decoding.hpp"
#include "search/greedy.hpp"
#include "search/greedy_oracle.hpp"

using namespace txport::core;
using memory::check_result;
using memory::Draw;
using memory::MemoryEngine;
using memory::sources;

namespace {

// Part of a call: requests that are submitted after so many more groups of steps, or when all is answered.
struct Part {
  std::vector<Request> requests;
  std::int64_t pause = 0;
};

// Submit the parts on the way, and check each answer.
void check_fed(const MemoryEngine& engine, const std::vector<Part>& parts, const SearchOptions& options = {}) {
  const Greedy greedy(engine.tokens());
  Scheduler scheduler(engine, greedy, options);
  Worker worker(scheduler);
  std::vector<Request> requests;
  std::size_t answers = 0;
  std::size_t next = 0;
  const auto submit = [&] {
    const std::vector<Request>& part = parts[next++].requests;
    CHECK(scheduler.submit(part) == requests.size());
    requests.insert(requests.end(), part.begin(), part.end());
  };
  while (next < parts.size()) {
    submit();
    std::int64_t steps = 0;
    for (Slots working = worker.step(); !working.empty(); working = worker.step()) {
      for (const auto& slot : working) {
        if (!slot->done) continue;
        const Request request = slot->request;
        check_result(slot->result(), request, engine.limits(), engine.eos_weight);
        ++answers;
      }
      if (next < parts.size() && steps++ >= parts[next].pause) submit();
    }
  }
  CHECK(answers == requests.size());
}

}  // namespace

TEST_CASE("a batch that is fed gives what each sentence gives alone") {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const MemoryEngine engine({draw.one_of<std::int64_t>({1, 2, 4, 8}), 12, 100}, draw.one_of<std::int64_t>({1, 3, 8}),
                              draw.one_of<float>({-3, 0, 1}));
    std::vector<Part> parts(static_cast<std::size_t>(draw.number(0, 4)));
    for (Part& part : parts) {
      for (std::int64_t i = draw.number(0, 5); i > 0; --i) part.requests.push_back(draw.request(seed % 3 != 0));
      part.pause = draw.number(0, 30);
    }
    SearchOptions options;
    options.batch_tokens = draw.one_of<std::int64_t>({20, 4096});
    check_fed(engine, parts, options);
  }
}

TEST_CASE("other threads feed batches while they run") {
  const MemoryEngine engine({4, 12, 100}, 1, -99);
  const Greedy greedy(engine.tokens());
  SearchOptions options;
  options.workers = 2;
  Scheduler scheduler(engine, greedy, options);
  const std::vector<Request> requests = sources(std::vector<std::size_t>(40, 12), 9);
  std::atomic<bool> complete{false};
  std::thread feeder([&] {
    for (const Request& request : requests) scheduler.submit({request});
    complete = true;
  });
  std::vector<Result> results(requests.size());
  const auto answer = [&] {
    bool last = false;
    while (!last) {
      last = complete;
      scheduler.drain([&](Result result) { results[result.index] = std::move(result); });
    }
  };
  auto other = std::async(std::launch::async, answer);
  answer();
  other.get();
  feeder.join();
  for (std::size_t i = 0; i < requests.size(); ++i) check_result(results[i], requests[i], engine.limits(), -99);
}

TEST_CASE("a batch takes more rows when more sentences wait, and again after it has shrunk") {
  const MemoryEngine engine({8, 12, 100}, 1, -99);
  std::vector<Part> parts;
  for (const std::size_t count : std::vector<std::size_t>{1, 1, 1, 5})
    parts.push_back({sources(std::vector<std::size_t>(count, 12), 40), 3});
  check_fed(engine, parts);
  std::vector<std::size_t> sizes = engine.steps;
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  CHECK(sizes == std::vector<std::size_t>{1, 2, 4, 8});
  const MemoryEngine other({4, 12, 100}, 1, -99);
  std::vector<Request> first = sources({12, 12, 12, 12}, 5);
  first[0].max_length = 30;
  check_fed(other, {{first, 0}, {sources({11, 11, 11}, 5), 9}});
  sizes = other.steps;
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  CHECK(sizes == std::vector<std::size_t>{4, 1, 4, 1});
}

TEST_CASE("rows that finish are refilled") {
  const MemoryEngine engine({4, 12, 100}, 1, -99);
  std::vector<Request> requests = sources(std::vector<std::size_t>(16, 12), 40);
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].max_length = i % 4 == 0 ? 40 : 10;
  decode_all(engine, requests, {});
  // 4 x 40 + 12 x 10 tokens: 70 full steps if no row ever idled, 160 if each batch waited for its longest.
  CHECK(engine.steps.size() < 100);
  CHECK(engine.encoded == std::vector<std::size_t>{4, 4, 4, 4});
}

TEST_CASE("the batch shrinks when nothing waits") {
  const MemoryEngine engine({8, 12, 100}, 1, -99);
  std::vector<Request> requests = sources(std::vector<std::size_t>(8, 12), 40);
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].max_length = 5 * (static_cast<std::int64_t>(i) + 1);
  decode_all(engine, requests, {});
  CHECK(std::is_sorted(engine.steps.rbegin(), engine.steps.rend()));
  CHECK(engine.steps.front() == 8);
  CHECK(engine.steps.back() == 1);
  CHECK(engine.steps.size() == 40);
}

TEST_CASE("caches start short and double") {
  const MemoryEngine engine({1, 12, 100}, 1, -99);
  decode_all(engine, sources({2}, 100), {});
  CHECK(engine.targets == std::vector<std::int64_t>{32, 64, 100});
}

TEST_CASE("narrow sentences get a batch of their own when they fill it") {
  const MemoryEngine engine({4, 12, 100}, 1, -99);
  decode_all(engine, sources({12, 12, 12, 12, 4, 4, 4, 4}, 20), {});
  CHECK(engine.targets == std::vector<std::int64_t>{20, 20});
  const MemoryEngine other({4, 12, 100}, 1, -99);
  decode_all(other, sources({12, 12, 12, 12, 4, 4}, 20), {});
  CHECK(other.targets == std::vector<std::int64_t>{20, 20});
  CHECK(other.encoded == std::vector<std::size_t>{4, 2});
}

TEST_CASE("batch_tokens bound the rows, and nothing to do is nothing") {
  const MemoryEngine engine({8, 12, 100}, 1, -99);
  decode_all(engine, sources(std::vector<std::size_t>(8, 12), 5), {std::nullopt, 36});
  CHECK(engine.steps.front() == 3);
  CHECK(decode_all(engine, {}, {}).empty());
}

TEST_CASE("an answer that fills its cache may end before its neighbours") {
  const MemoryEngine engine({4, 12, 100}, 1, -99);
  std::vector<Request> requests = sources({10, 10, 10, 10, 9, 9, 9}, 60);
  for (std::size_t i = 1; i < 4; ++i) requests[i].max_length = 5;
  requests[0].prefix.assign(32, 6);
  requests[0].max_length = 32;
  const std::vector<Result> results = decode_all(engine, requests, {});
  for (std::size_t i = 0; i < requests.size(); ++i) CHECK(results[i].ids().size() == (i == 0 ? 32 : i < 4 ? 5 : 60));
}
