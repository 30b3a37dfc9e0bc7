// The fused engine against models in double precision, on every instruction set: all options, all sizes of padding, and
// the same ids whatever runs beside a sentence.

#include <doctest/doctest.h>
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "errors.hpp"
#include "fused/compute.hpp"
#include "fused/engine.hpp"
#include "fused/random_model.hpp"
#include "fused/state.hpp"
#include "fused/targets.hpp"
#include "fused/tuner.hpp"
#include "moved_rows.hpp"
#include "search/decoding.hpp"
#include "search/shared.hpp"

using namespace txport::core;
using random_model::RandomModel;

namespace {

// Opened as on this processor, since the slowest instruction set is refused, and then used with `target`.
std::unique_ptr<Engine> open(const RandomModel& model, int threads = 1, std::int64_t target = 0) {
  targets::use(0);
  auto engine = open_fused(model.file(), {threads, false});
  targets::use(target);
  return engine;
}

Ids random_ids(std::mt19937& random, std::size_t count, std::int64_t vocabulary) {
  Ids ids(count);
  for (auto& id : ids) id = 4 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocabulary - 4));
  return ids;
}

random_model::Options any_options(std::mt19937& random) {
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  random_model::Options options;
  options.norm = std::array{"post", "pre", "post_final"}[random() % 3];
  options.activation = std::array{"relu", "gelu", "gelu_tanh", "silu"}[random() % 4];
  options.biases = random() % 3 != 0;
  options.embedding_norm = random() % 2 == 0;
  options.tied = random() % 2 == 0;
  options.shared = random() % 2 == 0;
  options.some_float32 = random() % 2 == 0;
  options.float16 = random() % 4 == 0;
  options.heads = number(1, 5);
  options.head_dim = number(1, 40);
  options.ffn = number(1, 100);
  options.encoder_layers = number(1, 3);
  options.decoder_layers = number(1, 3);
  options.target_vocabulary = number(10, 90);
  options.rms = random() % 3 == 0;
  options.gated = random() % 3 == 0;
  options.relative = std::array{"", "stack", "layer"}[random() % 3];
  options.source_vocabulary = options.shared ? options.target_vocabulary : number(10, 90);
  return options;
}

// A source, tokens that are forced, and the logits of a model for each of them.
struct Forced {
  Ids source;
  Ids tokens;
  random_model::Rows logits;

  Forced(const RandomModel& model, std::mt19937& random)
      : source(random_ids(random, 1 + random() % 20, model.options.source_vocabulary)),
        tokens(random_ids(random, 20, model.options.target_vocabulary)),
        logits(model.logits(source, tokens)) {}
};

// Steps over a sentence; the logits must be the reference's, within `tolerance` times their own spread (root mean
// squares over all steps), and the choice the largest of them.
void check_logits(const Engine& engine, const Forced& forced, double tolerance) {
  const auto width = static_cast<std::int64_t>(forced.source.size());
  const auto state = engine.allocate(1, width, 24, {true});
  const auto other = engine.allocate(1, width, 24, {});  // its logits are computed when they are read
  for (const auto& each : {state.get(), other.get()}) {
    each->place({0}, *engine.encode(forced.source, {width}), {0}, {24});
  }
  double spread = 0;
  double error = 0;
  for (std::size_t step = 0; step < forced.tokens.size(); ++step) {
    CAPTURE(step);
    state->step(1);
    const std::int64_t choice = state->read().token_ids[0];
    const std::vector<float> found = state->logits(0);
    const random_model::Numbers& expected = forced.logits[step];
    REQUIRE(found.size() == expected.size());
    double mean = 0;
    for (const double logit : expected) mean += logit / static_cast<double>(expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      spread += (expected[i] - mean) * (expected[i] - mean);
      error += (found[i] - expected[i]) * (found[i] - expected[i]);
    }
    REQUIRE(choice == std::max_element(found.begin(), found.end()) - found.begin());
    double sum = 0;
    for (const float logit : found) sum += std::exp(static_cast<double>(logit));
    REQUIRE(state->log_probability(0, 5) == doctest::Approx(found[5] - std::log(sum)).epsilon(1e-5));
    other->step(1);
    other->read();
    REQUIRE(other->logits(0) == found);
    const Ids some{0, 1, engine.vocabulary() - 1, 5};
    REQUIRE(other->some_logits(0, some) == state->some_logits(0, some));
    for (const auto& each : {state.get(), other.get()}) each->override_tokens({0}, {forced.tokens[step]}, {false});
  }
  CHECK(std::sqrt(error) < tolerance * std::sqrt(spread));
}

