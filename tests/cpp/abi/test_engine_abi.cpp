// The C ABI of one engine: what goes wrong gives a code and a message, whatever was passed in, and nothing is harmed.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "abi/described_model.hpp"
#include "abi/engine.hpp"
#include "fused/engine.hpp"
#include "fused/random_model.hpp"
#include "memory_engine.hpp"
#include "search/decoding.hpp"
#include "txport/engine.h"

namespace {

using txport::core::Ids;

constexpr std::int64_t kLimit = 20;

txport_engine_handle handle_of(const random_model::RandomModel& model) {
  return {txport::core::open_fused(model.file(), {2, false}), model.manifest.model};
}

struct Free {
  void operator()(txport_engine_memory* memory) const { txport_engine_memory_free(memory); }
  void operator()(txport_engine_state* state) const { txport_state_free(state); }
};
using MemoryPointer = std::unique_ptr<txport_engine_memory, Free>;
using StatePointer = std::unique_ptr<txport_engine_state, Free>;

const Ids kSources{4, 5, 6, 7, 8, 9, 0, 0};  // [2, 4]
const Ids kLengths{4, 2};
const Ids kBoth{0, 1};

MemoryPointer encoded(const txport_engine_handle& engine) {
  txport_engine_memory* memory = nullptr;
  REQUIRE(txport_engine_encode(&engine, kSources.data(), kLengths.data(), 2, 4, &memory) == TXPORT_OK);
  return MemoryPointer(memory);
}

StatePointer allocated(const txport_engine_handle& engine, std::int64_t target, bool logits = false,
                       std::int64_t top = 0) {
  txport_engine_state* state = nullptr;
  REQUIRE(txport_engine_allocate(&engine, 2, 4, target, logits ? 1 : 0, top, &state) == TXPORT_OK);
  return StatePointer(state);
}

// Whether a call fails as the caller's fault, with these words.
bool refused(txport_code code, const char* words) {
  return code == TXPORT_INPUT_ERROR && std::strstr(txport_message(), words) != nullptr;
}

// The best candidates of each row, and the normaliser, against all logits.
void check_best(const txport_engine_handle& engine) {
  constexpr std::int64_t kBest = 5;
  const auto vocabulary = static_cast<std::size_t>(engine.sizes.target_vocabulary);
  const MemoryPointer memory = encoded(engine);
  const StatePointer state = allocated(engine, 8, true, kBest);
  const Ids limits{8, 8};
  REQUIRE(txport_state_place(state.get(), 2, kBoth.data(), memory.get(), kBoth.data(), limits.data()) == TXPORT_OK);
  REQUIRE(txport_state_step(state.get(), 1) == TXPORT_OK);
  Ids tokens(2 * kBest);
  std::array<std::uint8_t, 2> finished{};
  std::int64_t steps = 0;
  std::vector<float> best(2 * kBest);
  std::array<double, 2> normaliser{};
  const auto top = [&](std::int64_t k) {
    return txport_state_top(state.get(), k, tokens.data(), best.data(), normaliser.data());
  };
  CHECK(refused(top(kBest), "were not read"));
  REQUIRE(txport_state_read(state.get(), tokens.data(), 1, &steps, finished.data()) == TXPORT_OK);
  CHECK(refused(top(0), "k is 0, which is not between 1 and 5"));
  CHECK(refused(top(6), "k is 6"));
  CHECK(refused(txport_state_top(state.get(), 1, tokens.data(), nullptr, normaliser.data()), "logits is NULL"));
  std::vector<float> logits(2 * vocabulary);
  REQUIRE(txport_state_logits(state.get(), 2, kBoth.data(), logits.data()) == TXPORT_OK);
  REQUIRE(top(kBest) == TXPORT_OK);
  for (std::size_t row = 0; row < 2; ++row) {
    const float* all = logits.data() + row * vocabulary;
    std::vector<std::pair<float, std::int64_t>> order;
    double sum = 0;
    for (std::size_t id = 0; id < vocabulary; ++id) {
      order.emplace_back(-all[id], static_cast<std::int64_t>(id));
      sum += std::exp(static_cast<double>(all[id]));
    }
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < kBest; ++i) {
      CHECK(tokens[row * kBest + i] == order[i].second);
      CHECK(best[row * kBest + i] == -order[i].first);
    }
    CHECK(normaliser.at(row) == doctest::Approx(std::log(sum)).epsilon(1e-6));
  }
}

}  // namespace

