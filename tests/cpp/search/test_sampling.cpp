// Draws against NumPy's, which tests/data/make_draws.py has made, and searches of several independent answers.

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "memory_engine.hpp"
#include "repository.hpp"
#include "search/decoding.hpp"
#include "search/greedy_oracle.hpp"
#include "search/sampling.hpp"

using namespace txport::core;
using memory::Draw;
using memory::kTokens;
using memory::MemoryEngine;

namespace {

struct Place {
  std::uint64_t seed;
  DrawPlace of;
};

Place place_of(const nlohmann::json& words) {
  const auto number = [&](std::size_t i) { return std::stoull(words[i].get<std::string>()); };
  return {number(0), {number(1), number(2), number(3)}};
}

Sampling sampling_of(Draw& draw) {
  Sampling sampling;
  sampling.temperature = draw.one_of<double>({0.5, 1, 2});
  sampling.top_k = draw.one_of<std::int64_t>({0, 1, 4});
  sampling.top_p = draw.one_of<double>({1, 0.7});
  sampling.min_p = draw.one_of<double>({0, 0.2});
  sampling.seed = static_cast<std::uint64_t>(draw.number(0, 1 << 30));
  return sampling;
}

std::vector<Request> requests_of(Draw& draw, const Search& search) {
  std::vector<Request> requests;
  for (std::int64_t i = draw.number(1, 8); i > 0; --i) {
    requests.push_back(draw.request(true));
    requests.back().key = static_cast<std::uint64_t>(i);
    requests.back().search = search;
  }
  return requests;
}

// Answers do not depend on who else is in a batch.
void check_alone(const MemoryEngine& engine, const std::vector<Request>& requests, std::int64_t workers) {
  const std::vector<Result> together = decode_all(engine, requests, {std::nullopt, 4096, workers});
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::vector<Hypothesis> alone = decode_all(engine, {requests[i]}, {})[0].hypotheses;
    REQUIRE(together[i].hypotheses.size() == alone.size());
    for (std::size_t n = 0; n < alone.size(); ++n) {
      CHECK(together[i].hypotheses[n].ids == alone[n].ids);
      CHECK(together[i].hypotheses[n].scores == alone[n].scores);
    }
  }
}

}  // namespace

TEST_CASE("Philox and draws are those of NumPy") {
  const nlohmann::json file = nlohmann::json::parse(contents(kTests / "data" / "draws.json"));
  CHECK(file["uniform"].size() >= 6);
  for (const auto& item : file["uniform"]) {
    const Place place = place_of(item["place"]);
    CHECK(uniform(place.seed, place.of) == item["number"].get<double>());
  }
  CHECK(file["draws"].size() >= 40);
  for (const auto& item : file["draws"]) {
    CAPTURE(item.dump());
    const Place place = place_of(item["place"]);
    const Sampling sampling{item["temperature"], item["top_k"], item["top_p"], item["min_p"], place.seed};
    CHECK(draw(item["logits"].get<std::vector<float>>(), sampling, place.of) == item["token"].get<std::int64_t>());
  }
}

TEST_CASE("any batch draws what each sentence draws alone") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Search search;
    search.n_best = draw.number(1, 3);
    search.sampling = sampling_of(draw);
    const MemoryEngine engine({draw.number(3, 9), 12, 100}, draw.one_of<std::int64_t>({1, 8}), 0);
    check_alone(engine, requests_of(draw, search), draw.number(1, 2));
  }
}

TEST_CASE("alternatives are greedy answers that begin with each of the best tokens") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Search search;
    search.alternatives = draw.number(1, 4);
    const MemoryEngine engine({draw.number(4, 9), 12, 100}, 1, 0);
    const std::vector<Request> requests = requests_of(draw, search);
    check_alone(engine, requests, draw.number(1, 2));
    for (const Result& result : decode_all(engine, requests, {})) {
      Request request = requests[result.index];
      const std::size_t begun = request.prefix.size();
      const bool cut = static_cast<std::int64_t>(begun) >= request.limit(engine.limits());
      REQUIRE(result.hypotheses.size() == (cut ? 1 : static_cast<std::size_t>(search.alternatives)));
      request.search = {};
      CHECK(result.ids() == decode_all(engine, {request}, {})[0].ids());
      for (const Hypothesis& hypothesis : result.hypotheses) {
        const auto end =
            hypothesis.ids.begin() + static_cast<std::ptrdiff_t>(std::min(begun + 1, hypothesis.ids.size()));
        request.prefix.assign(hypothesis.ids.begin(), end);
        if (request.prefix.size() > begun && request.prefix.back() == kTokens.eos) continue;  // there it ended
        CHECK(hypothesis.ids == decode_all(engine, {request}, {})[0].ids());
      }
    }
  }
}