// On every instruction set, for models of so many seeds from `first`.
void check_any_models(std::uint32_t first, bool int8, double tolerance) {
  for (std::uint32_t seed = first; seed < first + 12; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    random_model::Options options = any_options(random);
    options.int8 = int8;
    const RandomModel model(options, seed);
    const Forced forced(model, random);
    targets::on_each([&](std::int64_t target) {
      check_logits(*open(model, 1 + static_cast<int>(seed % 3), target), forced, tolerance);
    });
  }
}

// Answers of some sentences as one call of the greedy search.
std::vector<Ids> answers(const Engine& engine, const std::vector<Ids>& sources, SearchOptions options = {}) {
  std::vector<Request> requests;
  for (const Ids& source : sources) requests.push_back({source, 30, 0, {}});
  std::vector<Ids> result;
  for (Result& each : decode_all(engine, requests, options)) result.push_back(each.ids());
  return result;
}

// Callers of one sentence each share batches, and each has what one alone has, scores bit by bit.
void check_shared(const Engine& engine, const std::vector<Ids>& sources) {
  const SharedBatches shared(engine, {});
  std::vector<Result> found(sources.size());
  std::vector<std::thread> callers;
  const auto request = [&](std::size_t i) {
    Request asked{sources[i], 30, 0, {}};
    asked.scores = true;
    return std::vector<Request>{asked};
  };
  for (std::size_t i = 0; i < sources.size(); ++i) {
    callers.emplace_back([&, i] { found[i] = shared.decode(request(i)).front(); });
  }
  for (std::thread& caller : callers) caller.join();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Result alone = decode_all(engine, request(i), {}).front();
    CHECK(found[i].ids() == alone.ids());
    CHECK(found[i].scores() == alone.scores());
  }
}

}  // namespace

TEST_CASE("float32: the logits of random models of all options are the reference's") {
  check_any_models(0, false, 5e-5);
}

TEST_CASE("int8: the logits of random models of all options are those of the same quantisation") {
  // A number between two steps may be rounded to the other one, which LayerNorm of few numbers makes larger; and the
  // weights of attention are rounded to int8.
  check_any_models(100, true, 0.05);
}

// The logits of 4 steps of so many rows, all of them.
std::vector<float> all_logits(const Engine& engine, std::size_t rows, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto memory = engine.encode(random_ids(random, rows * 9, 40), Ids(rows, 9));
  const auto state = engine.allocate(rows, 9, 16, {true});
  std::vector<std::size_t> each(rows);
  std::iota(each.begin(), each.end(), std::size_t{0});
  state->place(each, *memory, each, Ids(rows, 16));
  std::vector<float> result;
  for (int step = 0; step < 4; ++step) {
    state->step(1);
    state->read();
    for (std::size_t row = 0; row < rows; ++row) {
      for (const float logit : state->logits(row)) result.push_back(logit);
    }
    state->override_tokens(each, random_ids(random, rows, 40), std::vector<bool>(rows));
  }
  REQUIRE(result.size() == 4 * rows * 40);
  return result;
}

TEST_CASE("processors of one instruction set give the same logits bit by bit, whatever int8 dot products they have") {
  for (const bool int8 : {false, true}) {
    random_model::Options options;
    options.int8 = int8;
    options.head_dim = 20;
    const RandomModel model(options, 5);
    std::map<std::int64_t, std::vector<float>> first;
    targets::on_each([&](std::int64_t target) {
      const std::vector<float> logits = all_logits(*open(model, 2, target), 7, 3);
      REQUIRE(first.emplace(target, logits).first->second == logits);
    });
  }
}

TEST_CASE("float16 weights give the logits of the same numbers as float32, bit by bit") {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    random_model::Options halves;
    halves.heads = 1 + seed % 3;
    halves.head_dim = 20;
    halves.encoder_layers = 1;
    halves.ffn = seed < 2 ? 50 : 30000 / halves.heads;  // small files become float32 as well
    halves.tied = halves.shared = seed % 2 == 0;
    halves.float16 = true;
    random_model::Options floats = halves;
    floats.float16 = false;
    floats.rounded = true;
    const RandomModel half(halves, seed);
    const RandomModel whole(floats, seed);
    REQUIRE((half.manifest.files.at(kWeightsName).bytes >= 4 << 20) == (seed >= 2));
    targets::on_each([&](std::int64_t target) {
      for (const auto rows : std::initializer_list<std::size_t>{1, 3, 16}) {
        REQUIRE(all_logits(*open(half, 2, target), rows, seed) == all_logits(*open(whole, 2, target), rows, seed));
      }
    });
  }
}