TEST_CASE("the C ABI of an engine makes the ids of the greedy search, rows moved to longer caches") {
  const random_model::RandomModel model({}, 11);
  const txport_engine_handle engine = handle_of(model);
  const Ids limits{kLimit, kLimit};
  const MemoryPointer memory = encoded(engine);
  StatePointer state = allocated(engine, 8);
  REQUIRE(txport_state_place(state.get(), 2, kBoth.data(), memory.get(), kBoth.data(), limits.data()) == TXPORT_OK);
  std::array<Ids, 2> made;
  Ids tokens(2 * kLimit);
  std::array<std::uint8_t, 2> finished{};
  std::int64_t steps = -1;
  for (const std::int64_t count : {3, 5, 12}) {
    if (count == 12) {
      txport_engine_state* longer = nullptr;
      REQUIRE(txport_state_moved(state.get(), 2, kBoth.data(), kLimit, &longer) == TXPORT_OK);
      CHECK(refused(txport_state_step(state.get(), 1), "the state was moved"));
      state.reset(longer);
    }
    REQUIRE(txport_state_step(state.get(), count) == TXPORT_OK);
    CHECK(refused(txport_state_read(state.get(), tokens.data(), count - 1, &steps, finished.data()), "capacity"));
    REQUIRE(txport_state_read(state.get(), tokens.data(), kLimit, &steps, finished.data()) == TXPORT_OK);
    REQUIRE(steps == count);
    for (std::size_t i = 0; i < static_cast<std::size_t>(2 * count); ++i) {
      if (made[i % 2].empty() || made[i % 2].back() != model.manifest.tokens.eos) made[i % 2].push_back(tokens[i]);
    }
  }
  REQUIRE(txport_state_read(state.get(), tokens.data(), kLimit, &steps, finished.data()) == TXPORT_OK);
  CHECK(steps == 0);
  const auto expected = decode_all(*engine.engine, {{{4, 5, 6, 7}, kLimit, 0, {}}, {{8, 9}, kLimit, 0, {}}}, {});
  CHECK(made[0] == expected[0].ids());
  CHECK(made[1] == expected[1].ids());
  txport_engine_facts facts = TXPORT_ENGINE_FACTS_INIT;
  REQUIRE(txport_engine_get_facts(&engine, &facts) == TXPORT_OK);
  CHECK(facts.batch == 16);
  CHECK(facts.vocabulary == 40);
  CHECK(facts.eos == 3);
  CHECK(txport_engine_first_target(&engine, 40) == 64);
  for (const std::int64_t source : {std::int64_t{80}, std::int64_t{1} << 62U, INT64_MAX}) {
    CHECK(txport_engine_first_target(&engine, source) == 128);  // of the longest source, 80
  }
  CHECK(txport_engine_first_target(&engine, INT64_MIN) == 32);
}

