// The state on a device, over a device in memory: its answers are those of an engine that is written without one.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>

#include "device/cuda.hpp"
#include "device/gpu.hpp"
#include "engines/choice.hpp"
#include "engines/ort_cuda.hpp"
#include "errors.hpp"
#include "memory_device.hpp"
#include "moved_rows.hpp"
#include "repository.hpp"
#include "search/decoding.hpp"

using namespace memory;

namespace {

struct Made {
  std::unique_ptr<Heap> heap;
  MemoryProgram* program = nullptr;
  std::unique_ptr<Engine> engine = nullptr;
};

Made device_engine(float eos_weight, const std::string& id_type, bool captured, const std::string& lowering = "scatter",
                   std::size_t capacity = std::size_t{1} << 40, bool in_order = true, bool copies = false,
                   bool features = false) {
  Made made{std::make_unique<Heap>(capacity)};
  const auto device = std::make_shared<MemoryDevice>(*made.heap);
  auto program = std::make_unique<MemoryProgram>(*device, eos_weight, captured, in_order);
  made.program = program.get();
  made.engine = make_device_engine(small_manifest(copies, features),
                                   {"memory", kLimits, id_type, lowering, device, std::move(program), nullptr});
  return made;
}

}  // namespace

TEST_CASE("answers on a device are those without one") {
  for (const std::string id_type : {"int32", "int64"}) {
    for (const bool captured : {true, false}) {
      const Made made = device_engine(1.0F, id_type, captured);
      for (std::uint32_t seed = 0; seed < 4; ++seed) check_same(*made.engine, 1.0F, 12, seed, seed % 2 == 1);
    }
  }
  const Made made = device_engine(-2.0F, "int64", true, "tensorscatter");  // long answers: moves to longer caches
  check_same(*made.engine, -2.0F, 6, 9, false);
}

TEST_CASE("a library that computes twice what it reads once answers as one that does not") {
  for (const bool captured : {true, false}) {
    const Made made =
        device_engine(0.5F, captured ? "int32" : "int64", captured, "scatter", std::size_t{1} << 40, false);
    for (std::uint32_t seed = 0; seed < 3; ++seed) check_same(*made.engine, 0.5F, 12, seed, seed == 2);
    check_moved_rows(*made.engine, 3, 4, kVocabulary - 1);
  }
}

TEST_CASE("rows keep the ids of their source where the model copies") {
  for (const char* id_type : {"int32", "int64"}) {
    const Made made = device_engine(0.5F, id_type, true, "scatter", std::size_t{1} << 40, true, true);
    for (std::uint32_t seed = 0; seed < 3; ++seed) check_same(*made.engine, 0.5F, 12, seed, seed == 2);
    check_moved_rows(*made.engine, 3, 4, kVocabulary - 1);
  }
}

TEST_CASE("vectors on a device are read as the ids that they hold") {
  for (const char* id_type : {"int32", "int64"}) {
    for (const bool in_order : {true, false}) {
      const Made made = device_engine(0.5F, id_type, true, "scatter", std::size_t{1} << 40, in_order, false, true);
      for (std::uint32_t seed = 0; seed < 3; ++seed) {
        const std::vector<Request> asked = requests(12, seed);
        for (const std::int64_t rows : {1, 3, 8}) {
          const auto expected = decode_all(MemoryEngine(kLimits, 1, 0.5F), asked, {rows});
          const auto found = decode_all(*made.engine, reading_vectors(asked), {rows});
          REQUIRE(found.size() == expected.size());
          for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i].ids() == expected[i].ids());
        }
      }
    }
  }
}

TEST_CASE("memory that runs out while a step is prepared ends nothing") {
  const Made made = device_engine(1.0F, "int32", true);
  const auto idle = [&] { made.engine->allocate(4, 48, 128, {}); };
  idle();
  const std::size_t before = made.heap->blocks();
  made.program->refused = 1;
  made.engine->allocate(8, 48, 128, {});  // the second try is in the place of what was idle
  CHECK(made.heap->blocks() == before);
  made.program->refused = 2;
  const std::string fault = fault_of<ResourceError>([&] { made.engine->allocate(4, 48, 64, {}); });
  CHECK(fault.find("the GPU has no room for a batch of 4 rows of 48 source and 64 target tokens") == 0);
  CHECK(made.heap->blocks() == 0);
  check_same(*made.engine, 1.0F, 8, 1, false);
}