// Steps of a row with the logits stored, all of which are made then, and of one without.
void check_choices(const Engine& engine, const Ids& source) {
  const auto width = static_cast<std::int64_t>(source.size());
  const auto memory = engine.encode(source, {width});
  const auto all = engine.allocate(1, width, 24, {true});
  const auto few = engine.allocate(1, width, 24, {});
  for (DecoderState* state : {all.get(), few.get()}) state->place({0}, *memory, {0}, {24});
  for (int step = 0; step < 20; ++step) {
    CAPTURE(step);
    all->step(1);
    few->step(1);
    const std::int64_t expected = all->read().token_ids[0];
    const std::vector<float> logits = all->logits(0);
    REQUIRE(expected == std::max_element(logits.begin(), logits.end()) - logits.begin());
    REQUIRE(few->read().token_ids[0] == expected);
    const std::int64_t next = expected == engine.tokens().eos ? 5 : expected;
    for (DecoderState* state : {all.get(), few.get()}) state->override_tokens({0}, {next}, {false});
  }
}

// Makes the projection's tokens from 100 on those below, bit by bit or nearly, and one that may never come.
void repeat_tokens(const RandomModel& model, std::mt19937& random) {
  for (const Parameter& parameter : model.manifest.parameters->tensors) {
    if (parameter.name != "projection.weight" && parameter.name != "projection.bias") continue;
    std::fstream file(model.directory() / kWeightsName, std::ios::binary | std::ios::in | std::ios::out);
    const std::size_t size = parameter.dtype == "float16" ? 2 : 4;
    const bool matrix = parameter.shape.size() == 2;
    const auto at = [&](std::int64_t row, std::int64_t column) {
      const std::int64_t index = row * parameter.strides[0] + (matrix ? column * parameter.strides[1] : 0);
      return parameter.offset + index * static_cast<std::int64_t>(size);
    };
    for (std::int64_t row = 100; row < model.options.target_vocabulary; ++row) {
      for (std::int64_t column = 0; column < (matrix ? parameter.shape[1] : 1); ++column) {
        char number[4];
        file.seekg(at(row % 100, column));
        file.read(number, static_cast<std::streamsize>(size));
        if (matrix && row % 7 == 0) number[0] = static_cast<char>(number[0] ^ static_cast<char>(random() % 2));
        file.seekp(at(row, column));
        file.write(number, static_cast<std::streamsize>(size));
      }
    }
    const float never = -std::numeric_limits<float>::infinity();
    file.seekp(at(7, 0));
    if (!matrix && size == 4) file.write(reinterpret_cast<const char*>(&never), sizeof(never));
  }
}

TEST_CASE("float32: without logits the choice is the first of the largest, though few logits are made") {
  random_model::Options options;
  options.tied = false;
  options.shared = false;
  options.target_vocabulary = 700;
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    options.heads = 1 + seed % 3;
    options.float16 = seed % 2 == 1;
    options.biases = seed % 3 != 0;
    const RandomModel model(options, seed);
    std::mt19937 random(seed);
    repeat_tokens(model, random);
    const Ids source = random_ids(random, 9, options.source_vocabulary);
    targets::on_each([&](std::int64_t target) { check_choices(*open(model, 1 + seed % 3, target), source); });
  }
}

TEST_CASE("int8: without logits the choice of one row is the largest, of many words") {
  random_model::Options options;
  options.int8 = true;
  options.target_vocabulary = 45000;  // as many as have an int4 copy, which random weights make little of
  for (std::uint32_t seed = 0; seed < 2; ++seed) {
    CAPTURE(seed);
    options.heads = 3;
    options.tied = options.shared = seed % 2 == 0;
    options.source_vocabulary = options.shared ? options.target_vocabulary : 40;
    const RandomModel model(options, seed);
    std::mt19937 random(seed);
    targets::on_each([&](std::int64_t target) {
      for (int threads = 1; threads < 4; ++threads) {
        const Ids source = random_ids(random, 9, options.source_vocabulary);
        check_choices(*open(model, threads, target), source);
      }
    });
  }
}

TEST_CASE("a copy that rules little out is left aside, and tried again now and then") {
  fused::BoundsTuner tuner;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(tuner.choose());
    tuner.record(10, 100);
  }
  int tried = 0;
  for (int i = 0; i < 640; ++i) {
    if (!tuner.choose()) continue;
    ++tried;
    tuner.record(13, 100);
  }
  REQUIRE(tried == 10);
}

