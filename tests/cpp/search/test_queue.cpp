// A queue whose requests join the batch that runs: answers, order, cancellation, deadlines, bounds and faults; see
// tests/runtime/search/test_queue.py.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <limits>
#include <set>
#include <thread>

#include "errors.hpp"
#include "memory_engine.hpp"
#include "search/decoding.hpp"
#include "search/gate.hpp"
#include "search/greedy_oracle.hpp"
#include "search/queue.hpp"

using namespace txport::core;
using memory::check_result;
using memory::Draw;
using memory::Gate;
using memory::kNeverEnds;
using memory::MemoryEngine;
using memory::sources;

namespace {

const Limits kLimits{4, 12, 100};

// An answer to come.
struct Asked {
  Request request;
  std::future<Result> result;
  std::shared_ptr<Ticket> ticket;
};

Asked ask(Queue& queue, const Request& request, std::optional<double> seconds = std::nullopt,
          std::function<void(const Token&)> take = nullptr) {
  const auto promise = std::make_shared<std::promise<Result>>();
  Listener<Result, Token> listener;
  listener.answer = [promise](Result result) { promise->set_value(std::move(result)); };
  listener.failure = [promise](const std::exception_ptr& error) { promise->set_exception(error); };
  listener.part = std::move(take);
  return {request, promise->get_future(), queue.submit(request, std::move(listener), seconds)};
}

std::vector<Asked> ask_all(Queue& queue, const std::vector<Request>& requests) {
  std::vector<Asked> asked;
  for (const Request& request : requests) asked.push_back(ask(queue, request));
  return asked;
}

void wait(const Queue& queue, const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::yield();
  CHECK(queue.unanswered() == 0);
}

Request searched(Request request, const Search& search) {
  request.search = search;
  return request;
}

std::vector<Search> searches() {
  Search beams;
  beams.beam = 2;
  beams.n_best = 2;
  Search ruled;
  ruled.rules.no_repeat_ngram = 2;
  Search sampled;
  sampled.sampling = Sampling{1, 0, 1, 0, 4};
  Search alternatives;
  alternatives.alternatives = 3;
  return {{}, beams, ruled, sampled, alternatives};
}

}  // namespace

TEST_CASE("queue: answers are those of a call") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const auto eos_weight = draw.one_of<float>({-3, 0, 1});
    const MemoryEngine engine(kLimits, draw.one_of<std::int64_t>({1, 4}), eos_weight);
    Queue queue(engine, {});
    std::vector<std::vector<Request>> requests(static_cast<std::size_t>(draw.one_of<std::int64_t>({1, 3})));
    for (auto& part : requests) {
      for (std::int64_t i = draw.number(0, 12); i > 0; --i) part.push_back(draw.request(true));
    }
    std::vector<std::future<std::vector<Asked>>> threads;
    for (const auto& part : requests) {
      threads.push_back(std::async(std::launch::async, [&] { return ask_all(queue, part); }));
    }
    for (auto& thread : threads) {
      for (Asked& asked : thread.get()) check_result(asked.result.get(), asked.request, kLimits, eos_weight);
    }
    queue.close(true);
  }
}

TEST_CASE("queue: searches of several kinds run side by side") {
  const Limits limits{8, 12, 100};
  const MemoryEngine engine(limits, 4, 0);
  Queue queue(engine, {});
  std::vector<Asked> asked;
  std::uint64_t number = 0;
  for (int round = 0; round < 6; ++round) {
    for (const Search& search : searches()) {
      Request request = searched(sources({12, 5, 7, 3}, 40)[number % 4], search);
      request.key = number++;
      request.scores = true;
      asked.push_back(ask(queue, request));
    }
  }
  std::set<std::size_t> counts;
  for (Asked& each : asked) {
    const MemoryEngine other(limits, 1, 0);
    const auto expected = decode_all(other, {each.request}, {}).front().hypotheses;
    const auto found = each.result.get().hypotheses;
    REQUIRE(found.size() == expected.size());
    counts.insert(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].ids == expected[i].ids);
      CHECK(found[i].scores == expected[i].scores);
      CHECK(found[i].score == expected[i].score);
    }
  }
  CHECK(counts == std::set<std::size_t>{1, 2, 3});
}