TEST_CASE("the fused engine of a described model is that of its bundle, and its description is not believed") {
  const random_model::RandomModel model({}, 11);
  DescribedModel described(model.file());
  txport_engine_handle* engine = nullptr;
  const auto create = [&] { return txport_engine_create(&described.fields, nullptr, &engine); };
  const txport_model right = described.fields;
  REQUIRE(create() == TXPORT_OK);
  const txport_engine_handle opened = handle_of(model);
  const std::vector<txport::core::Request> requests{{{4, 5, 6, 7}, kLimit, 0, {}}, {{8, 9}, kLimit, 0, {}}};
  const auto expected = decode_all(*opened.engine, requests, {});
  const auto found = decode_all(*engine->engine, requests, {});
  for (std::size_t i = 0; i < 2; ++i) CHECK(found[i].ids() == expected[i].ids());
  txport_engine_close(engine);
  described.fields.struct_size = offsetof(txport_model, norm_kind);  // of txport 0.2.0
  described.fields.encoder_heads = 77;                               // which it does not say
  REQUIRE(create() == TXPORT_OK);
  txport_engine_close(engine);
  described.fields = right;
  const std::string weights = contents(model.file().weights);
  described.fields.weights = "of the application";
  described.fields.weights_data = weights.data();
  REQUIRE(create() == TXPORT_OK);
  const auto from_memory = decode_all(*engine->engine, requests, {});
  for (std::size_t i = 0; i < 2; ++i) CHECK(from_memory[i].ids() == expected[i].ids());
  txport_engine_close(engine);
  described.fields = right;

  const auto refused_as = [&](txport_code code, const char* words) {
    CAPTURE(std::string(words));
    CHECK(create() == code);
    CHECK(engine == nullptr);
    CHECK_MESSAGE(std::strstr(txport_message(), words) != nullptr, txport_message());
  };
  const auto with = [&](const std::function<void(txport_model&)>& change, txport_code code, const char* words) {
    change(described.fields);
    refused_as(code, words);
    described.fields = right;
  };
  with([](txport_model& fields) { fields.struct_size = 8; }, TXPORT_INPUT_ERROR, "txport_model.struct_size is 8");
  with([](txport_model& fields) { fields.struct_size += 8; }, TXPORT_INPUT_ERROR, "compiled for a newer txport");
  with([](txport_model& fields) { fields.parameter_size += 8; }, TXPORT_INPUT_ERROR, "txport_model.parameter_size is");
  with([](txport_model& fields) { fields.weights = nullptr; }, TXPORT_INPUT_ERROR, "txport_model.weights is NULL");
  with([](txport_model& fields) { fields.parameters = nullptr; }, TXPORT_INPUT_ERROR, "parameters is NULL");
  with([](txport_model& fields) { fields.norm = "rms"; }, TXPORT_INPUT_ERROR,
       "norm is 'rms': use post, pre, post_final");
  with([](txport_model& fields) { fields.norm_kind = "batch"; }, TXPORT_INPUT_ERROR,
       "norm_kind is 'batch': use layer, rms");
  with([](txport_model& fields) { fields.norm_kind = "rms"; }, TXPORT_BUNDLE_ERROR, "which this model does not have");
  with([](txport_model& fields) { fields.encoder_heads = -1; }, TXPORT_BUNDLE_ERROR, "model.encoder_heads is -1");
  with([](txport_model& fields) { fields.encoder_heads += 1; }, TXPORT_BUNDLE_ERROR, "must be of shape");
  with([](txport_model& fields) { fields.heads = 0; }, TXPORT_BUNDLE_ERROR, "model.heads is 0");
  with([](txport_model& fields) { fields.eos = 40; }, TXPORT_BUNDLE_ERROR, "tokens.eos is 40, outside");
  with([](txport_model& fields) { fields.batch = -1; }, TXPORT_BUNDLE_ERROR, "batch is -1");
  with([](txport_model& fields) { fields.source = 1 << 30; }, TXPORT_BUNDLE_ERROR, "has 80 rows, but sentences have");
  with([](txport_model& fields) { fields.embedding_scale = HUGE_VAL; }, TXPORT_BUNDLE_ERROR, "embedding_scale");
  with([](txport_model& fields) { fields.weights_bytes -= 1; }, TXPORT_BUNDLE_ERROR, "beyond the");
  with([](txport_model& fields) { fields.weights_bytes += 1; }, TXPORT_BUNDLE_ERROR, "bytes instead of");
  with([&](txport_model& fields) { fields.weights_data = weights.data() + 1; }, TXPORT_INPUT_ERROR,
       "weights_data is not at a multiple of 4 bytes");
  with([](txport_model& fields) { fields.parameter_count = 1; }, TXPORT_BUNDLE_ERROR, "misses the tensor");
  described.parameter(0).dimensions = 3;
  refused_as(TXPORT_INPUT_ERROR, "txport_parameter.dimensions is 3");
}

TEST_CASE("the C ABI of an engine that does not recompute logits refuses those that were not stored") {
  txport_engine_handle engine;
  engine.engine = std::make_shared<memory::MemoryEngine>(txport::core::Limits{2, 4, 8}, 1, 0.0F);
  engine.sizes.target_vocabulary = memory::kVocabulary;
  const StatePointer state = allocated(engine, 8);
  double found = 0;
  CHECK(refused(txport_state_log_probabilities(state.get(), 0, nullptr, nullptr, &found), "without logits"));
  CHECK(refused(txport_state_logits(state.get(), 0, nullptr, nullptr), "without logits"));
}

TEST_CASE("the C ABI of an engine scores tokens of any row") {
  const random_model::RandomModel model({}, 11);
  const txport_engine_handle engine = handle_of(model);
  const MemoryPointer memory = encoded(engine);
  const StatePointer state = allocated(engine, 8, true);
  const Ids limits{8, 8};
  REQUIRE(txport_state_place(state.get(), 2, kBoth.data(), memory.get(), kBoth.data(), limits.data()) == TXPORT_OK);
  REQUIRE(txport_state_step(state.get(), 1) == TXPORT_OK);
  Ids tokens(2);
  std::array<std::uint8_t, 2> finished{};
  std::int64_t steps = 0;
  REQUIRE(txport_state_read(state.get(), tokens.data(), 1, &steps, finished.data()) == TXPORT_OK);
  std::vector<float> logits(80);
  REQUIRE(txport_state_logits(state.get(), 2, kBoth.data(), logits.data()) == TXPORT_OK);
  const Ids rows{1, 0};
  const Ids ids{tokens[1], 39};
  std::array<double, 2> found{};
  REQUIRE(txport_state_log_probabilities(state.get(), 2, rows.data(), ids.data(), found.data()) == TXPORT_OK);
  for (std::size_t i = 0; i < 2; ++i) {
    const float* row = logits.data() + 40 * rows[i];
    double sum = 0;
    for (int id = 0; id < 40; ++id) sum += std::exp(static_cast<double>(row[id]));
    CHECK(found[i] == doctest::Approx(static_cast<double>(row[ids[i]]) - std::log(sum)).epsilon(1e-5));
  }
  const Ids wrong{40, 0};
  CHECK(refused(txport_state_log_probabilities(state.get(), 2, rows.data(), wrong.data(), found.data()), "is 40"));
  CHECK(refused(txport_state_log_probabilities(state.get(), 1, rows.data(), ids.data(), nullptr), "is NULL"));
}

