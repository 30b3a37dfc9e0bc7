// Beams on a device, over a device in memory: no cache is copied, and answers are those of an engine without one.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "device/beams.hpp"
#include "engines/choice.hpp"
#include "engines/ort_cuda.hpp"
#include "memory_device.hpp"
#include "search/decoding.hpp"
#include "search/greedy_oracle.hpp"

using namespace memory;

namespace {

struct Made {
  std::unique_ptr<Heap> heap = std::make_unique<Heap>();
  std::shared_ptr<MemoryDevice> device = nullptr;
  MemoryProgram* program = nullptr;
  std::unique_ptr<Engine> engine = nullptr;
};

Made made_on(const std::string& id_type, bool captured, bool in_order = true, float eos_weight = 0.5F,
             bool features = false) {
  Made made;
  made.device = std::make_shared<MemoryDevice>(*made.heap);
  auto program = std::make_unique<MemoryProgram>(*made.device, eos_weight, captured, in_order);
  made.program = program.get();
  made.engine = make_device_engine(small_manifest(false, features),
                                   {"memory", kLimits, id_type, "scatter", made.device, std::move(program), nullptr});
  return made;
}

bool is_near(double one, double other) { return std::abs(one - other) < 1e-4; }

void check_same(const std::vector<Result>& found, const std::vector<Result>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    REQUIRE(found[i].hypotheses.size() == expected[i].hypotheses.size());
    for (std::size_t n = 0; n < found[i].hypotheses.size(); ++n) {
      const Hypothesis& one = found[i].hypotheses[n];
      const Hypothesis& other = expected[i].hypotheses[n];
      CHECK(one.ids == other.ids);
      CHECK(one.score.has_value() == other.score.has_value());
      if (one.score) CHECK(is_near(*one.score, *other.score));
      CHECK(one.scores->size() == other.scores->size());
      for (std::size_t k = 0; k < one.scores->size(); ++k) CHECK(is_near((*one.scores)[k], (*other.scores)[k]));
    }
  }
}

Search search_of(Draw& draw) {
  Search search;
  search.beam = draw.number(2, 4);
  search.n_best = 2;
  search.length_penalty = draw.one_of<double>({0, 1});
  search.early_stopping =
      draw.one_of<EarlyStopping>({EarlyStopping::kFalse, EarlyStopping::kTrue, EarlyStopping::kNever});
  if (draw.number(0, 2) == 0) search.rules.no_repeat_ngram = 2;
  if (draw.number(0, 2) == 0) search.rules.end_ids = {7};
  if (draw.number(0, 3) == 0) {
    search = {};
    search.alternatives = draw.number(2, 4);
  }
  return search;
}

// Requests that are refilled into few rows, of one search.
std::vector<Request> requests_of(Draw& draw, std::int64_t words, std::int64_t eos) {
  std::vector<Request> asked(static_cast<std::size_t>(draw.number(1, 7)));
  const Search search = search_of(draw);
  for (Request& request : asked) {
    request.source_ids = draw.ids(4, words, 9);
    request.source_ids.push_back(eos);
    request.max_length = draw.one_of<std::int64_t>({1, 5, 33, 70});
    if (draw.number(0, 1) == 1) request.prefix = {8};
    request.scores = true;
    request.search = search;
  }
  return asked;
}

// Two sentences of `beams` rows, of which the second is placed.
std::unique_ptr<DecoderState> begun(const Engine& engine, std::size_t beams, std::size_t top = 8) {
  auto state = engine.allocate(2 * beams, 4, 32, {false, top, beams});
  state->place({beams}, *engine.encode({5, 7, 9, kTokens.eos}, {4}), {0}, {128});
  return state;
}

void check_top(const Top& found, const Top& expected, std::size_t row, std::size_t k) {
  for (std::size_t i = row * k; i < (row + 1) * k; ++i) {
    CHECK(found.token_ids[i] == expected.token_ids[i]);
    CHECK(is_near(found.logits[i] - found.normaliser[row], expected.logits[i] - expected.normaliser[row]));
  }
}

}  // namespace

TEST_CASE("beams of any batch on a device are those of each sentence alone") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const Made made = made_on(seed % 2 == 0 ? "int32" : "int64", seed % 3 > 0, seed % 5 > 0);
    const std::vector<Request> asked = requests_of(draw, kVocabulary - 1, kTokens.eos);
    const std::vector<Result> expected = decode_all(MemoryEngine(kLimits, 1, 0.5F), asked, {});
    for (const std::int64_t rows : {1, 2, 8}) check_same(decode_all(*made.engine, asked, {rows}), expected);
    const Made reader = made_on("int64", true, true, 0.5F, true);
    check_same(decode_all(*reader.engine, reading_vectors(asked), {3}), expected);
  }
}

TEST_CASE("reordering copies nothing, and a step of beams exchanges two blocks") {
  const Made made = made_on("int64", true);
  const auto state = begun(*made.engine, 4);
  REQUIRE(dynamic_cast<DeviceBeams*>(&*state) != nullptr);
  state->step(1);
  state->read();  // the step is captured by then
  const std::size_t copies = made.device->copies;
  const std::size_t enqueued = made.device->enqueued();
  for (int turn = 0; turn < 20; ++turn) {
    state->reorder({0, 1, 2, 3, 4, 4, 7, 4});
    state->override_tokens({4, 5, 6, 7}, {5, 6, 7, 8}, {false, false, false, false});
    state->step(1);
    state->read();
  }
  CHECK(made.device->copies == copies);
  CHECK(made.device->enqueued() == enqueued + std::size_t{20} * 3);  // an upload, the step and a download
}