TEST_CASE("queue: a request joins the batch that runs") {
  Gate engine;
  Queue queue(engine, {});
  std::vector<Asked> asked = ask_all(queue, sources({12}, 40));
  engine.arrived.get_future().wait();
  for (Asked& each : ask_all(queue, sources({5, 7, 3, 9, 4}, 40))) asked.push_back(std::move(each));
  engine.open.set_value();
  for (Asked& each : asked) check_result(each.result.get(), each.request, kLimits, kNeverEnds);
  CHECK(*std::max_element(engine.steps.begin(), engine.steps.end()) == 4);
  CHECK(engine.encoded.front() == 1);
  CHECK(engine.steps.size() < 3 * 40);  // not one after the other
}

TEST_CASE("queue: long and short requests are fair to each other") {
  // Who came first is taken first, whatever its length; short ones do not wait for a long one to end.
  const auto order = [](std::int64_t rows, const std::vector<std::int64_t>& limits) {
    Gate engine(rows);
    Queue queue(engine, {});
    std::vector<std::size_t> ended;  // by the thread that decodes
    std::vector<std::future<Result>> results;
    for (const std::int64_t limit : limits) {
      const auto promise = std::make_shared<std::promise<Result>>();
      Listener<Result, Token> listener;
      listener.answer = [&ended, promise, number = results.size()](Result result) {
        ended.push_back(number);
        promise->set_value(std::move(result));
      };
      results.push_back(promise->get_future());
      queue.submit(sources({8}, limit).front(), std::move(listener));
    }
    engine.open.set_value();
    for (auto& result : results) result.wait();
    queue.close(true);
    return ended;
  };
  CHECK(order(1, {3, 90, 3, 50, 3, 90, 3}) == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6});
  std::vector<std::int64_t> limits(21, 3);
  limits[0] = 90;
  CHECK(order(2, limits).back() == 0);
}

TEST_CASE("queue: a request takes a row that is free while the device goes on with the others") {
  for (const std::size_t rows : {std::size_t{1}, std::size_t{4}}) {
    CAPTURE(rows);
    const MemoryEngine engine(kLimits, 4, kNeverEnds);
    Queue queue(engine, {});
    std::optional<Asked> late;
    std::size_t submitted = 0;
    std::size_t answered = 0;
    std::vector<Request> requests = sources(std::vector<std::size_t>(rows, 5), 90);
    if (rows > 1) requests.back().max_length = 12;
    std::vector<Asked> asked;
    const auto of_late = [&](const Token& token) { answered = token.last ? engine.steps.size() : 0; };
    std::size_t tokens = 0;
    asked.push_back(ask(queue, requests.front(), std::nullopt, [&](const Token&) {
      if (++tokens != 40) return;
      submitted = engine.steps.size();
      late = ask(queue, sources({4}, 8).front(), std::nullopt, of_late);
    }));
    for (std::size_t i = 1; i < rows; ++i) asked.push_back(ask(queue, requests[i]));
    for (Asked& each : asked) check_result(each.result.get(), each.request, kLimits, kNeverEnds);
    REQUIRE(late);
    check_result(late->result.get(), late->request, kLimits, kNeverEnds);
    CHECK(engine.ahead.size() > 2);
    CHECK(answered - submitted <= 8 + 2 * 4);  // after the two groups that may be under way
  }
}