TEST_CASE("rows are restricted before their first step only") {
  constexpr std::int64_t kWords = 300;
  random_model::Options options;
  options.source_vocabulary = options.target_vocabulary = kWords;
  const random_model::RandomModel model(options, 1);
  const auto engine = handle_of(model);
  const MemoryPointer memory = encoded(engine);
  for (const bool stored : {true, false}) {
    const StatePointer state = allocated(engine, 8, stored);
    const Ids limits{8, 8};
    const auto place = [&] {
      return txport_state_place(state.get(), 2, kBoth.data(), memory.get(), kBoth.data(), limits.data());
    };
    Ids many(kWords);
    std::iota(many.begin(), many.end(), 0);
    const auto restrict = [&](std::int64_t count) {
      return txport_state_restrict(state.get(), 1, kBoth.data(), &count, many.data());
    };
    const auto step = [&] {
      Ids tokens(2);
      std::array<std::uint8_t, 2> finished{};
      std::int64_t steps = 0;
      REQUIRE(txport_state_step(state.get(), 1) == TXPORT_OK);
      REQUIRE(txport_state_read(state.get(), tokens.data(), 1, &steps, finished.data()) == TXPORT_OK);
    };
    // Return the number of tokens that the first row may choose.
    const auto choices = [&] {
      std::vector<float> logits(kWords);
      REQUIRE(txport_state_logits(state.get(), 1, kBoth.data(), logits.data()) == TXPORT_OK);
      return std::count_if(logits.begin(), logits.end(), [](float each) { return std::isfinite(each); });
    };
    REQUIRE(place() == TXPORT_OK);
    REQUIRE(restrict(1) == TXPORT_OK);
    REQUIRE(restrict(kWords) == TXPORT_OK);
    step();
    CHECK(refused(restrict(1), "row 0 was stepped since it was placed: restrict rows before a step"));
    CHECK(choices() == kWords);
    double probability = 0;
    CHECK(txport_state_log_probabilities(state.get(), 1, kBoth.data(), &many.back(), &probability) == TXPORT_OK);
    CHECK(std::isfinite(probability));
    REQUIRE(place() == TXPORT_OK);
    CHECK(restrict(7) == TXPORT_OK);
    step();
    CHECK(choices() == 7);
    REQUIRE(place() == TXPORT_OK);  // which ends the restriction
    step();
    CHECK(choices() == kWords);
  }
}

TEST_CASE("a row with fewer words than candidates, beside one of all words, has ids of the vocabulary only") {
  random_model::Options options;
  options.source_vocabulary = options.target_vocabulary = 300;
  const random_model::RandomModel model(options, 1);
  const auto engine = handle_of(model);
  const MemoryPointer memory = encoded(engine);
  const StatePointer state = allocated(engine, 8, false, 4);
  const Ids limits{8, 8};
  REQUIRE(txport_state_place(state.get(), 2, kBoth.data(), memory.get(), kBoth.data(), limits.data()) == TXPORT_OK);
  const Ids word{7};
  const std::int64_t end = 1;
  REQUIRE(txport_state_restrict(state.get(), 1, kBoth.data(), &end, word.data()) == TXPORT_OK);
  REQUIRE(txport_state_step(state.get(), 1) == TXPORT_OK);
  Ids tokens(8);
  std::array<std::uint8_t, 2> finished{};
  std::int64_t steps = 0;
  REQUIRE(txport_state_read(state.get(), tokens.data(), 1, &steps, finished.data()) == TXPORT_OK);
  std::vector<float> logits(8);
  std::array<double, 2> normaliser{};
  REQUIRE(txport_state_top(state.get(), 4, tokens.data(), logits.data(), normaliser.data()) == TXPORT_OK);
  CHECK(tokens[0] == 7);
  CHECK(std::all_of(tokens.begin(), tokens.end(), [](std::int64_t id) { return 0 <= id && id < 300; }));
  CHECK(std::isinf(logits[1]));
}