TEST_CASE("buffers are used again, and freed with their engine") {
  Made made = device_engine(1.0F, "int32", true);
  check_same(*made.engine, 1.0F, 8, 1, false);
  const int bound = made.program->bound;
  const std::size_t blocks = made.heap->blocks();
  check_same(*made.engine, 1.0F, 8, 1, false);
  CHECK(made.program->bound == bound);
  CHECK(made.heap->blocks() == blocks);
  made.engine.reset();
  CHECK(made.heap->blocks() == 0);
}

TEST_CASE("steps that a batch left behind are done before its buffers go") {
  Made made = device_engine(-99.0F, "int32", true);
  {
    const auto state = made.engine->allocate(1, 2, 64, {});
    state->step(4);
    state->step(4);  // nobody reads
  }
  made.engine.reset();
  CHECK(made.heap->blocks() == 0);
}

TEST_CASE("a move within a bucket copies nothing") {
  const Made made = device_engine(-2.0F, "int64", true);
  const auto memory = made.engine->encode({5, 6, 7, 8, 9, 4}, {2, 2, 2});
  auto state = made.engine->allocate(3, 2, 32, {});
  CHECK(state->target() == 64);
  CHECK(state->source() == 2);
  state->place({0, 1, 2}, *memory, {2, 1, 0}, {100, 100, 100});
  state->step(20);
  const Ids before = state->read().token_ids;
  REQUIRE(before.size() == 60);
  const int bound = made.program->bound;
  state = state->resized({2, 0}, 40);
  CHECK(made.program->bound == bound);
  CHECK(state->rows() == 2);
  state->step(3);
  const Ids after = state->read().token_ids;
  // The same rows alone, from the start.
  auto alone = made.engine->allocate(2, 2, 32, {});
  alone->place({0, 1}, *memory, {0, 2}, {100, 100});
  alone->step(23);
  const Ids whole = alone->read().token_ids;
  CHECK(Ids(whole.end() - 6, whole.end()) == after);
}

TEST_CASE("rows that repeat go on as if each were alone") {
  for (const bool captured : {true, false}) {
    const Made made = device_engine(0.0F, captured ? "int32" : "int64", captured);
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      CAPTURE(seed);
      check_moved_rows(*made.engine, seed, 4, kVocabulary - 1);
    }
  }
}

TEST_CASE("rows that are left out of a move within a bucket do not run past their caches") {
  const Made made = device_engine(-99.0F, "int32", true);
  const auto memory = made.engine->encode({5, 6, 7, 8}, {2, 2});
  auto state = made.engine->allocate(3, 2, 64, {});
  state->place({0}, *memory, {0}, {100});
  state->step(30);
  state->read();
  state->place({1}, *memory, {1}, {100});
  state = state->resized({1, 1}, 64);
  state->step(60);  // row 0 would be at 90
  CHECK(state->read().token_ids.size() == 120);
}

TEST_CASE("when the device's memory is exhausted, idle buffers are freed, and then the message says what would fit") {
  std::size_t alone = 0;
  {
    const Made made = device_engine(1.0F, "int32", true);
    const std::size_t free = made.heap->free_bytes();
    made.engine->allocate(8, 48, 128, {});
    alone = free - made.heap->free_bytes();
  }
  const Made made = device_engine(1.0F, "int32", true, "scatter", alone + alone / 4);
  made.engine->allocate(4, 48, 128, {});
  CHECK_NOTHROW(made.engine->allocate(8, 48, 128, {}));  // in the place of the others
  const auto held = made.engine->allocate(4, 48, 128, {});
  const std::string fault = fault_of<ResourceError>([&] { made.engine->allocate(8, 48, 128, {}); });
  CHECK(fault.find("the GPU has no room for a batch of 8 rows of 48 source and 128 target tokens: ") == 0);
  CHECK(fault.find("a batch of 4 would fit") != std::string::npos);
  CHECK_NOTHROW(made.engine->allocate(4, 48, 128, {}));  // nothing is lost
  const Made tiny = device_engine(1.0F, "int32", true, "scatter", 100);
  CHECK(fault_of<ResourceError>([&] {
          tiny.engine->encode({5, 6}, {2});
        }).find("use a smaller batch") != std::string::npos);
  CHECK(fault_of<ResourceError>([&] { tiny.engine->allocate(1, 2, 32, {}); }).find("not even one row would fit") !=
        std::string::npos);
}