TEST_CASE("queue: a longer sentence joins the batch of an engine that computes no padding") {
  class Ragged : public MemoryEngine {
   public:
    using MemoryEngine::MemoryEngine;
    bool ragged() const override { return true; }
  };
  const auto most_rows = [](const MemoryEngine& engine) {
    Queue queue(engine, {});
    std::optional<Asked> second;
    Asked first = ask(queue, sources({5}, 90).front(), std::nullopt, [&](const Token&) {
      if (!second) second = ask(queue, sources({12}, 8).front());
    });
    check_result(first.result.get(), first.request, kLimits, kNeverEnds);
    check_result(second->result.get(), second->request, kLimits, kNeverEnds);
    return *std::max_element(engine.steps.begin(), engine.steps.end());
  };
  CHECK(most_rows(Ragged(kLimits, 1, kNeverEnds)) == 2);
  CHECK(most_rows(MemoryEngine(kLimits, 1, kNeverEnds)) == 1);
}

TEST_CASE("queue: tokens come as they are made") {
  const MemoryEngine engine(kLimits, 4, 0);
  Queue queue(engine, {});
  Request request = sources({5}, 30).front();
  request.scores = true;
  std::vector<Token> tokens;
  Asked asked = ask(queue, request, std::nullopt, [&](const Token& token) { tokens.push_back(token); });
  const Result result = asked.result.get();
  check_result(result, request, kLimits, 0);
  REQUIRE(tokens.size() == result.ids().size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    CHECK(tokens[i].id == result.ids()[i]);
    CHECK(tokens[i].score == (*result.scores())[i]);
    CHECK(tokens[i].last == (i + 1 == tokens.size()));
  }
}

TEST_CASE("queue: what is cancelled gives its row to others") {
  for (const Search& search : searches()) {
    Gate engine(4, 4);
    SearchOptions one;
    one.rows = 1;
    Queue queue(engine, one);
    const std::vector<Request> requests = sources({12, 6, 3}, 40);
    Asked running = ask(queue, searched(requests[0], search));
    Asked waits = ask(queue, searched(requests[1], search));
    Asked last = ask(queue, searched(requests[2], search));
    engine.arrived.get_future().wait();
    waits.ticket->cancel();
    running.ticket->cancel();
    engine.open.set_value();
    CHECK(last.result.get().ids().size() == 40);
    CHECK_THROWS_AS(running.result.get(), Cancelled);
    CHECK_THROWS_AS(waits.result.get(), Cancelled);
    last.ticket->cancel();  // which is too late
    queue.close(true);
    CHECK(queue.unanswered() == 0);
    CHECK(engine.steps.size() < 2 * 40);  // the first was not decoded to its end
  }
}

TEST_CASE("queue: a request that is cancelled while its device goes on is not decoded to its end") {
  const MemoryEngine engine(kLimits, 4, kNeverEnds);
  Queue queue(engine, {});
  std::promise<Ticket*> ready;
  const auto ticket = ready.get_future().share();
  Asked asked = ask(queue, sources({5}, 100).front(), std::nullopt, [&](const Token&) {
    if (engine.ahead.size() == 3) ticket.get()->cancel();
  });
  ready.set_value(asked.ticket.get());
  CHECK_THROWS_AS(asked.result.get(), Cancelled);
  queue.close(true);
  CHECK(engine.steps.size() < 30);
}

TEST_CASE("queue: a request is late at its deadline") {
  Gate engine;
  Queue queue(engine, {});
  Asked late = ask(queue, sources({12}, 40).front(), 0.01);
  Asked other = ask(queue, sources({5}, 40).front(), 60);
  engine.arrived.get_future().wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  engine.open.set_value();
  CHECK_THROWS_WITH_AS(late.result.get(), "the request was not finished at its deadline", DeadlineExceeded);
  CHECK(other.result.get().ids().size() == 40);
  CHECK_THROWS_AS(ask(queue, sources({5}, 40).front(), -1).result.get(), DeadlineExceeded);
  for (const double never : {1e300, std::nan("")}) {
    CHECK(ask(queue, sources({5}, 40).front(), never).result.get().ids().size() == 40);
  }
}

TEST_CASE("queue: no more may wait than its bound") {
  Gate engine;
  Queue queue(engine, {}, 2);
  std::vector<Asked> asked = ask_all(queue, sources({5, 6}, 40));
  const Request third = sources({7}, 40).front();
  CHECK_THROWS_WITH_AS(ask(queue, third), "2 requests are unanswered, which is the maximum: try again later",
                       ResourceError);
  engine.open.set_value();
  for (Asked& each : asked) each.result.wait();
  CHECK(ask(queue, third).result.get().ids().size() == 40);
}