TEST_CASE("the C ABI of an engine gives the best candidates of each row") {
  check_best(handle_of(random_model::RandomModel({}, 11)));
}

TEST_CASE("the C ABI of an engine searches as beam search does") {
  const random_model::RandomModel model({}, 11);
  const txport_engine_handle engine = handle_of(model);
  for (const bool ruled : {false, true}) {
    txport::core::Search chosen;
    chosen.beam = chosen.n_best = 2;
    chosen.early_stopping = txport::core::EarlyStopping::kNever;
    chosen.length_penalty = 0.5;
    txport_beam_settings settings = TXPORT_BEAM_SETTINGS_INIT;
    settings.beam = settings.n_best = 2;
    settings.early_stopping = 2;
    settings.length_penalty = 0.5;
    const Ids word{5, 6};
    const txport_ids words{word.data(), word.size()};
    if (ruled) {
      chosen.rules.bad_words = {word};
      chosen.rules.no_repeat_ngram = settings.no_repeat_ngram = 2;
      settings.bad_words = &words;
      settings.bad_word_count = 1;
    }
    txport_beam_search* made = nullptr;
    REQUIRE(txport_beam_search_create(&engine, &settings, &made) == TXPORT_OK);
    const std::unique_ptr<txport_beam_search, void (*)(txport_beam_search*)> search(made, txport_beam_search_free);
    const Ids prefix{7};
    std::array<txport_hypotheses*, 2> sentences{};
    txport_beam_sentence sentence = TXPORT_BEAM_SENTENCE_INIT;
    sentence.limit = kLimit;
    REQUIRE(txport_hypotheses_create(search.get(), &sentence, &sentences[0]) == TXPORT_OK);
    sentence.prefix = {prefix.data(), prefix.size()};
    REQUIRE(txport_hypotheses_create(search.get(), &sentence, &sentences[1]) == TXPORT_OK);

    txport_engine_state* opened = nullptr;
    REQUIRE(txport_engine_allocate(&engine, 4, 4, kLimit, 0, ruled ? 6 : 4, &opened) == TXPORT_OK);
    const StatePointer state(opened);
    const Ids rows{0, 2};
    const Ids limits{kLimit, kLimit};
    const MemoryPointer memory = encoded(engine);
    REQUIRE(txport_state_place(state.get(), 2, rows.data(), memory.get(), kBoth.data(), limits.data()) == TXPORT_OK);
    Ids tokens(4);
    std::array<std::uint8_t, 4> finished{};
    std::array<std::uint8_t, 2> done{};
    std::array<txport_hypotheses*, 2> working = sentences;
    std::int64_t steps = 0;
    const auto go_on = [&](std::int64_t count, std::int64_t more) {
      return txport_state_search(state.get(), search.get(), count, working.data(), more, &steps, done.data());
    };
    while (working[0] != nullptr || working[1] != nullptr) {
      REQUIRE(txport_state_step(state.get(), 1) == TXPORT_OK);
      CHECK(refused(go_on(2, 3), "were not read"));
      REQUIRE(txport_state_read(state.get(), tokens.data(), 1, &steps, finished.data()) == TXPORT_OK);
      CHECK(refused(go_on(1, 3), "count is 1, but the state has 4 rows, 2 per sentence"));
      REQUIRE(go_on(2, 3) == TXPORT_OK);
      CHECK(steps >= 1);
      CHECK(steps <= 4);
      for (std::size_t i = 0; i < 2; ++i) {
        if (done.at(i) != 0) working.at(i) = nullptr;
      }
    }
    std::vector<txport::core::Request> requests(2);
    requests[0].source_ids = {4, 5, 6, 7};
    requests[1].source_ids = {8, 9};
    requests[1].prefix = prefix;
    for (txport::core::Request& request : requests) {
      request.max_length = kLimit;
      request.scores = true;
      request.search = chosen;
    }
    const auto expected = decode_all(*engine.engine, requests, {});
    for (std::size_t i = 0; i < 2; ++i) {
      const std::unique_ptr<txport_hypotheses, void (*)(txport_hypotheses*)> owned(sentences.at(i),
                                                                                   txport_hypotheses_free);
      const std::int64_t* ids = nullptr;
      const double* scores = nullptr;
      std::int64_t count = -1;
      double score = 0;
      for (std::size_t n = 0; n < 3; ++n) {
        const auto index = static_cast<std::int64_t>(n);
        REQUIRE(txport_hypotheses_answer(owned.get(), index, &ids, &scores, &count, &score) == TXPORT_OK);
        if (n >= expected[i].hypotheses.size()) break;
        const txport::core::Hypothesis& right = expected[i].hypotheses[n];
        CHECK(Ids(ids, ids + count) == right.ids);
        CHECK(std::vector<double>(scores, scores + count) == *right.scores);
        CHECK(score == *right.score);
      }
      CHECK(count == 0);
    }
  }
}

