// trt.cpp over a TensorRT in host memory, which computes the model of memory_device.hpp and computes it twice, as
// TensorRT may. Where its headers are not found, this is not compiled.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "cuda_stream.hpp"
#include "device/beams.hpp"
#include "device/capture.hpp"
#include "engines/trt.hpp"
#include "errors.hpp"
#include "memory_device.hpp"
#include "moved_rows.hpp"
#include "nvinfer_stubs.hpp"
#include "repository.hpp"
#include "search/decoding.hpp"

using namespace memory;

namespace {

constexpr std::size_t kScratch = 5000;
// Outputs that tx-build adds to steps for TensorRT 8.6.
const std::vector<std::string> kExtra = {"self_scores_0", "self_scores_1"};

// What the library was asked for.
struct EngineRequest {
  nvinfer1::ILogger* log = nullptr;
  std::deque<DriverStream> streams;      // what was captured is in them
  std::map<void*, std::size_t> scratch;  // and the most bytes that were used of each
  std::map<void*, std::size_t> scores;   // and the most bytes that were written to each
  int contexts = 0;
  std::atomic<int> open = 0;  // contexts
  int with_memory = 0;        // contexts that would allocate it themselves
  int refused = 0;            // that many contexts more find no memory
};

EngineRequest& asked() {
  static auto* const one = new EngineRequest;
  return *one;
}

const Graph& graph_of(const std::string& role) {
  static const Manifest manifest = small_manifest();
  if (role == kBeams) return *manifest.optional_graph(kBeams);
  return role == kEncoder ? manifest.encoder() : manifest.step("scatter");
}

// One context, whose work is in the stream that it is given.
class ContextImpl : public ContextStubs {
 public:
  ContextImpl(std::string role, std::size_t scratch) : role_(std::move(role)), needed_(scratch) { ++asked().open; }
  ~ContextImpl() override { --asked().open; }

  bool setOptimizationProfileAsync(std::int32_t /*profile*/, cudaStream_t /*stream*/) noexcept override { return true; }
  bool setNvtxVerbosity(nvinfer1::ProfilingVerbosity verbosity) noexcept override {
    named_ = verbosity != nvinfer1::ProfilingVerbosity::kNONE;
    return true;
  }
#if NV_TENSORRT_MAJOR < 11
  void setDeviceMemory(void* memory) noexcept override { take(memory, needed_); }
#else
  void setDeviceMemoryV2(void* memory, std::int64_t size) noexcept override {
    take(memory, static_cast<std::size_t>(size));
  }
#endif
  bool setTensorAddress(char const* name, void* data) noexcept override {
    addresses_[name] = static_cast<std::byte*>(data);
    return data != nullptr;
  }
  bool setInputShape(char const* name, nvinfer1::Dims const& dims) noexcept override {
    shapes_[name] = std::vector<std::int64_t>(dims.d, dims.d + dims.nbDims);
    return true;
  }
  bool enqueueV3(cudaStream_t stream) noexcept override {
    const bool step = role_ != kEncoder;
    const std::int64_t beams = role_ == kBeams ? shapes_.at("token_ids")[1] : 1;
    const StepSizes sizes{shapes_.at(step ? "token_ids" : "input_ids")[0],
                          shapes_.at(step ? "cross_bias" : "input_ids").back(),
                          step ? shapes_.at("self_key_0")[2] / beams : 0, beams};
    DeviceTensors tensors = tensors_of(graph_of(role_), "int32", sizes);
    for (auto& [name, tensor] : tensors) {
      tensor.address = addresses_.at(name);
      require(shapes_.count(name) == 0 || shapes_.at(name) == tensor.shape, "a shape that does not fit the others");
    }
    require(scratch_ != nullptr && !named_, "a context without memory, or one that names its layers");
    std::vector<void*> scores;
    const std::int64_t heads = step ? shapes_.at("self_key_0")[1] : 0;
    const auto written = sizeof(float) * static_cast<std::size_t>(sizes.batch * heads * sizes.target);
    for (const std::string& name : role_ == kStep ? kExtra : std::vector<std::string>()) {
      std::size_t& most = asked().scores[scores.emplace_back(addresses_.at(name))];
      most = std::max(most, written);
    }
    asked().streams.emplace_back(stream).enqueue([=, scratch = scratch_, bytes = needed_] {
      std::memset(scratch, 0x55, bytes);
      const View view(tensors, sizes);
      if (!step) return run_encoder(view);
      for (int i = 0; i < 2; ++i) sizes.beams == 1 ? run_step(view, 1.0F) : run_beams(view, 1.0F);
      for (void* address : scores) std::memset(address, 0x55, written);
    });
    return true;
  }

 private:
  const std::string role_;
  const std::size_t needed_;
  void* scratch_ = nullptr;
  bool named_ = true;
  std::map<std::string, std::byte*> addresses_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;