TEST_CASE("queue: what cannot be answered is refused at once") {
  const MemoryEngine engine(kLimits, 1, 0);
  Queue queue(engine, {});
  CHECK_THROWS_AS(ask(queue, sources({13}, 40).front()), InputError);
  Search wide;
  wide.beam = 5;
  CHECK_THROWS_AS(ask(queue, searched(sources({5}, 40).front(), wide)), InputError);
  CHECK(queue.unanswered() == 0);
  CHECK(queue.searches() == 0);
}

TEST_CASE("queue: a batch that fails takes no other with it") {
  class Failing : public MemoryEngine {
   public:
    Failing() : MemoryEngine({1, 12, 100}, 1, 0) {}
    std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
      if (input_ids.front() == 5) throw EngineError("as planned");
      return MemoryEngine::encode(input_ids, source_lengths);
    }
  };
  const Failing engine;
  Queue queue(engine, {});
  std::vector<Asked> asked = ask_all(queue, sources({2, 2, 2}, 20));
  check_result(asked[0].result.get(), asked[0].request, engine.limits(), 0);
  CHECK_THROWS_WITH_AS(asked[1].result.get(), "as planned", EngineError);
  check_result(asked[2].result.get(), asked[2].request, engine.limits(), 0);
}

TEST_CASE("queue: a batch for which there is no memory fails those that it would have begun with") {
  class Full : public MemoryEngine {
   public:
    Full() : MemoryEngine({2, 12, 100}, 1, kNeverEnds) {}
    mutable std::atomic<int> left{0};
    std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                           const Outputs& outputs) const override {
      if (left-- <= 0) throw std::bad_alloc();
      return MemoryEngine::allocate(rows, source, target, outputs);
    }
  };
  const Full engine;
  Queue queue(engine, {});
  for (Asked& each : ask_all(queue, sources({5, 6, 7, 8, 9}, 40))) CHECK_THROWS_AS(each.result.get(), std::bad_alloc);
  engine.left = 1;
  CHECK(ask(queue, sources({5}, 40).front()).result.get().ids().size() == 40);
}

