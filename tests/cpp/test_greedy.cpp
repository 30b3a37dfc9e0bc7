// The greedy loop against a brute-force oracle, over an engine that checks how it is used.

#include <doctest/doctest.h>

#include <random>

#include "errors.hpp"
#include "greedy.hpp"
#include "memory_engine.hpp"
#include "moved_rows.hpp"

using namespace txport::core;
using memory::kTokens;
using memory::MemoryEngine;

namespace {

struct Expected {
  Ids ids;
  std::vector<double> scores;
};

// One sentence alone, straight from the definition.
Expected oracle(const Request& request, const Limits& limits, float eos_weight) {
  const std::int64_t limit = std::min(request.max_length.value_or(limits.target), limits.target);
  Expected expected;
  while (static_cast<std::int64_t>(expected.ids.size()) < limit) {
    Ids fed{kTokens.bos};
    fed.insert(fed.end(), expected.ids.begin(), expected.ids.end());
    const std::vector<float> logits = memory::logits_after(request.source_ids, fed, eos_weight);
    const std::size_t made = expected.ids.size();
    std::vector<float> allowed = logits;
    if (static_cast<std::int64_t>(made) < request.min_length) allowed[static_cast<std::size_t>(kTokens.eos)] = -1e9F;
    const std::int64_t token = made < request.prefix.size() ? request.prefix[made] : memory::best(allowed);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    expected.scores.push_back(std::log(std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)])) / sum));
    expected.ids.push_back(token);
    if (token == kTokens.eos) break;
  }
  return expected;
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t number(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(values.size()) - 1))];
  }
  Ids ids(std::int64_t low, std::int64_t high, std::int64_t most) {
    Ids result(static_cast<std::size_t>(number(0, most)));
    for (std::int64_t& id : result) id = number(low, high);
    return result;
  }
  Request request(bool constrained) {
    Request request;
    request.source_ids = ids(4, 11, 11);
    request.source_ids.push_back(kTokens.eos);
    if (number(0, 1) == 1) request.max_length = number(1, 110);
    if (!constrained) return request;
    request.min_length = number(0, 1) == 1 ? number(0, 40) : 0;
    request.prefix = ids(3, 11, 5);
    return request;
  }

 private:
  std::mt19937_64 random_;
};

// Sources of these lengths that run to the maximum length, since nothing ends them earlier.
std::vector<Request> sources(const std::vector<std::size_t>& lengths, std::int64_t limit) {
  std::vector<Request> requests;
  for (const std::size_t length : lengths) {
    Request request;
    request.source_ids.assign(length, 4 + static_cast<std::int64_t>(requests.size()) % 8);
    request.source_ids.back() = kTokens.eos;
    request.max_length = limit;
    requests.push_back(request);
  }
  return requests;
}

}  // namespace

TEST_CASE("any batch gives what each sentence gives alone") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const MemoryEngine engine({draw.number(1, 4), 12, 100}, draw.one_of<std::int64_t>({1, 3, 8}),
                              draw.one_of<float>({-3, 0, 1}));
    std::vector<Request> requests;
    for (std::int64_t i = draw.number(0, 14); i > 0; --i) requests.push_back(draw.request(seed % 3 != 0));
    SearchOptions options;
    options.batch_tokens = draw.one_of<std::int64_t>({6, 20, 4096});
    options.scores = draw.number(0, 1) == 1;
    options.workers = draw.number(1, 3);
    const std::vector<Result> results = decode_all(engine, requests, options);
    REQUIRE(results.size() == requests.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Expected expected = oracle(requests[i], engine.limits(), engine.eos_weight);
      CHECK(results[i].index == i);
      CHECK(results[i].ids == expected.ids);
      REQUIRE(results[i].scores.has_value() == options.scores);
      for (std::size_t t = 0; options.scores && t < expected.scores.size(); ++t) {
        CHECK((*results[i].scores)[t] == doctest::Approx(expected.scores[t]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("a stream gives the same tokens") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const MemoryEngine engine({4, 12, 100}, 4, 0);
    const Request request = draw.request(true);
    const Expected expected = oracle(request, engine.limits(), 0);
    TokenStream stream(engine, request, true);
    for (std::size_t i = 0; i < expected.ids.size(); ++i) {
      const auto token = stream.next();
      REQUIRE(token.has_value());
      CHECK(token->id == expected.ids[i]);
      CHECK(*token->score == doctest::Approx(expected.scores[i]).epsilon(1e-5));
      CHECK(token->last == (i + 1 == expected.ids.size()));
    }
    CHECK_FALSE(stream.next().has_value());
  }
}

TEST_CASE("the device works on a group of steps while the host polls another") {
  for (const std::int64_t poll : {1, 2, 4, 8}) {
    const MemoryEngine engine({4, 12, 100}, poll, -99);
    decode_all(engine, sources({3, 3}, 32), {});  // as long as the first caches
    CHECK(engine.steps.size() == 32);             // the maximum length is known
    CHECK(engine.ahead.size() == (poll == 1 ? 0 : 32 / static_cast<std::size_t>(poll / 2) - 1));
    TokenStream stream(engine, sources({3}, 5)[0], false);
    engine.ahead.clear();
    while (stream.next()) continue;
    CHECK(engine.ahead.size() == (poll == 1 ? 0 : 4));
    // Of an end that is not known, fewer steps than poll are lost.
    for (std::size_t length = 1; length <= 12; ++length) {
      const MemoryEngine ending({4, 12, 100}, poll, 1);
      const std::size_t made = decode_all(ending, sources({length}, 100), {})[0].ids.size();
      CHECK(ending.steps.size() - made < static_cast<std::size_t>(poll));
    }
  }
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
  decode_all(engine, sources(std::vector<std::size_t>(8, 12), 5), {std::nullopt, 36, false});
  CHECK(engine.steps.front() == 3);
  CHECK(decode_all(engine, {}, {}).empty());
}

TEST_CASE("rows that repeat go on as if each were alone, in the engine of these tests too") {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    const MemoryEngine engine({8, 12, 100}, 1, 0);
    memory::check_moved_rows(engine, seed, 4, 11);
  }
}

TEST_CASE("bad requests") {
  const MemoryEngine engine({4, 12, 100}, 1, 0);
  const auto message = [&](const Request& request) {
    try {
      decode_all(engine, {request}, {});
    } catch (const InputError& error) {
      CHECK_THROWS_AS(TokenStream(engine, request, false), InputError);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  Request request;
  CHECK(message(request).find("0 tokens") != std::string::npos);
  request.source_ids.assign(13, 4);
  CHECK(message(request).find("13 tokens") != std::string::npos);
  request.source_ids = {4, 3};
  request.max_length = 0;
  CHECK(message(request).find("maximum length of 0") != std::string::npos);
}