TEST_CASE("beams fork and move at random as rows do") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const auto beams = static_cast<std::size_t>(draw.number(2, 4));
    const Made made = made_on("int32", seed % 2 == 0);
    const MemoryEngine oracle(kLimits, 1, 0.5F);
    std::array<std::unique_ptr<DecoderState>, 2> states{begun(*made.engine, beams), begun(oracle, beams)};
    std::vector<bool> placed{false, true};
    for (std::size_t turn = 0; turn < 40; ++turn) {
      if (turn % 5 == 4) {
        std::vector<std::size_t> order{
            static_cast<std::size_t>(std::find(placed.begin(), placed.end(), true) - placed.begin())};
        for (std::int64_t more = draw.number(0, static_cast<std::int64_t>(8 / beams) - 1); more > 0; --more) {
          order.push_back(static_cast<std::size_t>(draw.number(0, static_cast<std::int64_t>(placed.size()) - 1)));
        }
        std::vector<std::size_t> rows;
        std::vector<bool> now;
        for (const std::size_t sentence : order) {
          now.push_back(placed[sentence]);
          for (std::size_t beam = 0; beam < beams; ++beam) rows.push_back(sentence * beams + beam);
        }
        placed = now;
        for (auto& state : states) state = state->resized(rows, static_cast<std::int64_t>(turn) * 2 + 32);
      }
      for (auto& state : states) {
        state->step(1);
        state->read();
      }
      const Top found = states[0]->top(2 * beams);
      const Top expected = states[1]->top(2 * beams);
      std::vector<std::size_t> forks;
      std::vector<std::size_t> working;
      Ids tokens;
      for (std::size_t row = 0; row < placed.size() * beams; ++row) {
        const bool first = row % beams == 0;
        const std::size_t fork = turn == 0 ? 0 : static_cast<std::size_t>(draw.number(0, 100)) % beams;
        forks.push_back(row / beams * beams + fork);
        if (!placed[row / beams]) continue;
        if (turn > 0 || first) check_top(found, expected, row, 2 * beams);
        working.push_back(row);
        tokens.push_back(draw.number(4, kVocabulary - 1));
      }
      for (auto& state : states) {
        state->reorder(forks);
        state->override_tokens(working, tokens, std::vector<bool>(working.size()));
      }
    }
  }
}

TEST_CASE("groups of steps and more candidates than the step of beams gives") {
  const Made made = made_on("int32", true, true, -99.0F);
  const MemoryEngine oracle(kLimits, 4, -99.0F);
  const auto state = begun(*made.engine, 2);
  const auto expected = begun(oracle, 2, kVocabulary);
  for (const auto* each : {&state, &expected}) {
    (*each)->step(3);
    (*each)->step(1);
  }
  for (int group = 0; group < 2; ++group) {
    const StepOutput one = state->read();
    const StepOutput other = expected->read();
    REQUIRE(one.token_ids.size() == other.token_ids.size());
    for (std::size_t i = 2; i < one.token_ids.size(); i += 4) CHECK(one.token_ids[i] == other.token_ids[i]);
    CHECK(one.finished[2] == other.finished[2]);
  }
  for (const std::size_t k : {std::size_t{4}, kVocabulary}) check_top(state->top(k), expected->top(k), 2, k);
}

TEST_CASE("without the step of beam search a device gathers caches") {
  const Made made = made_on("int32", true);
  made.program->has_beams = false;
  CHECK(dynamic_cast<DeviceBeams*>(&*made.engine->allocate(4, 4, 32, {false, 4, 2})) == nullptr);
  Draw draw(1);
  const std::vector<Request> asked = requests_of(draw, kVocabulary - 1, kTokens.eos);
  check_same(decode_all(*made.engine, asked, {}), decode_all(MemoryEngine(kLimits, 1, 0.5F), asked, {}));
}

// tests/cpp/test_search_cpp.py names a bundle, which takes PyTorch to make.
TEST_CASE("ONNX Runtime's beams over a device's buffers are those over its own" *
          doctest::skip(std::getenv("TXPORT_TEST_BEAMS") == nullptr) * doctest::description("needs a bundle")) {
  const std::filesystem::path bundle = std::getenv("TXPORT_TEST_BEAMS");
  const Manifest manifest = Manifest::load(bundle);
  REQUIRE(manifest.optional_graph(kBeams) != nullptr);
  Choice choice = choose(bundle, manifest, {"cpu", "auto", "scatter"});
  const auto plain = open_engine(bundle, manifest, choice, {1}, nullptr);
  Heap heap;
  {
    const auto device = std::make_shared<MemoryDevice>(heap, false);
    const auto engine = open_ort_on(device, bundle, manifest, choice, nullptr);
    REQUIRE(dynamic_cast<DeviceBeams*>(&*engine->allocate(4, 4, 32, {false, 4, 2})) != nullptr);
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      CAPTURE(seed);
      Draw draw(seed);
      const std::vector<Request> asked = requests_of(draw, 90, manifest.tokens.eos);
      for (const std::int64_t rows : {1, 4}) {
        check_same(decode_all(*engine, asked, {rows}), decode_all(*plain, asked, {rows}));
      }
    }
  }
  CHECK(heap.blocks() == 0);
}