// What all logits of each row say, sorted as a whole.
Top sorted(DecoderState& state, std::size_t k) {
  Top top;
  for (std::size_t row = 0; row < state.rows(); ++row) {
    const std::vector<float> logits = state.logits(row);
    Ids ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto logit = [&](std::int64_t id) { return logits[static_cast<std::size_t>(id)]; };
    std::stable_sort(ids.begin(), ids.end(), [&](std::int64_t a, std::int64_t b) { return logit(a) > logit(b); });
    double sum = 0;
    for (const std::int64_t id : ids) sum += std::exp(static_cast<double>(logit(id)) - logit(ids[0]));
    top.normaliser.push_back(logit(ids[0]) + std::log(sum));
    ids.resize(k);
    for (const std::int64_t id : ids) top.logits.push_back(logit(id));
    top.token_ids.insert(top.token_ids.end(), ids.begin(), ids.end());
  }
  return top;
}

// Steps of some rows, with logits and without, for a random number of candidates.
void check_top(const Engine& engine, std::int64_t vocabulary, std::mt19937& random) {
  const std::size_t rows = 1 + random() % 6;
  const std::size_t most = 1 + random() % std::min<std::size_t>(64, static_cast<std::size_t>(vocabulary));
  CAPTURE(most);
  const auto memory = engine.encode(random_ids(random, rows * 9, 10), Ids(rows, 9));
  const auto all = engine.allocate(rows, 9, 16, {true, most});
  const auto few = engine.allocate(rows, 9, 16, {false, most});
  std::vector<std::size_t> each(rows);
  std::iota(each.begin(), each.end(), std::size_t{0});
  for (DecoderState* state : {all.get(), few.get()}) state->place(each, *memory, each, Ids(rows, 16));
  for (int step = 0; step < 3; ++step) {
    CAPTURE(step);
    const Ids next = random_ids(random, rows, 10);
    const std::size_t k = 1 + random() % most;
    Top expected;
    for (DecoderState* state : {all.get(), few.get()}) {
      state->step(1);
      const Ids chosen = state->read().token_ids;
      if (state == all.get()) expected = sorted(*state, k);
      const Top top = state->top(k);
      REQUIRE(top.token_ids == expected.token_ids);
      REQUIRE(top.logits == expected.logits);
      for (std::size_t row = 0; row < rows; ++row) {
        REQUIRE(top.normaliser[row] == doctest::Approx(expected.normaliser[row]).epsilon(1e-6));
        REQUIRE(top.token_ids[row * k] == chosen[row]);
      }
      state->override_tokens(each, next, std::vector<bool>(rows));
    }
  }
}

TEST_CASE("the best candidates are those of all logits, equal ones by their ids, and so is the normaliser") {
  random_model::Options options;
  options.tied = false;
  options.shared = false;
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    options.target_vocabulary = seed % 2 == 0 ? 700 : 12 + seed;
    options.int8 = seed % 3 == 2;
    options.float16 = seed % 3 == 1;
    const RandomModel model(options, seed);
    if (!options.int8) repeat_tokens(model, random);
    targets::on_each([&](std::int64_t target) {
      check_top(*open(model, 1 + static_cast<int>(random() % 3), target), options.target_vocabulary, random);
    });
  }
}

std::shared_ptr<const Ids> random_words(std::mt19937& random, std::int64_t vocabulary) {
  const std::size_t count = 1 + random() % static_cast<std::size_t>(random() % 2 == 0 ? 9 : vocabulary);
  std::set<std::int64_t> words;
  for (std::size_t i = 0; i < count; ++i) {
    words.insert(static_cast<std::int64_t>(random() % static_cast<std::size_t>(vocabulary)));
  }
  return std::make_shared<const Ids>(words.begin(), words.end());
}

// What a row's words, null for all, leave of its logits.
std::vector<float> masked(std::vector<float> logits, const std::shared_ptr<const Ids>& words) {
  if (words == nullptr) return logits;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (std::binary_search(words->begin(), words->end(), id)) continue;
    logits[id] = -std::numeric_limits<float>::infinity();
  }
  return logits;
}