TEST_CASE("no calls of the C ABI of an engine lead a row beyond its cache") {
  const random_model::RandomModel model({}, 11);
  const txport_engine_handle engine = handle_of(model);
  const MemoryPointer memory = encoded(engine);
  const StatePointer state = allocated(engine, 16);
  const Ids limits{16, 3};
  const Ids tokens{7, 7};
  Ids made(64);
  std::int64_t steps = 0;
  std::array<std::uint8_t, 2> finished{};
  const auto override_both = [&](std::uint8_t flag) {
    const std::array<std::uint8_t, 2> flags{flag, flag};
    return txport_state_override(state.get(), 2, kBoth.data(), tokens.data(), flags.data());
  };
  const auto step = [&](std::int64_t count) {
    REQUIRE(txport_state_step(state.get(), count) == TXPORT_OK);
    REQUIRE(txport_state_read(state.get(), made.data(), 32, &steps, finished.data()) == TXPORT_OK);
  };
  REQUIRE(override_both(0) == TXPORT_OK);
  step(1);
  CHECK(finished == std::array<std::uint8_t, 2>{1, 1});  // never placed
  REQUIRE(txport_state_place(state.get(), 2, kBoth.data(), memory.get(), kBoth.data(), limits.data()) == TXPORT_OK);
  for (int i = 0; i < 40; ++i) {  // taking back what was finished makes no progress
    REQUIRE(override_both(1) == TXPORT_OK);
    REQUIRE(override_both(0) == TXPORT_OK);
  }
  step(3);
  const std::uint8_t goes_on = 0;
  REQUIRE(txport_state_override(state.get(), 1, kBoth.data(), tokens.data(), &goes_on) == TXPORT_OK);
  for (int i = 3; i < 16; ++i) {
    REQUIRE(txport_state_override(state.get(), 1, kBoth.data(), tokens.data(), &goes_on) == TXPORT_OK);
    step(1);
  }
  CHECK(finished[0] == 1);
  for (int i = 0; i < 3; ++i) {  // who has made all tokens, 16 and 3, makes none
    REQUIRE(override_both(0) == TXPORT_OK);
    step(32);
    CHECK(finished == std::array<std::uint8_t, 2>{1, 1});
    CHECK(std::count(made.begin(), made.end(), model.manifest.tokens.pad) == 64);
  }
}

#ifndef TXPORT_ENGINE_ALONE  // libtxport_engine opens no bundle
TEST_CASE("the C ABI of ONNX Runtime gives the best candidates of each row") {
  txport_engine_options how = TXPORT_ENGINE_OPTIONS_INIT;
  how.device = "cpu";
  how.engine = "ort";
  txport_engine_handle* opened = nullptr;
  REQUIRE(txport_engine_open(kToyBundle.c_str(), &how, &opened) == TXPORT_OK);
  const std::unique_ptr<txport_engine_handle, void (*)(txport_engine_handle*)> toy(opened, txport_engine_close);
  check_best(*toy);
}

