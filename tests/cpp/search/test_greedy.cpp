// Greedy search against a brute-force oracle, over an engine that checks how it is used.

#include <doctest/doctest.h>

#include "errors.hpp"
#include "memory_engine.hpp"
#include "moved_rows.hpp"
#include "search/decoding.hpp"
#include "search/greedy_oracle.hpp"

using namespace txport::core;
using memory::check_result;
using memory::Draw;
using memory::Expected;
using memory::kTokens;
using memory::MemoryEngine;
using memory::oracle;
using memory::sources;

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
    options.workers = draw.number(1, 3);
    const std::vector<Result> results = decode_all(engine, requests, options);
    REQUIRE(results.size() == requests.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      CHECK(results[i].index == i);
      check_result(results[i], requests[i], engine.limits(), engine.eos_weight);
    }
  }
}

TEST_CASE("a row chooses among its own words, whatever the others have") {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const MemoryEngine engine({draw.number(1, 4), 12, 100}, draw.one_of<std::int64_t>({1, 3, 8}),
                              draw.one_of<float>({-3, 0, 1}));
    std::vector<Request> requests;
    for (std::int64_t i = draw.number(0, 9); i > 0; --i) requests.push_back(draw.restricted());
    SearchOptions options;
    options.workers = draw.number(1, 3);
    const std::vector<Result> results = decode_all(engine, requests, options);
    for (std::size_t i = 0; i < results.size(); ++i) {
      check_result(results[i], requests[i], engine.limits(), engine.eos_weight);
    }
    if (requests.empty()) continue;
    Ids streamed;
    TokenStream stream(engine, requests.front());
    while (const auto token = stream.next()) streamed.push_back(token->id);
    CHECK(streamed == results.front().ids());
  }
}

TEST_CASE("a stream gives the same tokens") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const MemoryEngine engine({4, 12, 100}, 4, 0);
    Request request = draw.request(true);
    request.scores = true;
    const Expected expected = oracle(request, engine.limits(), 0);
    TokenStream stream(engine, request);
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
    TokenStream stream(engine, sources({3}, 5)[0]);
    engine.ahead.clear();
    while (stream.next()) continue;
    CHECK(engine.ahead.size() == (poll == 1 ? 0 : 4));
    // Of an end that is not known, fewer steps than poll are lost.
    for (std::size_t length = 1; length <= 12; ++length) {
      const MemoryEngine ending({4, 12, 100}, poll, 1);
      const std::size_t made = decode_all(ending, sources({length}, 100), {})[0].ids().size();
      CHECK(ending.steps.size() - made < static_cast<std::size_t>(poll));
    }
  }
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
      CHECK_THROWS_AS(TokenStream(engine, request), InputError);
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