TEST_CASE("a device that has failed is not used any more") {
  const Made made = device_engine(1.0F, "int32", true);
  const auto memory = made.engine->encode({5, 6}, {2});
  const auto state = made.engine->allocate(1, 2, 32, {});
  made.heap->fail();
  CHECK(fault_of<EngineError>([&] {
          state->place({0}, *memory, {0}, {10});
          state->step(1);
          state->read();
        }).find("CUDA failed in") == 0);
  const std::string expected = "the GPU failed before (CUDA failed in cuStreamSynchronize: an illegal address)";
  CHECK(fault_of<EngineError>([&] { state->step(1); }).find(expected) == 0);
  CHECK(fault_of<EngineError>([&] { made.engine->encode({5, 6}, {2}); }).find(expected) == 0);
  CHECK(fault_of<EngineError>([&] { made.engine->allocate(1, 2, 32, {}); }).find(expected) == 0);
}

TEST_CASE("a row that was never placed makes pad") {
  const Made made = device_engine(1.0F, "int32", true);
  auto state = made.engine->allocate(2, 4, 32, {true});
  state->place({1}, *made.engine->encode({5, 6}, {2}), {0}, {10});
  state->step(2);
  const StepOutput output = state->read();
  CHECK(output.token_ids[0] == kTokens.pad);
  CHECK(output.token_ids[2] == kTokens.pad);
  CHECK(output.finished[0]);
}