TEST_CASE("the C ABI opens any engine, by the words of the translator") {
  const txport::core::Manifest manifest = txport::core::Manifest::load(kToyBundle);
  for (const char* lowering : {"ort", "scatter"}) {
    txport_engine_options how = TXPORT_ENGINE_OPTIONS_INIT;
    how.device = "cpu";
    how.engine = "ort";
    how.lowering = lowering;
    how.threads = 1;
    txport_engine_handle* engine = nullptr;
    REQUIRE(txport_engine_open(kToyBundle.c_str(), &how, &engine) == TXPORT_OK);
    const char* name = nullptr;
    REQUIRE(txport_engine_name(engine, &name) == TXPORT_OK);
    CHECK(std::string(name).find("ONNX Runtime") == 0);
    CHECK(std::string(name).find(std::string("lowering ") + lowering) != std::string::npos);
    txport_engine_facts facts = TXPORT_ENGINE_FACTS_INIT;
    REQUIRE(txport_engine_get_facts(engine, &facts) == TXPORT_OK);
    CHECK(facts.batch == manifest.limits().batch);
    CHECK(facts.vocabulary == manifest.model.target_vocabulary);
    CHECK(facts.poll == 1);
    const MemoryPointer memory = encoded(*engine);
    const StatePointer state = allocated(*engine, 16);
    const Ids limits{5, 3};
    REQUIRE(txport_state_place(state.get(), 2, kBoth.data(), memory.get(), kBoth.data(), limits.data()) == TXPORT_OK);
    std::array<Ids, 2> made;
    std::array<std::uint8_t, 2> finished{};
    for (int i = 0; i < 5; ++i) {
      Ids tokens(2);
      std::int64_t steps = 0;
      REQUIRE(txport_state_step(state.get(), 1) == TXPORT_OK);
      REQUIRE(txport_state_read(state.get(), tokens.data(), 1, &steps, finished.data()) == TXPORT_OK);
      for (std::size_t row = 0; row < 2; ++row) {
        if (made.at(row).size() < static_cast<std::size_t>(limits[row])) made.at(row).push_back(tokens[row]);
      }
    }
    CHECK(finished == std::array<std::uint8_t, 2>{1, 1});
    const auto expected =
        txport::core::decode_all(*engine->engine, {{{4, 5, 6, 7}, 5, 0, {}, false}, {{8, 9}, 3, 0, {}, false}}, {});
    for (std::size_t row = 0; row < 2; ++row) {
      made.at(row).resize(expected[row].ids().size());
      CHECK(made.at(row) == expected[row].ids());
    }
    txport_engine_close(engine);
  }
}

TEST_CASE("arguments to open an engine that cannot be") {
  txport_engine_handle* none = nullptr;
  txport_engine_options how = TXPORT_ENGINE_OPTIONS_INIT;
  CHECK(refused(txport_engine_open(nullptr, &how, &none), "bundle is NULL"));
  CHECK(txport_engine_open("/nowhere", &how, &none) == TXPORT_BUNDLE_ERROR);
  how.engine = "fused";
  CHECK(txport_engine_open(kToyBundle.c_str(), &how, &none) == TXPORT_BUNDLE_ERROR);  // of an older version
  how.engine = "swift";
  CHECK(refused(txport_engine_open(kToyBundle.c_str(), &how, &none), "engine 'swift' is not supported"));
  how.threads = -1;
  CHECK(refused(txport_engine_open("/nowhere", &how, &none), "threads is -1"));
  how.struct_size = 8;
  CHECK(refused(txport_engine_open("/nowhere", &how, &none), "txport_engine_options.struct_size is 8"));
  CHECK(none == nullptr);
}
#endif