// Steps of rows that choose among words of their own, but for some, next to those of rows that choose among all.
void check_words(const Engine& engine, std::int64_t vocabulary, std::mt19937& random) {
  const std::size_t rows = 1 + random() % 6;
  const auto memory = engine.encode(random_ids(random, rows * 9, 10), Ids(rows, 9));
  const auto all = engine.allocate(rows, 9, 16, {true, 0});
  const auto few = engine.allocate(rows, 9, 16, {});
  auto best = engine.allocate(rows, 9, 16, {random() % 2 == 0, 4});
  std::vector<std::size_t> each(rows);
  std::iota(each.begin(), each.end(), std::size_t{0});
  std::vector<std::shared_ptr<const Ids>> words(rows);
  for (DecoderState* state : {all.get(), few.get(), best.get()}) state->place(each, *memory, each, Ids(rows, 16));
  for (std::size_t row = 0; row < rows; ++row) {
    if (random() % 5 == 0) continue;  // of all words
    words[row] = random_words(random, vocabulary);
    for (DecoderState* state : {few.get(), best.get()}) state->restrict_rows({row}, {words[row]});
  }
  for (int step = 0; step < 4; ++step) {
    CAPTURE(step);
    for (DecoderState* state : {all.get(), few.get(), best.get()}) state->step(1);
    all->read();
    const Ids chosen = few->read().token_ids;
    REQUIRE(best->read().token_ids == chosen);
    const Top top = best->top(4);
    for (std::size_t row = 0; row < rows; ++row) {
      CAPTURE(row);
      const std::vector<float> expected = masked(all->logits(row), words[row]);
      REQUIRE(chosen[row] == std::max_element(expected.begin(), expected.end()) - expected.begin());
      REQUIRE(top.normaliser[row] == doctest::Approx(log_sum_exp(expected)).epsilon(1e-6));
      const Ids ids = best_ids(expected, 4);
      for (std::size_t i = 0; i < 4; ++i) {
        const float logit = expected[static_cast<std::size_t>(ids[i])];
        REQUIRE(top.logits[row * 4 + i] == logit);
        if (std::isfinite(logit)) REQUIRE(top.token_ids[row * 4 + i] == ids[i]);
      }
    }
    const Ids next = random_ids(random, rows, 10);
    for (DecoderState* state : {all.get(), few.get(), best.get()}) {
      state->override_tokens(each, next, std::vector<bool>(rows));
    }
    if (step == 1) best = best->resized(each, 16);
  }
}

TEST_CASE("rows choose the first of the largest logits of their own words, whatever words the others have") {
  random_model::Options options;
  options.tied = false;
  options.shared = false;
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    options.target_vocabulary = seed % 2 == 0 ? 700 : 12 + seed;
    options.int8 = seed % 3 == 2;
    options.float16 = seed % 3 == 1;
    const RandomModel model(options, seed);
    if (!options.int8) repeat_tokens(model, random);
    targets::on_each([&](std::int64_t target) {
      check_words(*open(model, 1 + static_cast<int>(random() % 3), target), options.target_vocabulary, random);
    });
  }
}

TEST_CASE("what a row's words give is the same bit by bit alone, in any batch and on any threads") {
  random_model::Options options;
  options.tied = false;
  options.shared = false;
  options.target_vocabulary = 1900;
  for (const bool int8 : {false, true}) {
    options.int8 = int8;
    const RandomModel model(options, 6);
    std::mt19937 random(6);
    std::vector<Request> requests;
    for (std::uint64_t key = 0; key < 12; ++key) {
      Request request;
      request.source_ids = random_ids(random, 1 + random() % 9, 10);
      request.max_length = 12;
      request.scores = true;
      request.key = key;
      request.search.shortlist = true;
      request.search.beam = 3;
      request.words = random_words(random, 1900);
      requests.push_back(request);
    }
    for (const int threads : {1, 2, 3}) {
      const auto engine = open(model, threads);
      const std::vector<Result> together = decode_all(*engine, requests, {});
      for (std::size_t i = 0; i < requests.size(); ++i) {
        const Result alone = decode_all(*engine, {requests[i]}, {}).front();
        REQUIRE(alone.ids() == together[i].ids());
        REQUIRE(alone.scores() == together[i].scores());
      }
    }
  }
}

