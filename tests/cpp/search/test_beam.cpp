// Beam search against exhaustive search, over an engine that checks how it is used, and what rules forbid.

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "errors.hpp"
#include "memory_engine.hpp"
#include "repository.hpp"
#include "search/decoding.hpp"
#include "search/greedy_oracle.hpp"

using namespace txport::core;
using memory::Draw;
using memory::kTokens;
using memory::kVocabulary;
using memory::logits_after;
using memory::MemoryEngine;

namespace {

struct Answer {
  Ids ids;
  double total = 0;
};

// Every answer of up to `limit` tokens that begins with these.
void expand(const Request& request, std::int64_t limit, const Answer& begun, std::vector<Answer>& all) {
  Ids fed{kTokens.bos};
  fed.insert(fed.end(), begun.ids.begin(), begun.ids.end());
  const std::vector<float> logits = logits_after(request.source_ids, fed, 0);
  const double normaliser = log_sum_exp(logits);
  for (std::size_t token = 0; token < kVocabulary; ++token) {
    Answer next = begun;
    next.ids.push_back(static_cast<std::int64_t>(token));
    next.total += static_cast<double>(logits[token]) - normaliser;
    if (next.ids.back() == kTokens.eos || static_cast<std::int64_t>(next.ids.size()) == limit) {
      all.push_back(next);
    } else {
      expand(request, limit, next, all);
    }
  }
}

Request source_of(Draw& draw) {
  Request request;
  request.source_ids = draw.ids(4, 11, 11);
  request.source_ids.push_back(kTokens.eos);
  return request;
}

Rules rules_of(Draw& draw) {
  Rules rules;
  if (draw.number(0, 2) == 0) rules.repetition_penalty = draw.one_of<double>({0.8, 1.3});
  if (draw.number(0, 2) == 0) rules.no_repeat_ngram = draw.number(1, 3);
  if (draw.number(0, 2) == 0) rules.bad_words = {{5}, {6, 7}, {4, 8, 9}};
  if (draw.number(0, 2) == 0) rules.suppress = {4, 9};
  if (draw.number(0, 2) == 0) rules.begin_suppress = {kTokens.eos, 5};
  if (draw.number(0, 2) == 0) rules.end_ids = {7};
  if (draw.number(0, 2) == 0) rules.forced_end = kTokens.eos;
  rules.renormalize = draw.number(0, 1) == 1;
  return rules;
}

bool has_in_a_row(const Ids& ids, const Ids& words) {
  return std::search(ids.begin(), ids.end(), words.begin(), words.end()) != ids.end();
}

// What was made behind the prefix keeps to the rules.
void check_rules(const Ids& ids, const Request& request, std::int64_t limit) {
  const Rules& rules = request.search.rules;
  const std::size_t begun = request.prefix.size();
  const bool forced = rules.forced_end && static_cast<std::int64_t>(ids.size()) == limit;
  if (forced && ids.size() > begun) CHECK(ids.back() == *rules.forced_end);
  Ids made(ids.begin(), ids.end() - (forced ? 1 : 0));
  if (made.size() <= begun) return;
  const Ids own(made.begin() + static_cast<std::ptrdiff_t>(begun), made.end());
  for (const std::int64_t id : rules.suppress) CHECK_FALSE(has_in_a_row(own, {id}));
  for (const Ids& word : rules.bad_words) CHECK_FALSE(has_in_a_row(own, word));
  CHECK(std::find(rules.begin_suppress.begin(), rules.begin_suppress.end(), own[0]) == rules.begin_suppress.end());
  const auto is_end = [&](std::int64_t id) { return id == kTokens.eos || (!rules.end_ids.empty() && id == 7); };
  const auto end = std::find_if(own.begin(), own.end(), is_end);
  if (end != own.end()) CHECK(end + 1 == own.end());
  // Where no token may come twice, an answer ends when there is none left.
  const bool ended = end != own.end() && rules.no_repeat_ngram != 1;
  if (ended) CHECK(static_cast<std::int64_t>(made.size()) > request.min_length);
  made.insert(made.begin(), kTokens.bos);
  const auto n = static_cast<std::ptrdiff_t>(rules.no_repeat_ngram);
  for (auto last = made.begin() + static_cast<std::ptrdiff_t>(begun) + 2; n > 0 && last <= made.end(); ++last) {
    if (last - made.begin() < n) continue;
    const Ids words(last - n, last);
    CHECK_FALSE(has_in_a_row(Ids(made.begin(), last - 1), words));
  }
}

}  // namespace

TEST_CASE("a beam that holds everything finds the best answers there are") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Search search;
    search.beam = 150;
    search.n_best = 20;
    search.length_penalty = draw.one_of<double>({0, 1, 2, -1});
    Request request = source_of(draw);
    request.max_length = 3;
    request.scores = true;
    request.search = search;
    std::vector<Answer> all;
    expand(request, 3, {}, all);
    const auto score = [&](const Answer& each) {
      return each.total / std::pow(static_cast<double>(each.ids.size()), search.length_penalty);
    };
    std::sort(all.begin(), all.end(), [&](const Answer& a, const Answer& b) { return score(a) > score(b); });
    const MemoryEngine engine({150, 12, 100}, 1, 0);
    const std::vector<Hypothesis> found = decode_all(engine, {request}, {})[0].hypotheses;
    REQUIRE(found.size() == 20);
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].ids == all[i].ids);
      CHECK(*found[i].score == doctest::Approx(score(all[i])).epsilon(1e-6));
      double sum = 0;
      for (const double each : *found[i].scores) sum += each;
      CHECK(sum == doctest::Approx(all[i].total).epsilon(1e-6));
    }
  }
}