  void take(void* memory, std::size_t bytes) {
    require(bytes >= needed_, "less memory than the context needs");
    scratch_ = memory;
    asked().scratch[memory] = std::max(asked().scratch[memory], bytes);
  }
};

// The object that callers hold, over its implementation.
template <typename Interface, typename Impl>
class Held : public Interface {
 public:
  template <typename... Arguments>
  explicit Held(Arguments&&... arguments) : impl_(std::forward<Arguments>(arguments)...) {
    this->mImpl = &impl_;
  }

 private:
  Impl impl_;
};

class EngineImpl : public EngineStubs {
 public:
  explicit EngineImpl(std::string role) : role_(std::move(role)) {
    for (const auto& [name, tensor] : tensors_of(graph_of(role_), "int32", {1, 1, 1})) {
      names_.push_back(name);
      types_[name] = tensor.dtype == "int32"  ? nvinfer1::DataType::kINT32
                     : tensor.dtype == "bool" ? nvinfer1::DataType::kBOOL
                                              : nvinfer1::DataType::kFLOAT;
    }
    for (const std::string& name : role_ == kStep ? kExtra : std::vector<std::string>()) {
      names_.push_back(name);
      types_[name] = nvinfer1::DataType::kFLOAT;
    }
  }

#if NV_TENSORRT_MAJOR == 8
  nvinfer1::IExecutionContext* createExecutionContextWithoutDeviceMemory() noexcept override { return made(true); }
  nvinfer1::IExecutionContext* createExecutionContext() noexcept override { return made(false); }
#else
  nvinfer1::IExecutionContext* createExecutionContext(
      nvinfer1::ExecutionContextAllocationStrategy strategy) noexcept override {
    return made(strategy == nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED);
  }
#endif
#if NV_TENSORRT_MAJOR < 11
  std::size_t getDeviceMemorySize() const noexcept override { return scratch(); }
#else
  std::int64_t getDeviceMemorySizeV2() const noexcept override { return static_cast<std::int64_t>(scratch()); }
#endif
  std::int32_t getNbIOTensors() const noexcept override { return static_cast<std::int32_t>(names_.size()); }
  char const* getIOTensorName(std::int32_t index) const noexcept override {
    return names_[static_cast<std::size_t>(index)].c_str();
  }
  nvinfer1::DataType getTensorDataType(char const* name) const noexcept override { return types_.at(name); }

 private:
  const std::string role_;
  std::vector<std::string> names_;
  std::map<std::string, nvinfer1::DataType> types_;

  std::size_t scratch() const { return role_ == "encoder" ? kScratch : kScratch / 2; }

  nvinfer1::IExecutionContext* made(bool by_caller) {
    asked().with_memory += by_caller ? 0 : 1;
    if (asked().refused > 0) {
      --asked().refused;
      asked().log->log(nvinfer1::ILogger::Severity::kERROR, "IExecutionContext creation failed");
      asked().log->log(nvinfer1::ILogger::Severity::kERROR, "Error Code 1: Cuda Runtime (out of memory)");
      return nullptr;
    }
    ++asked().contexts;
    return new Held<nvinfer1::IExecutionContext, ContextImpl>(role_, scratch());
  }
};

class RuntimeImpl : public RuntimeStubs {
 public:
  using RuntimeStubs::deserializeCudaEngine;
#if NV_TENSORRT_MAJOR == 8
  nvinfer1::ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size,
                                               nvinfer1::IPluginFactory* /*factory*/) noexcept override {
    return opened(blob, size);
  }
#else
  nvinfer1::ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept override {
    return opened(blob, size);
  }
#endif

 private:
  static nvinfer1::ICudaEngine* opened(void const* blob, std::size_t size) {
    return new Held<nvinfer1::ICudaEngine, EngineImpl>(std::string(static_cast<const char*>(blob), size));
  }
};

void* make_runtime(void* log) {
  asked().log = static_cast<nvinfer1::ILogger*>(log);
  return static_cast<nvinfer1::IRuntime*>(new Held<nvinfer1::IRuntime, RuntimeImpl>());
}

Profile profile(std::int64_t batch, std::int64_t target, std::optional<std::int64_t> beams = std::nullopt) {
  const auto range = [](std::int64_t most) { return Range{1, most, most}; };
  return {range(batch), range(MemoryProgram::kSource), target > 0 ? std::optional(range(target)) : std::nullopt, beams};
}

// An engine of each role in a directory, as tx-build leaves them; their files say what they are.
Built built_in(const std::filesystem::path& directory) {
  Built built{directory, {}};
  built.record.lowering = "scatter";
  built.record.id_type = "int32";
  built.record.engines = {
      {"encoder", "encoder", 0, "", {profile(1, 0), profile(8, 0)}},
      {"decoder_step", "decoder_step", 0, "", {profile(1, 64), profile(8, 64), profile(1, 128), profile(8, 128)}},
      {kBeams, "beams_of_2", 0, "", {profile(1, 64, 2), profile(4, 64, 2), profile(1, 128, 2), profile(4, 128, 2)}},
      {kBeams, "beams_of_4", 0, "", {profile(2, 64, 4), profile(2, 128, 4)}}};
  for (EngineFile& engine : built.record.engines) {
    std::ofstream(directory / engine.file) << engine.role;
    engine.bytes = static_cast<std::int64_t>(engine.role.size());
    engine.sha256 = sha256(engine.role);
  }
  return built;
}