TEST_CASE("queue: closing answers what is here and refuses more") {
  const MemoryEngine engine(kLimits, 1, kNeverEnds);
  Queue queue(engine, {});
  std::vector<Asked> asked = ask_all(queue, sources(std::vector<std::size_t>(9, 5), 40));
  queue.close(true);
  for (Asked& each : asked) {
    REQUIRE(each.result.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
    CHECK(each.result.get().ids().size() == 40);
  }
  CHECK_THROWS_WITH_AS(ask(queue, asked[0].request), "the queue was closed: open the bundle again", InputError);
  queue.close(true);
  Queue unused(engine, {});
  unused.close(true);
}

TEST_CASE("queue: closing without draining cancels") {
  Gate engine(1);
  std::vector<Asked> asked;
  {
    // No bound: who submits until the queue is closed must not be refused for another reason, however late that is.
    Queue queue(engine, {}, std::numeric_limits<std::size_t>::max());
    asked = ask_all(queue, sources(std::vector<std::size_t>(4, 5), 40));
    engine.arrived.get_future().wait();
    auto closing = std::async(std::launch::async, [&] { queue.close(false); });
    const auto is_closed = [&] {
      try {
        asked.push_back(ask(queue, sources({5}, 40).front()));
      } catch (const InputError&) {
        return true;
      }
      return false;
    };
    while (!is_closed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    engine.open.set_value();
    closing.get();
  }
  for (Asked& each : asked) CHECK_THROWS_AS(each.result.get(), Cancelled);
  CHECK(engine.steps.size() < 40);
}

TEST_CASE("queue: a listener's fault is its own") {
  const MemoryEngine engine(kLimits, 4, kNeverEnds);
  Queue queue(engine, {});
  const std::vector<Request> requests = sources({5, 6}, 40);
  Asked bad = ask(queue, requests[0], std::nullopt, [](const Token&) { throw std::domain_error("a caller's fault"); });
  Asked good = ask(queue, requests[1]);
  CHECK_THROWS_WITH_AS(bad.result.get(), "a caller's fault", std::domain_error);
  check_result(good.result.get(), requests[1], kLimits, kNeverEnds);
  std::promise<std::string> told;
  Listener<Result, Token> listener;
  listener.answer = [](const Result&) { throw std::domain_error("another"); };
  listener.failure = [&told](const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::domain_error& fault) {
      told.set_value(fault.what());
    }
  };
  queue.submit(requests[0], listener);
  CHECK(told.get_future().get() == "another");
}

TEST_CASE("queue: a listener submits, cancels and closes") {
  const MemoryEngine engine(kLimits, 1, kNeverEnds);
  Queue queue(engine, {});
  const Request request = sources({5}, 40).front();
  std::promise<Asked> next;
  Asked first = ask(queue, request, std::nullopt, [&](const Token& token) {
    if (!token.last) return;
    CHECK(queue.is_own_thread());
    next.set_value(ask(queue, request));
    queue.close(true);
  });
  CHECK(first.result.get().ids().size() == 40);
  CHECK(next.get_future().get().result.get().ids().size() == 40);
  CHECK_FALSE(queue.is_own_thread());
  CHECK_THROWS_AS(ask(queue, request), InputError);
}

TEST_CASE("queue: nothing is kept of many requests") {
  Draw draw(3);
  const MemoryEngine engine(kLimits, 4, 0);
  Queue queue(engine, {}, 64);
  for (int round = 0; round < 15; ++round) {
    std::vector<Asked> asked;
    for (const Request& request : sources(std::vector<std::size_t>(20, 7), 40)) {
      Search search;
      search.sampling = Sampling{1, 0, 1, 0, static_cast<std::uint64_t>(round)};
      asked.push_back(ask(queue, draw.number(0, 1) == 1 ? searched(request, search) : request));
      if (draw.number(0, 4) == 0) asked.back().ticket->cancel();
    }
    for (Asked& each : asked) each.result.wait();
    for (const Asked& each : asked) CHECK(each.ticket.use_count() <= 2);  // the queue may still put the last one away
  }
  wait(queue, [&] { return queue.searches() == 0; });  // the last answer comes before its batch has ended
}

TEST_CASE("queue: a forked process has a thread of its own") {
  for (const bool busy : {false, true}) {
    CAPTURE(busy);
    Gate engine;
    Queue queue(engine, {});
    const Request request = sources({7}, 40).front();
    if (!busy) engine.open.set_value();
    Asked first = ask(queue, request);
    if (!busy) first.result.wait();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);
      if (busy) engine.open.set_value();
      bool late = false;
      try {
        ask(queue, request, 0.0).result.get();
      } catch (const DeadlineExceeded&) {
        late = true;
      }
      const bool answered = !ask(queue, request).result.get().hypotheses.empty();
      queue.close(true);
      bool closed = false;
      try {
        ask(queue, request);
      } catch (const InputError&) {
        closed = true;
      }
      ::_exit(late && answered && closed ? 0 : 1);
    }
    if (busy) engine.open.set_value();
    CHECK(!first.result.get().hypotheses.empty());
    int status = 1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
}

TEST_CASE("queue: a closed one stays closed in a forked process, and can be destroyed there") {
  MemoryEngine engine(kLimits, 1, kNeverEnds);
  auto queue = std::make_unique<Queue>(engine, SearchOptions{});
  auto other = std::make_unique<Queue>(engine, SearchOptions{});
  const Request request = sources({7}, 40).front();
  ask(*queue, request).result.wait();
  ask(*other, request).result.wait();
  queue->close(true);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    bool closed = false;
    try {
      ask(*queue, request);
    } catch (const InputError&) {
      closed = true;
    }
    other.reset();
    ::_exit(closed ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}