TEST_CASE("threads share an engine on a device") {
  const Made made = device_engine(1.0F, "int64", true);
  const std::vector<Request> asked = requests(10, 3);
  const auto expected = decode_all(MemoryEngine(kLimits, 1, 1.0F), asked, {});
  std::array<bool, 4> same{};
  std::vector<std::thread> threads;
  for (bool& one : same) {
    threads.emplace_back([&] {
      const auto found = decode_all(*made.engine, asked, {});
      one = std::equal(found.begin(), found.end(), expected.begin(),
                       [](const Result& first, const Result& second) { return first.ids() == second.ids(); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool one : same) CHECK(one);
}

TEST_CASE("ONNX Runtime over a device's buffers answers as over its own") {
  const Manifest manifest = Manifest::load(kToyBundle);
  std::mt19937 random(5);
  std::vector<Request> asked(20);
  for (Request& request : asked) {
    const auto vocabulary = static_cast<std::uint32_t>(manifest.model.source_vocabulary);
    for (auto left = random() % 20; left > 0; --left) {
      request.source_ids.push_back(static_cast<std::int64_t>(4 + random() % (vocabulary - 4)));
    }
    request.source_ids.push_back(manifest.tokens.eos);
    if (random() % 3 == 0) request.min_length = 3;
  }
  for (const std::string lowering : {"ort", "scatter", "tensorscatter"}) {
    Choice choice = choose(kToyBundle, manifest, {"cpu", "auto", lowering});
    const auto plain = open_engine(kToyBundle, manifest, choice, {1}, nullptr);
    Heap heap;
    {
      const auto device = std::make_shared<MemoryDevice>(heap, false);
      const auto engine = open_ort_on(device, kToyBundle, manifest, choice, nullptr);
      CHECK(engine->name() == plain->name());
      for (const bool scores : {false, true}) {
        const SearchOptions options{5};
        for (Request& request : asked) request.scores = scores;
        const auto expected = decode_all(*plain, asked, options);
        const auto found = decode_all(*engine, asked, options);
        for (std::size_t i = 0; i < asked.size(); ++i) {
          CHECK(found[i].ids() == expected[i].ids());
          CHECK(found[i].scores().has_value() == scores);
          for (std::size_t k = 0; scores && k < found[i].ids().size(); ++k) {
            CHECK((*found[i].scores())[k] == doctest::Approx((*expected[i].scores())[k]).epsilon(1e-4));
          }
        }
      }
    }
    CHECK(heap.blocks() == 0);
  }
}

TEST_CASE("ONNX Runtime on a device answers vectors as on the host") {
  const Manifest manifest = Manifest::load(kFeatureBundle);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<Request> asked(20);
  for (Request& request : asked) {
    FloatMatrix vectors{1 + random() % 20, static_cast<std::size_t>(*manifest.model.feature_size), {}};
    for (std::size_t i = 0; i < vectors.rows * vectors.columns; ++i) vectors.values.push_back(normal(random));
    request.vectors = std::make_shared<const FloatMatrix>(std::move(vectors));
  }
  for (const std::string lowering : {"ort", "scatter"}) {
    Choice choice = choose(kFeatureBundle, manifest, {"cpu", "auto", lowering});
    const auto plain = open_engine(kFeatureBundle, manifest, choice, {1}, nullptr);
    Heap heap;
    const auto device = std::make_shared<MemoryDevice>(heap, false);
    const auto engine = open_ort_on(device, kFeatureBundle, manifest, choice, nullptr);
    for (const std::int64_t beam : {1, 3}) {
      for (Request& request : asked) request.search.beam = beam;
      const auto expected = decode_all(*plain, asked, {6});
      const auto found = decode_all(*engine, asked, {6});
      for (std::size_t i = 0; i < asked.size(); ++i) CHECK(found[i].ids() == expected[i].ids());
    }
  }
}

TEST_CASE("a GPU is chosen for vectors as for ids") {
  const Manifest manifest = Manifest::load(kFeatureBundle);
  Machine machine;
  machine.gpu = [] { return Gpu{"NVIDIA H200", "9.0"}; };
  machine.cuda_provider = [] { return true; };
  const Choice automatic = choose(kFeatureBundle, manifest, {}, machine);
  CHECK(automatic.device == "cuda");
  CHECK(automatic.lowerings == std::vector<std::string>{"scatter"});
  CHECK(choose(kFeatureBundle, manifest, {"cuda", "auto", ""}).device == "cuda");
}

TEST_CASE("devices that are not here" * doctest::skip(std::holds_alternative<Gpu>(find_gpu())) *
          doctest::description("needs a machine without a GPU")) {
  const Manifest manifest = Manifest::load(kToyBundle);
  CHECK(choose(kToyBundle, manifest, {}).device == "cpu");
  CHECK(fault_of<MissingLibrary>([&] {
          choose(kToyBundle, manifest, {"auto", "trt", ""});
        }).find("use") != std::string::npos);
  const std::string fault = fault_of<MissingLibrary>([] { cuda_device(); });
  CHECK(fault.find("CUDA cannot be used here") == 0);
  Choice asked = choose(kToyBundle, manifest, {"cuda", "auto", ""});
  CHECK(fault_of<MissingLibrary>([&] { open_engine(kToyBundle, manifest, asked, {}, nullptr); }).find("CUDA") !=
        std::string::npos);
  // A GPU that is gone when it is needed: the CPU takes its place, and the choice says so.
  Machine machine;
  machine.gpu = [] { return Gpu{"NVIDIA H200", "9.0"}; };
  machine.cuda_provider = [] { return true; };
  Choice automatic = choose(kToyBundle, manifest, {}, machine);
  CHECK(automatic.reason.find("auto chose ONNX Runtime on NVIDIA H200 (9.0): ") == 0);
  std::vector<std::string> warnings;
  open_engine(kToyBundle, manifest, automatic, {1}, [&](const std::string& warning) { warnings.push_back(warning); });
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("; the CPU is used instead") != std::string::npos);
  CHECK(automatic.device == "cpu");
  CHECK(automatic.reason.find("auto chose the CPU: ONNX Runtime cannot use the GPU; ") == 0);
}

TEST_CASE("the width of source buffers") {
  CHECK(source_bucket(1, 256) == 32);
  CHECK(source_bucket(33, 256) == 64);
  CHECK(source_bucket(200, 200) == 200);
}