std::unique_ptr<Engine> open_in(const std::filesystem::path& directory) {
  ::setenv("TXPORT_TENSORRT", TXPORT_TEST_NVINFER, 1);
  void* library = ::dlopen(TXPORT_TEST_NVINFER, RTLD_NOW);
  REQUIRE(library != nullptr);
  reinterpret_cast<void (*)(void* (*)(void*))>(::dlsym(library, "txport_test_nvinfer"))(make_runtime);
  asked().scratch.clear();
  asked().scores.clear();
  asked().contexts = asked().with_memory = 0;
  return open_trt(small_manifest(), built_in(directory), [](const std::string& said) { FAIL_CHECK(said); });
}

}  // namespace

TEST_CASE("CUDA: TensorRT's contexts share one block of memory, and answer as without a device" *
          doctest::skip(!runs_over("lazy"))) {
  const Scratch scratch;
  const auto before = left();
  auto engine = open_in(scratch.path());
  CHECK(engine->limits().batch == 8);
  for (std::uint32_t seed = 0; seed < 3; ++seed) check_same(*engine, 1.0F, 12, seed, seed == 1);
  check_moved_rows(*engine, 7, 4, kVocabulary - 1);
  CHECK(asked().contexts > 5);
  CHECK(asked().with_memory == 0);
  REQUIRE(asked().scratch.size() == 1);
  CHECK(asked().scratch.begin()->second == kScratch);
  // Scores are behind the temporaries, with room for the largest bucket: 8 rows, 128 positions.
  REQUIRE(asked().scores.size() == kExtra.size());
  const auto heads = static_cast<std::size_t>(small_manifest().model.heads);
  auto* end = static_cast<std::byte*>(asked().scratch.begin()->first) + kScratch;
  for (const auto& [address, bytes] : asked().scores) {
    CHECK(static_cast<std::byte*>(address) >= end);
    CHECK(bytes <= 4 * 8 * heads * 128);
    end = static_cast<std::byte*>(address) + 4 * 8 * heads * 128;
  }
  engine.reset();
  CHECK(left() == before);
}

// It may wait for the whole device then, which spoils a capture.
TEST_CASE("CUDA: TensorRT's contexts come and go while nothing is captured" * doctest::skip(!runs_over("lazy"))) {
  const Scratch scratch;
  auto engine = open_in(scratch.path());
  const auto during_a_capture = [](const auto& work) {
    std::unique_lock alone(whole_device());
    const int before = asked().open;
    std::thread other(work);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(asked().open == before);
    alone.unlock();
    other.join();
    CHECK(asked().open != before);
  };
  during_a_capture([&] { engine->allocate(1, 5, 32, {}); });
  during_a_capture([&] { engine.reset(); });
  CHECK(asked().open == 0);
}

TEST_CASE("CUDA: beams run on TensorRT's engines that were built for them" * doctest::skip(!runs_over("lazy"))) {
  const Scratch scratch;
  const auto engine = open_in(scratch.path());
  for (const std::int64_t beams : {2, 3, 4}) {
    CAPTURE(beams);
    const auto wide = static_cast<std::size_t>(beams);
    const auto state = engine->allocate(wide, 4, 32, {false, 2 * wide, wide});
    CHECK((dynamic_cast<DeviceBeams*>(&*state) != nullptr) == (beams != 3));
    std::vector<Request> asked = requests(12, 3);
    for (Request& request : asked) {
      request.search.beam = request.search.n_best = beams;
      request.min_length = 0;
    }
    const auto expected = decode_all(MemoryEngine(kLimits, 1, 1.0F), asked, {});
    const auto found = decode_all(*engine, asked, {});
    for (std::size_t i = 0; i < asked.size(); ++i) {
      REQUIRE(found[i].hypotheses.size() == expected[i].hypotheses.size());
      for (std::size_t n = 0; n < found[i].hypotheses.size(); ++n) {
        CHECK(found[i].hypotheses[n].ids == expected[i].hypotheses[n].ids);
        CHECK(*found[i].hypotheses[n].score == doctest::Approx(*expected[i].hypotheses[n].score).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("CUDA: a context that finds no memory ends nothing" * doctest::skip(!runs_over("lazy"))) {
  const Scratch scratch;
  const auto engine = open_in(scratch.path());
  engine->allocate(1, 5, 32, {});
  asked().refused = 1;
  CHECK_NOTHROW(engine->allocate(8, 5, 32, {}));
  asked().refused = 2;
  CHECK(fault_of<ResourceError>([&] { engine->allocate(8, 5, 100, {}); }).find("the GPU has no room for a batch") == 0);
  check_same(*engine, 1.0F, 12, 4, false);
}