TEST_CASE("beams of any batch are those of each sentence alone, and keep to the rules") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Search search;
    search.beam = draw.number(2, 5);
    search.n_best = draw.number(1, search.beam);
    search.length_penalty = draw.one_of<double>({0, 1, 2, -1, 0.6});
    search.early_stopping =
        draw.one_of<EarlyStopping>({EarlyStopping::kFalse, EarlyStopping::kTrue, EarlyStopping::kNever});
    search.patience = draw.one_of<double>({1, 0.5, 2});
    if (draw.number(0, 1) == 1) search.rules = rules_of(draw);
    std::vector<Request> requests;
    for (std::int64_t i = draw.number(1, 8); i > 0; --i) {
      requests.push_back(draw.request(seed % 3 != 0));
      requests.back().search = search;
      Ids& prefix = requests.back().prefix;
      prefix.erase(std::remove(prefix.begin(), prefix.end(), kTokens.eos), prefix.end());
    }
    const MemoryEngine engine({draw.number(5, 12), 12, 100}, draw.one_of<std::int64_t>({1, 8}),
                              draw.one_of<float>({-3, 0, 1}));
    const std::vector<Result> together = decode_all(engine, requests, {std::nullopt, 4096, draw.number(1, 2)});
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::vector<Hypothesis> alone = decode_all(engine, {requests[i]}, {})[0].hypotheses;
      const std::vector<Hypothesis>& found = together[i].hypotheses;
      REQUIRE(found.size() == alone.size());
      REQUIRE(!found.empty());
      for (std::size_t n = 0; n < found.size(); ++n) {
        CHECK(found[n].ids == alone[n].ids);
        CHECK(found[n].score == alone[n].score);
        CHECK(found[n].scores == alone[n].scores);
        if (n > 0) CHECK(*found[n].score <= *found[n - 1].score);
        check_rules(found[n].ids, requests[i], requests[i].limit(engine.limits()));
      }
    }
  }
}

TEST_CASE("greedy search keeps to the rules") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Request request = draw.request(true);
    // Ends inside the prefix, after which little may be added, have a test of their own.
    std::replace(request.prefix.begin(), request.prefix.end(), kTokens.eos, std::int64_t{5});
    request.search.rules = rules_of(draw);
    const MemoryEngine engine({4, 12, 100}, draw.one_of<std::int64_t>({1, 8}), 0);
    const Ids ids = decode_all(engine, {request, request}, {})[0].ids();
    check_rules(ids, request, request.limit(engine.limits()));
    TokenStream stream(engine, request);
    Ids streamed;
    while (const auto token = stream.next()) streamed.push_back(token->id);
    CHECK(streamed == ids);
  }
}

TEST_CASE("an end inside the prefix ends nothing, in each way to search") {
  Request request;
  request.source_ids = {5, kTokens.eos};
  request.max_length = 12;
  request.prefix = {7, kTokens.eos, 7, 9, kTokens.eos};
  request.search.rules.end_ids = {9};
  std::vector<Search> searches(4, request.search);
  searches[1].beam = 3;
  searches[2].sampling.emplace();
  searches[3].alternatives = 2;
  for (const std::int64_t poll : {1, 8}) {
    const MemoryEngine engine({4, 12, 100}, poll, -99);
    for (const Search& search : searches) {
      request.search = search;
      const std::vector<Result> results = decode_all(engine, {request, request}, {});
      for (const Hypothesis& made : results[1].hypotheses) {
        REQUIRE(made.ids.size() > request.prefix.size());
        CHECK(Ids(made.ids.begin(), made.ids.begin() + 5) == request.prefix);
      }
    }
  }
}

TEST_CASE("an answer to which nothing may be added ends") {
  Request request;
  request.source_ids = {5, kTokens.eos};
  request.search.rules.no_repeat_ngram = 1;
  request.min_length = 50;
  const MemoryEngine engine({4, 12, 100}, 1, 0);
  for (const std::int64_t beam : {1, 3}) {
    request.search.beam = beam;
    const Ids ids = decode_all(engine, {request}, {})[0].ids();
    CHECK(ids.size() == kVocabulary - 1);  // each once besides bos, and eos at last
    CHECK(ids.back() == kTokens.eos);
  }
}

TEST_CASE("where memory is short it is said what fits") {
  class Short : public MemoryEngine {
   public:
    explicit Short(std::size_t room) : MemoryEngine({100, 12, 100}, 1, 0), room_(room) {}
    std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                           const Outputs& outputs) const override {
      if (rows > room_) throw ResourceError("there is memory for " + std::to_string(room_) + " rows");
      return MemoryEngine::allocate(rows, source, target, outputs);
    }

   private:
    std::size_t room_;
  };
  Request request;
  request.source_ids = {4, kTokens.eos};
  request.search.beam = 8;
  const auto fault = [&](std::size_t room) {
    const Short engine(room);
    return fault_of<ResourceError>([&] { decode_all(engine, {request, request, request}, {}); });
  };
  CHECK(fault(23) == "there is not enough memory for 3 sentences of 8 rows each: batch 1 fits");
  CHECK(fault(7) == "there is not enough memory for 3 sentences of 8 rows each: beam or n_best 4 fits");
  CHECK(fault(0) == "there is memory for 0 rows");
}

TEST_CASE("a beam for which there is no room, and streams of one") {
  const MemoryEngine engine({4, 12, 100}, 1, 0);
  Request request;
  request.source_ids = {5, kTokens.eos};
  request.search.beam = 5;
  CHECK(fault_of<InputError>([&] { decode_all(engine, {request}, {}); }) ==
        "a sentence needs 5 rows, but this bundle supports at most 4");
  CHECK(fault_of<InputError>([&] { TokenStream(engine, request); }) ==
        "a stream is greedy: beams, samples and alternatives need `translate`");
}