TEST_CASE("arguments of the C ABI of an engine that cannot be") {
  const random_model::RandomModel model({}, 11);
  const txport_engine_handle engine = handle_of(model);
  const txport_engine_handle other = handle_of(model);
  txport_engine_facts facts{};
  CHECK(refused(txport_engine_get_facts(&engine, &facts), "txport_engine_facts.struct_size is 0"));
  CHECK(refused(txport_engine_name(nullptr, nullptr), "NULL"));
  CHECK(refused(txport_engine_get_facts(&engine, nullptr), "facts is NULL"));
  CHECK(txport_engine_first_target(nullptr, 4) == 0);

  txport_engine_memory* memory = nullptr;
  const auto encode = [&](const Ids& ids, const Ids& lengths, std::int64_t batch, std::int64_t source) {
    return txport_engine_encode(&engine, ids.data(), lengths.data(), batch, source, &memory);
  };
  CHECK(refused(encode(kSources, kLengths, 17, 4), "batch is 17, which is not between 1 and 16"));
  CHECK(refused(encode(kSources, kLengths, 2, 81), "source is 81"));
  CHECK(refused(encode(kSources, {4, 5}, 2, 4), "lengths is 5"));
  CHECK(refused(encode(kSources, {4, 0}, 2, 4), "lengths is 0"));
  CHECK(refused(encode({4, 5, 6, 40, 8, 9, 0, 0}, kLengths, 2, 4), "input_ids is 40"));
  CHECK(refused(encode({4, 5, 6, -1, 8, 9, 0, 0}, kLengths, 2, 4), "input_ids is -1"));
  CHECK(encode({4, 5, 6, 7, 8, 9, -7, 99}, kLengths, 2, 4) == TXPORT_OK);  // what is behind the end is ignored
  const MemoryPointer ignored(memory);

  txport_engine_state* made = nullptr;
  CHECK(refused(txport_engine_allocate(&engine, 0, 4, 8, 0, 0, &made), "rows is 0"));
  CHECK(refused(txport_engine_allocate(&engine, 2, 4, 81, 0, 0, &made), "target is 81"));
  CHECK(refused(txport_engine_allocate(&engine, 2, 4, 8, 0, -1, &made), "top is -1, which is not between 0 and 40"));
  CHECK(refused(txport_engine_allocate(&engine, 2, 4, 8, 0, 41, &made), "top is 41"));
  const StatePointer state = allocated(engine, 8);
  const MemoryPointer mine = encoded(engine);
  const MemoryPointer theirs = encoded(other);
  const auto place = [&](const Ids& rows, const txport_engine_memory* from, const Ids& from_rows, const Ids& limits) {
    return txport_state_place(state.get(), static_cast<std::int64_t>(rows.size()), rows.data(), from, from_rows.data(),
                              limits.data());
  };
  CHECK(refused(place({2}, mine.get(), {0}, {5}), "rows is 2"));
  CHECK(refused(place({0}, mine.get(), {2}, {5}), "memory_rows is 2"));
  CHECK(refused(place({0}, mine.get(), {0}, {81}), "target_limits is 81"));
  CHECK(refused(place({0}, theirs.get(), {0}, {5}), "another engine"));
  CHECK(refused(place({0}, nullptr, {0}, {5}), "memory is NULL"));
  REQUIRE(txport_engine_allocate(&engine, 2, 3, 8, 0, 0, &made) == TXPORT_OK);
  const StatePointer narrow(made);
  const Ids both_limits{5, 5};
  CHECK(refused(txport_state_place(narrow.get(), 2, kBoth.data(), mine.get(), kBoth.data(), both_limits.data()),
                "the longest sentence of memory is 4, which is not between 1 and 3"));
  for (const std::int64_t count : {std::int64_t{-1}, std::int64_t{3}, INT64_MIN, INT64_MAX}) {
    CHECK(refused(txport_state_place(state.get(), count, nullptr, mine.get(), nullptr, nullptr), "count is "));
    CHECK(refused(txport_state_override(state.get(), count, nullptr, nullptr, nullptr), "count is "));
  }
  CHECK(refused(txport_state_step(state.get(), 65), "count is 65, which is not between 1 and 64"));
  REQUIRE(place({0, 1}, mine.get(), {0, 1}, {20, 20}) == TXPORT_OK);
  CHECK(refused(txport_state_step(state.get(), 0), "count is 0"));
  CHECK(refused(txport_state_step(state.get(), 9), "would pass the end of its cache"));
  REQUIRE(txport_state_step(state.get(), 1) == TXPORT_OK);
  CHECK(refused(place({0}, mine.get(), {0}, {5}), "were not read"));
  std::array<float, 80> logits{};
  CHECK(refused(txport_state_logits(state.get(), 2, kBoth.data(), logits.data()), "were not read"));
  CHECK(refused(txport_state_moved(state.get(), 2, kBoth.data(), 8, &made), "were not read"));
  Ids tokens(2);
  std::array<std::uint8_t, 2> finished{};
  std::int64_t steps = 0;
  REQUIRE(txport_state_read(state.get(), tokens.data(), 1, &steps, finished.data()) == TXPORT_OK);
  const Ids wrong{0, 40};
  CHECK(refused(txport_state_logits(state.get(), 2, wrong.data(), logits.data()), "rows is 40"));
  CHECK(refused(txport_state_logits(state.get(), 3, wrong.data(), logits.data()), "count is 3"));
  CHECK(refused(txport_state_override(state.get(), 2, kBoth.data(), wrong.data(), finished.data()), "token_ids is 40"));
  CHECK(refused(txport_state_override(state.get(), 1, wrong.data() + 1, kBoth.data(), finished.data()), "rows is 40"));
  CHECK(refused(txport_state_top(state.get(), 1, tokens.data(), logits.data(), nullptr), "without candidates"));
  CHECK(refused(txport_state_reorder(state.get(), 1, kBoth.data()), "count is 1, which is not between 2 and 2"));
  CHECK(refused(txport_state_reorder(state.get(), 2, wrong.data()), "rows is 40"));
  CHECK(refused(txport_state_moved(state.get(), 17, kBoth.data(), 8, &made), "count is 17"));
  CHECK(refused(txport_state_moved(state.get(), 2, wrong.data(), 8, &made), "rows is 40"));
  CHECK(refused(txport_state_step(nullptr, 1), "state is NULL"));
  CHECK(txport_state_step(state.get(), 1) == TXPORT_OK);
  txport_state_free(nullptr);
  txport_engine_memory_free(nullptr);
  txport_engine_close(nullptr);
}