TEST_CASE("the number of threads changes no bit of the normaliser") {
  random_model::Options options;
  options.tied = false;
  options.shared = false;
  options.target_vocabulary = 1900;
  const RandomModel model(options, 5);
  std::mt19937 random(5);
  const Ids ids = random_ids(random, 9, 10);
  std::vector<std::vector<double>> first;
  for (const int threads : {1, 2, 3, 5}) {
    CAPTURE(threads);
    const auto engine = open(model, threads);
    for (int run = 0; run < 20; ++run) {  // some on each number of threads that is tried
      CAPTURE(run);
      const auto state = engine->allocate(1, 9, 16, {false, 4});
      state->place({0}, *engine->encode(ids, {9}), {0}, {16});
      std::vector<std::vector<double>> normalisers;
      for (int step = 0; step < 8; ++step) {
        state->step(1);
        state->read();
        normalisers.push_back(state->top(4).normaliser);
      }
      if (first.empty()) first = normalisers;
      REQUIRE(normalisers == first);
    }
  }
}

TEST_CASE("a sentence gives the same ids alone, in any batch, on any threads and among several callers") {
  for (const bool int8 : {false, true}) {
    random_model::Options options;
    options.int8 = int8;
    options.heads = 3;
    options.head_dim = 20;
    options.shared = false;
    options.source_vocabulary = 60;
    options.target_vocabulary = int8 ? 60 : 30000;  // so large that threads share the rows of any batch here
    const RandomModel model(options, 5);
    std::mt19937 random(6);
    std::vector<Ids> sources;
    for (int i = 0; i < 20; ++i) sources.push_back(random_ids(random, 1 + random() % 40, 60));
    const auto one = open(model, 1);
    const auto three = open(model, 3);
    std::vector<Ids> alone;
    for (const Ids& source : sources) alone.push_back(answers(*one, {source})[0]);
    for (const std::int64_t rows : {2, 5, 16}) {
      CHECK(answers(*one, sources, {rows}) == alone);
      CHECK(answers(*three, sources, {rows}) == alone);
    }
    for (std::size_t i = 0; i < sources.size(); i += 7) CHECK(answers(*three, {sources[i]})[0] == alone[i]);
    SearchOptions side_by_side{4};
    side_by_side.workers = 4;
    CHECK(answers(*three, sources, side_by_side) == alone);
    std::vector<std::thread> callers;
    std::array<std::vector<Ids>, 4> found;
    for (std::size_t i = 0; i < found.size(); ++i) {
      callers.emplace_back([&, i] { found[i] = answers(*three, sources, {static_cast<std::int64_t>(3 * i + 1)}); });
    }
    for (std::thread& caller : callers) caller.join();
    for (const auto& each : found) CHECK(each == alone);
    check_shared(*three, sources);
  }
}

// Answers and scores, of three sentences at a time.
std::vector<Result> scored(const Engine& engine, const std::vector<Ids>& sources) {
  std::vector<Request> requests;
  for (const Ids& source : sources) {
    requests.push_back({source, 6, 0, {}});
    requests.back().scores = true;
  }
  return decode_all(engine, requests, {3});
}

// An engine that gives every call all of its threads, and takes the layers of its encoder for `large` ones, or not.
std::unique_ptr<Engine> always(const RandomModel& model, std::size_t threads, bool large) {
  auto shared = std::make_shared<fused::Shared>(model.file(), threads, threads);
  shared->model.layer_bytes = large ? std::size_t{64} << 20 : 0;
  for (std::size_t work = 1; work < 4096; work *= 2) {
    shared->step_tuner.record(work, threads, 1e-9);
    shared->encode_tuner.record(work, threads, 1e-9);
  }
  return fused::make_engine(std::move(shared), "any");
}

TEST_CASE("what comes out does not depend on the number of threads, fewer or more than heads or rows") {
  for (const bool int8 : {false, true}) {
    for (const std::int64_t heads : {1, 3, 8}) {
      random_model::Options options;
      options.int8 = int8;
      options.heads = heads;
      options.head_dim = 20;
      options.norm = heads == 3 ? "pre" : "post";
      options.gated = heads == 8;
      options.decoder_layers = 2;
      const RandomModel model(options, 5);
      std::mt19937 random(6);
      std::vector<Ids> sources;
      for (int i = 0; i < 5; ++i) sources.push_back(random_ids(random, 1 + random() % 40, 40));
      const std::vector<Result> one = scored(*open(model, 1), sources);
      for (const std::size_t threads : {2U, 3U, 5U, 12U, 64U}) {
        if (threads == 64 && !(int8 && heads == 3)) continue;  // they wait for the cores
        CAPTURE(threads);
        CAPTURE(heads);
        for (const bool large : {false, true}) {
          const auto many = always(model, threads, large);
          const std::vector<Result> found = scored(*many, sources);
          for (std::size_t i = 0; i < sources.size(); ++i) {
            CHECK(found[i].ids() == one[i].ids());
            CHECK(found[i].scores() == one[i].scores());
          }
          CHECK(scored(*many, {sources[0]})[0].scores() == one[0].scores());
        }
      }
    }
  }
}

