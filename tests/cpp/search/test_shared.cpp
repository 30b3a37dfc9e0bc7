// Calls of many threads that share a batch: answers, who decodes, faults and forks; see
// tests/runtime/search/test_shared.py.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>

#include "errors.hpp"
#include "memory_engine.hpp"
#include "search/decoding.hpp"
#include "search/gate.hpp"
#include "search/greedy_oracle.hpp"
#include "search/shared.hpp"

using namespace txport::core;
using memory::check_result;
using memory::Draw;
using memory::Gate;
using memory::kNeverEnds;
using memory::MemoryEngine;
using memory::sources;

namespace {

const Limits kLimits{8, 12, 100};
constexpr std::int64_t kFails = 12;  // a source of so many tokens

// An engine over which calls share batches.
class Ragged : public Gate {
 public:
  explicit Ragged(bool ragged = true) : Gate(kLimits.batch), ragged_(ragged) {}

  bool ragged() const override { return ragged_; }
  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    auto memory = Gate::encode(input_ids, source_lengths);
    for (const std::int64_t length : source_lengths) {
      if (length == kFails) throw EngineError("the library failed");
    }
    return memory;
  }

 private:
  const bool ragged_;
};

using Calls = std::vector<std::vector<Request>>;
using Answers = std::vector<std::future<std::vector<Result>>>;

std::future<std::vector<Result>> begin(const SharedBatches& shared, const std::vector<Request>& requests) {
  return std::async(std::launch::async, [&shared, requests] { return shared.decode(requests); });
}

// Calls of which the first leads, and waits in the encoder, and the others have joined it.
Answers begin_all(const SharedBatches& shared, const Ragged& engine, const Calls& calls) {
  Answers answers;
  std::size_t count = 0;
  for (const auto& requests : calls) {
    answers.push_back(begin(shared, requests));
    count += requests.size();
    if (answers.size() == 1) engine.arrived.get_future().wait();
  }
  while (shared.unanswered() < count) std::this_thread::yield();
  return answers;
}

void check(const std::vector<Result>& results, const std::vector<Request>& requests) {
  REQUIRE(results.size() == requests.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    CHECK(results[i].index == i);
    check_result(results[i], requests[i], kLimits, kNeverEnds);
  }
}

std::size_t most_rows(const MemoryEngine& engine) {
  return *std::max_element(engine.steps.begin(), engine.steps.end());
}

}  // namespace

TEST_CASE("shared batches: answers are those of a call alone") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Ragged engine;
    engine.open.set_value();
    const SharedBatches shared(engine, {}, static_cast<std::size_t>(draw.number(1, 2)));
    Calls calls(static_cast<std::size_t>(draw.number(1, 8)));
    for (auto& requests : calls) {
      Search search;
      if (draw.number(0, 1) == 1) search.rules.suppress = {11};
      requests.resize(static_cast<std::size_t>(draw.number(0, 9)));
      for (Request& request : requests) {
        request = draw.request(true);
        if (request.source_ids.size() == kFails) request.source_ids.erase(request.source_ids.begin());
        request.search = search;
      }
    }
    Answers answers;
    for (const auto& requests : calls) answers.push_back(begin(shared, requests));
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto found = answers[i].get();
      const auto expected = decode_all(MemoryEngine(kLimits, 1, kNeverEnds), calls[i], {});
      REQUIRE(found.size() == expected.size());
      for (std::size_t k = 0; k < found.size(); ++k) {
        CHECK(found[k].index == k);
        CHECK(found[k].ids() == expected[k].ids());
        CHECK(found[k].scores() == expected[k].scores());
      }
    }
    CHECK(shared.unanswered() == 0);
  }
}

TEST_CASE("shared batches: calls join the batch that runs, and one goes on when the leader has its answers") {
  Ragged engine;
  const SharedBatches shared(engine, {});
  Calls calls{sources({5}, 2), sources({7, 3}, 40), sources({9}, 40)};
  Answers answers = begin_all(shared, engine, calls);
  engine.open.set_value();
  for (std::size_t i = 0; i < calls.size(); ++i) check(answers[i].get(), calls[i]);
  CHECK(most_rows(engine) == 4);
  CHECK(engine.steps.size() < 50);
}

TEST_CASE("shared batches: calls that decode alone") {
  Search other;
  other.rules.suppress = {11};
  struct Case {
    std::vector<Request> second;
    SearchOptions options;
    bool ragged = true;
  };
  std::vector<Request> of_other = sources({7}, 40);
  of_other.front().search = other;
  SearchOptions workers;
  workers.workers = 2;
  const std::vector<Case> cases{{sources({7, 7, 7, 7, 7, 7, 7, 7}, 40), {}},
                                {of_other, {}},
                                {sources({7}, 40), workers},
                                {sources({7}, 40), {}, false}};
  for (const Case& each : cases) {
    Ragged engine(each.ragged);
    const SharedBatches shared(engine, each.options);
    auto first = begin(shared, sources({5}, 40));
    auto second = begin(shared, each.second);
    engine.open.set_value();
    check(first.get(), sources({5}, 40));
    const auto expected = decode_all(MemoryEngine(kLimits, 1, kNeverEnds), each.second, {});
    const auto found = second.get();
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(found[i].ids() == expected[i].ids());
    CHECK(most_rows(engine) == each.second.size());
  }
}

TEST_CASE("shared batches: a failure is that of its own call") {
  Ragged engine;
  const SharedBatches shared(engine, {});
  const Calls calls{sources({5}, 40), sources({7}, 40), sources({kFails}, 40), sources({9, 3}, 40)};
  Answers answers = begin_all(shared, engine, calls);
  engine.open.set_value();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (i == 2) {
      CHECK_THROWS_WITH_AS(answers[i].get(), "the library failed", EngineError);
    } else {
      check(answers[i].get(), calls[i]);
    }
  }
  CHECK(shared.unanswered() == 0);
  CHECK_THROWS_AS(shared.decode(sources({5, 13}, 40)), InputError);
  CHECK(shared.unanswered() == 0);
}

TEST_CASE("shared batches: a forked process waits for no thread of its parent") {
  Ragged engine;
  const SharedBatches shared(engine, {});
  Answers answers = begin_all(shared, engine, {sources({5}, 40)});
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    engine.open.set_value();
    ::_exit(shared.decode(sources({7}, 40)).size() == 1 ? 0 : 1);
  }
  engine.open.set_value();
  check(answers.front().get(), sources({5}, 40));
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}