TEST_CASE("threads share out tokens in order, and four positions of a sentence are always one thread's") {
  const RandomModel random_model({}, 3);
  fused::Team team(1);
  const fused::Model model(random_model.file(), team);
  const fused::Workspace workspace;
  std::mt19937 random(1);
  for (std::size_t threads = 1; threads < 9; ++threads) {
    std::vector<fused::Source> sources(1 + random() % 6);
    fused::EncodeJob job{model, workspace};
    job.sources = sources.data();
    job.count = sources.size();
    for (fused::Source& source : sources) job.tokens += source.length = 1 + random() % 20;
    std::size_t sentence = 0;
    std::size_t position = 0;
    std::size_t before = 0;
    for (std::size_t rank = 0; rank < threads; ++rank) {
      std::vector<fused::SourceToken> tokens(job.tokens);
      const auto mine = fused::share_tokens(job, {nullptr, rank, threads}, tokens.data());
      REQUIRE(mine.begin == before);
      before = mine.end;
      REQUIRE(mine.end - mine.begin <= fused::most_tokens(job.tokens, threads));
      for (std::size_t i = 0; i < mine.end - mine.begin; ++i) {
        REQUIRE(tokens[i].sentence == sentence);
        REQUIRE(tokens[i].position == position);
        if (i == 0) REQUIRE(position % 4 == 0);
        position = (position + 1) % sources[sentence].length;
        sentence += position == 0 ? 1 : 0;
      }
    }
    REQUIRE(before == job.tokens);
  }
}

TEST_CASE("rows that move go on as before, with each instruction set") {
  random_model::Options options;
  options.target_vocabulary = options.source_vocabulary = 40;
  for (const bool int8 : {false, true}) {
    options.int8 = int8;
    const RandomModel model(options, 9);
    targets::on_each([&](std::int64_t target) {
      for (std::uint32_t seed = 0; seed < 10; ++seed) {
        memory::check_moved_rows(*open(model, 1 + static_cast<int>(seed % 3), target), seed, 4, 39);
      }
    });
  }
}

#ifndef _WIN32
TEST_CASE("a process that was forked works alone, and its engine can be closed") {
  const RandomModel model({}, 3);
  std::mt19937 random(1);
  const std::vector<Ids> sources{random_ids(random, 9, 40), random_ids(random, 4, 40)};
  auto engine = open(model, 3);
  const std::vector<Ids> expected = answers(*engine, sources);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool same = answers(*engine, sources) == expected;
    engine.reset();
    ::_exit(same ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(answers(*engine, sources) == expected);
}

#endif

TEST_CASE("what the engine cannot do is said in one sentence") {
  const RandomModel model({}, 3);
  Manifest without = model.manifest;
  without.parameters.reset();
  CHECK(fault_of<EngineError>([&] { without.model_file(model.directory()); }) ==
        "the fused engine cannot run " + model.directory().string() +
            ": its manifest has no table of parameters (export it again)");
  CHECK(fault_of<BundleError>([&] { open_fused(model.manifest.model_file(model.directory() / "none"), {1}); }) ==
        (model.directory() / "none" / kWeightsName).string() +
            " cannot be mapped into memory: copy or export the bundle again");
  const auto engine = open(model);
  const auto state = engine->allocate(1, 4, 8, {});
  state->place({0}, *engine->encode({4, 5, 6, 7}, {4}), {0}, {40});
  CHECK(fault_of<InputError>([&] { state->step(9); }) ==
        "a row would pass the end of its cache of 8 tokens: move the rows to longer ones first");
  CHECK(fault_of<InputError>([&] { state->top(1); }) ==
        "the state was allocated with the best 0 candidates of each row, and 1 are asked for");
  CHECK(fault_of<InputError>([&] { state->read(); }) == "there is nothing to read: step first");
}

// Writes over the first element of a tensor of a model.
template <typename T>
void damage(const RandomModel& model, const std::string& name, T value) {
  for (const Parameter& parameter : model.manifest.parameters->tensors) {
    if (parameter.name != name) continue;
    std::fstream file(model.directory() / kWeightsName, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(parameter.offset);
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
    return;
  }
  FAIL(name);
}

TEST_CASE("weights that no instruction set or not all of them can use are refused") {
  const auto refusal = [](const RandomModel& model) {
    return (model.directory() / kWeightsName).string() +
           " has weights that are not finite numbers, or int8 weights of -128: export the bundle again";
  };
  random_model::Options options;
  options.embedding_norm = true;
  options.shared = false;
  options.tied = false;
  for (const char* name :
       {"source_embedding.tokens.weight", "source_embedding.positions", "source_embedding.norm.weight",
        "target_embedding.tokens.weight", "target_embedding.positions", "target_embedding.norm.bias",
        "encoder.0.attention_residual.norm.weight", "decoder.0.feed_forward_residual.norm.bias",
        "decoder.0.feed_forward.outer.weight", "decoder.0.feed_forward.outer.bias", "projection.weight"}) {
    CAPTURE(name);
    const RandomModel model(options, 3);
    open(model);
    damage(model, name, std::numeric_limits<float>::quiet_NaN());
    CHECK(fault_of<BundleError>([&] { open(model); }) == refusal(model));
  }
  options.int8 = true;
  for (const char* name : {"decoder.0.feed_forward.outer.weight", "source_embedding.tokens.weight"}) {
    const RandomModel model(options, 3);
    open(model);
    damage(model, name, std::int8_t{-128});
    CHECK(fault_of<BundleError>([&] { open(model); }) == refusal(model));
  }
}

TEST_CASE("what happens to the file of weights after opening changes nothing") {
  for (const bool tied : {false, true}) {
    random_model::Options options;
    options.tied = options.shared = tied;
    options.float16 = tied;
    const RandomModel model(options, 3);
    const auto path = model.directory() / kWeightsName;
    std::mt19937 random(1);
    const std::vector<Ids> sources{random_ids(random, 9, 40), random_ids(random, 4, 40)};
    const std::vector<Ids> expected = answers(*open(model), sources);
    const auto engine = open(model);
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << std::string(5000, 'x');
    std::filesystem::resize_file(path, 5000);
    CHECK(answers(*engine, sources) == expected);
    CHECK(fault_of<BundleError>([&] { open(model); }) ==
          path.string() + " has 5000 bytes instead of " + std::to_string(model.manifest.files.at(kWeightsName).bytes) +
              ": copy or export the bundle again");
  }
}

TEST_CASE("a small file does not become any amount of memory") {
  random_model::Options options;
  options.ffn = 12000;
  options.heads = 1;
  options.encoder_layers = 1;
  const RandomModel model(options, 3);
  Manifest many = model.manifest;
  many.model.encoder_layers = 100;
  for (const Parameter& parameter : model.manifest.parameters->tensors) {
    for (int i = 1; i < 100 && parameter.name.rfind("encoder.0.", 0) == 0; ++i) {
      many.parameters->tensors.push_back(parameter);
      many.parameters->tensors.back().name.replace(8, 1, std::to_string(i));
    }
  }
  const ModelFile file = many.model_file(model.directory());
  check_model(file);
  const std::string fault = fault_of<BundleError>([&] { open_fused(file, {1}); });
  CHECK(fault.find(" in memory, since tensors share them: export the bundle again") != std::string::npos);
}

TEST_CASE("threads that wait for each other too long are given up, and tried again ever more rarely") {
  fused::ThreadTuner tuner(6);
  const auto run = [&](const std::function<double(std::size_t)>& seconds) {
    std::array<int, 7> calls{};
    for (int i = 0; i < 4000; ++i) {
      const std::size_t threads = tuner.choose(5);
      ++calls.at(threads);
      tuner.record(5, threads, seconds(threads));
    }
    return calls;
  };
  const auto idle = run([](std::size_t threads) { return 1.0 / static_cast<double>(threads); });
  CHECK(idle[6] > 3800);
  const auto busy = run([](std::size_t threads) { return static_cast<double>(threads * threads); });
  CHECK(busy[1] > 3800);
  CHECK(busy[6] > 0);
  CHECK(run([](std::size_t threads) { return threads == 2 ? 1.0 : 2.0; })[2] > 2000);
  CHECK(fused::ThreadTuner(1).choose(3) == 1);
  // Beside busy neighbours, threads that wait for each other took a thousand times as long as one.
  fused::ThreadTuner beside(2);
  double total = 0;
  for (int i = 0; i < 100000; ++i) {
    const std::size_t threads = beside.choose(5);
    const double seconds = threads == 1 ? 1 : 1000;
    total += seconds;
    beside.record(5, threads, seconds);
  }
  CHECK(total < 1.05 * 100000);
}
