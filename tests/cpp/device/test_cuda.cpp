// cuda.cpp over a driver in host memory, tests/cpp/cuda_driver.cpp, which ctest puts in the place of libcuda.so.1.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <shared_mutex>
#include <thread>
#include <utility>

#include "bundle/interface.hpp"
#include "cuda_stream.hpp"
#include "device/capture.hpp"
#include "device/cuda.hpp"
#include "engines/ort.hpp"
#include "engines/ort_cuda.hpp"
#include "errors.hpp"
#include "memory_device.hpp"
#include "moved_rows.hpp"
#include "repository.hpp"
#include "search/decoding.hpp"

using namespace memory;

namespace {

// The model on CUDA's device; `stream` must outlive the engine.
std::unique_ptr<Engine> driver_engine(const std::shared_ptr<Device>& device, DriverStream& stream,
                                      const std::string& id_type, std::function<void(const std::string&)> warn) {
  return make_device_engine(small_manifest(), {"driver", kLimits, id_type, "scatter", device,
                                               std::make_unique<MemoryProgram>(stream, 1.0F, true), std::move(warn)});
}

using Bytes = std::vector<unsigned char>;

Bytes downloaded(Device& device, const std::byte* from, std::size_t bytes) {
  Bytes found(bytes);
  device.download(found.data(), from, bytes);
  device.synchronize();
  return found;
}

}  // namespace

TEST_CASE("CUDA: copies, patterns and capturing do what they say" * doctest::skip(!runs_over("lazy"))) {
  const auto before = left();
  const DriverThat driver;
  SUBCASE("as drivers do") {}
  // As cuda.h says of pitches that are not cuMemAllocPitch's, and of larger ones than a device's limit.
  SUBCASE("where pitches are refused") { DriverThat::takes_pitches(kMaxPitch, 512); }
  SUBCASE("where pitches are too large") { DriverThat::takes_pitches(3, 1); }
  {
    const auto device = cuda_device();
    const std::size_t free_memory = device->free_memory();
    std::byte* first = device->allocate(4096);
    CHECK(device->free_memory() < free_memory);
    std::byte* second = device->allocate(4096);
    Bytes given(4096);
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<unsigned char>(i * 7 + i / 256);
    const Bytes original = given;
    device->upload(first, given.data(), given.size());
    std::fill(given.begin(), given.end(), static_cast<unsigned char>(0));  // it was copied already
    CHECK(downloaded(*device, first, 4096) == original);

    device->fill({second}, 0, 4096);
    device->copy({second + 10, 100}, {first + 3, 64}, 48, 5);
    device->copy({second + 2000}, {first}, 7);
    device->copy({second + 2048, 20, 200}, {first, 16, 64}, 9, 3, 4);
    Bytes expected(4096);
    const auto expect = [&](std::size_t to, std::size_t from, std::size_t bytes) {
      std::copy_n(original.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(to));
    };
    for (std::size_t row = 0; row < 5; ++row) expect(10 + row * 100, 3 + row * 64, 48);
    expect(2000, 0, 7);
    for (std::size_t at = 0; at < 12; ++at) expect(2048 + at % 3 * 20 + at / 3 * 200, at % 3 * 16 + at / 3 * 64, 9);
    CHECK(downloaded(*device, second, 4096) == expected);

    device->fill({second, 5}, 0xC7, 2, 3);
    CHECK(downloaded(*device, second, 13) == Bytes{0xC7, 0xC7, 0, 0, 0, 0xC7, 0xC7, 0, 0, 0, 0xC7, 0xC7, expected[12]});

    // Page-locked memory is read when the stream gets there, and complete after an event.
    std::byte* pinned = device->allocate_host(256);
    const auto event = device->create_event();
    pinned[0] = std::byte{1};
    device->upload(first, pinned, 1);
    pinned[0] = std::byte{2};
    device->download(pinned + 1, first, 1);
    event->record();
    device->fill({first}, 3, 1);
    event->synchronize();
    CHECK(pinned[1] == std::byte{2});
    device->free_host(pinned);

    device->fill({second}, 1, 16);
    device->synchronize();
    std::string fault;
    const auto replay = device->capture([&] { device->copy({second + 1}, {second}, 1); }, fault);
    CHECK(fault.empty());
    device->fill({second}, 9, 1);
    CHECK(downloaded(*device, second, 2) == Bytes{9, 1});  // nothing was done by capturing
    replay();
    replay();
    CHECK(downloaded(*device, second, 3) == Bytes{9, 9, 1});
    CHECK(fault_of<ResourceError>([&] { device->allocate(std::size_t{1} << 46); }).find("the GPU has no room for") ==
          0);
    device->free(first);
    device->free(second);
  }
  CHECK(left() == before);
}

TEST_CASE("CUDA: what cannot be captured runs as it is" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  std::byte* place = device->allocate(256);
  int runs = 0;
  std::string fault;
  const auto work = device->capture(
      [&] {
        ++runs;
        device->fill({place}, 3, 256);
        device->synchronize();
      },
      fault);
  CHECK(fault.find("CUDA failed in cuStreamSynchronize") == 0);
  CHECK(runs == 1);
  work();
  CHECK(runs == 2);
  CHECK(downloaded(*device, place, 2) == Bytes{3, 3});
  device->free(place);
}

TEST_CASE("CUDA: a capture that allocates is replayed all the same" * doctest::skip(!runs_over("lazy"))) {
  // What a library takes in the order of a stream, and does not give back: the next replay frees it.
  const auto device = cuda_device();
  std::byte* place = device->allocate(256);
  std::string fault;
  const auto replay = device->capture(
      [&] {
        using Allocate = int (*)(unsigned long long*, std::size_t, void*);
        unsigned long long address = 0;
        CHECK(driver_function<Allocate>("cuMemAllocAsync")(&address, 256, device->stream()) == 0);
        auto* taken = reinterpret_cast<std::byte*>(address);
        device->fill({taken}, 7, 256);
        device->copy({place}, {taken}, 256);
      },
      fault);
  CHECK(fault.empty());
  for (int i = 0; i < 3; ++i) replay();
  CHECK(downloaded(*device, place, 2) == Bytes{7, 7});
  device->free(place);
}

TEST_CASE("CUDA: an event of a capture is not waited for" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  const auto event = device->create_event();
  std::string fault;
  device->capture([&] { event->record(); }, fault);
  CHECK(fault_of<EngineError>([&] { event->synchronize(); }) == "CUDA failed in cuEventSynchronize: error 907");
  event->record();
  event->synchronize();
}

TEST_CASE("CUDA: what a fill starts at is aligned to its items, in the driver of these tests" *
          doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  const auto place = reinterpret_cast<unsigned long long>(device->allocate(256));
  using Wide = int (*)(unsigned long long, unsigned, std::size_t, void*);
  using Narrow = int (*)(unsigned long long, unsigned short, std::size_t, void*);
  CHECK(driver_function<Wide>("cuMemsetD32Async")(place + 2, 0, 4, device->stream()) == 1);
  CHECK(driver_function<Wide>("cuMemsetD32Async")(place + 4, 0, 4, device->stream()) == 0);
  CHECK(driver_function<Narrow>("cuMemsetD16Async")(place + 1, 0, 4, device->stream()) == 1);
  device->free(reinterpret_cast<std::byte*>(place));
}

TEST_CASE("CUDA: a device that is lost fails for good" * doctest::skip(!runs_over("lazy"))) {
  // Uncorrectable memory, a wild address, a launch that failed, and what the driver cannot name: at any later call.
  for (const int code : {214, 700, 719, 999}) {
    for (const char* call : {"cuGraphLaunch", "cuEventSynchronize", "cuMemcpyHtoDAsync", "cuMemAlloc"}) {
      CAPTURE(code);
      CAPTURE(call);
      const DriverThat driver;
      const auto device = cuda_device();
      DriverStream stream(device->stream());
      const auto engine = driver_engine(device, stream, "int64", nullptr);
      check_same(*engine, 1.0F, 2, 0, false);
      DriverThat::fails(call, code);
      const std::vector<Request> asked = requests(12, 5);
      const std::string first = fault_of<EngineError>([&] { decode_all(*engine, asked, {8}); });
      CHECK(first.find(std::string("CUDA failed in ") + call + ": error " + std::to_string(code)) == 0);
      const std::string later = fault_of<EngineError>([&] { decode_all(*engine, asked, {8}); });
      CHECK(later.find("the GPU failed before") == 0);
    }
  }
}

TEST_CASE("CUDA: memory that runs out in a call ends nothing" * doctest::skip(!runs_over("lazy"))) {
  // CUDA loads kernels when they are first launched, and a graph takes memory of its own.
  const auto device = cuda_device();
  DriverStream stream(device->stream());
  const auto engine = driver_engine(device, stream, "int64", [](const std::string& said) { FAIL_CHECK(said); });
  const DriverThat driver;
  DriverThat::fails("cuGraphInstantiateWithFlags", 2);  // there is room when what is idle has been freed
  check_same(*engine, 1.0F, 12, 0, false);
  DriverThat::fails("cuGraphLaunch", 2);
  CHECK(fault_of<ResourceError>([&] { check_same(*engine, 1.0F, 12, 0, false); }) ==
        "CUDA failed in cuGraphLaunch: error 2");
  check_same(*engine, 1.0F, 12, 0, false);
}

TEST_CASE("CUDA: another process may take memory that was free a moment ago" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  DriverStream stream(device->stream());
  const auto engine = driver_engine(device, stream, "int64", nullptr);
  {
    const DriverThat driver;
    DriverThat::has_others_taking(std::size_t{1} << 31);
    CHECK(device->free_memory() > 0);
    CHECK(fault_of<ResourceError>([&] { check_same(*engine, 1.0F, 12, 0, false); }).find("the GPU has no room") == 0);
  }
  check_same(*engine, 1.0F, 12, 0, false);
}

TEST_CASE("CUDA: any thread may use a device" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  std::byte* place = device->allocate(256);
  std::string fault;
  std::thread([&] {
    try {
      device->fill({place}, 5, 256);
      device->synchronize();
    } catch (const std::exception& error) {
      fault = error.what();
    }
  }).join();
  CHECK(fault.empty());
  CHECK(downloaded(*device, place, 1) == Bytes{5});
  std::thread([&] { device->free(place); }).join();
}

TEST_CASE("CUDA: a capture ends whatever its work throws" * doctest::skip(!runs_over("lazy"))) {
  const auto before = left();
  {
    const auto device = cuda_device();
    std::byte* place = device->allocate(256);
    std::string fault;
    const auto refuse = [&] {
      device->fill({place}, 1, 256);
      throw ResourceError("no memory for a workspace");
    };
    CHECK(fault_of<ResourceError>([&] { device->capture(refuse, fault); }) == "no memory for a workspace");
    device->fill({place}, 7, 256);  // the stream is as before
    CHECK(downloaded(*device, place, 1) == Bytes{7});
    device->free(place);
  }
  CHECK(left() == before);
}

TEST_CASE("CUDA: what was captured is freed in a thread that has no context" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  std::byte* place = device->allocate(256);
  std::string fault;
  const auto before = left();
  auto replay = device->capture([&] { device->fill({place}, 1, 256); }, fault);
  auto event = device->create_event();
  std::thread([&] {
    replay = nullptr;
    event = nullptr;
  }).join();
  CHECK(left() == before);
  device->free(place);
}

TEST_CASE("CUDA: answers on the device are those without one" * doctest::skip(!runs_over("lazy"))) {
  const auto before = left();
  for (const std::string id_type : {"int32", "int64"}) {
    const auto device = cuda_device();
    DriverStream stream(device->stream());
    const auto engine = driver_engine(device, stream, id_type, [](const std::string& said) { FAIL_CHECK(said); });
    for (std::uint32_t seed = 0; seed < 3; ++seed) check_same(*engine, 1.0F, 12, seed, seed == 1);
    check_moved_rows(*engine, 7, 4, kVocabulary - 1);
  }
  CHECK(left() == before);
}

TEST_CASE("CUDA: rows are placed, moved and read in few calls, however many they are" *
          doctest::skip(!runs_over("lazy"))) {
  // As many layers as the base preset has.
  class Idle : public Program {
   public:
    StepSizes bucket(const StepSizes& /*asked*/) const override { return {32, 32, 64}; }
    std::function<void()> bind(const DeviceTensors& /*tensors*/, const StepSizes& /*sizes*/) const override {
      return [] {};
    }
    void encode(const DeviceTensors& /*tensors*/, const StepSizes& /*sizes*/) const override {}
    bool can_be_captured() const override { return true; }
    bool runs_in_order() const override { return true; }
  };
  Manifest manifest = small_manifest();
  manifest.model.decoder_layers = 6;
  for (Graph& graph : manifest.graphs) {
    const Interface made = interface_of(graph.role, manifest.model, "float32");
    graph.inputs = made.inputs;
    graph.outputs = made.outputs;
    graph.aliases = made.aliases;
  }
  const auto engine = make_device_engine(
      manifest, {"driver", {32, 32, 64}, "int64", "scatter", cuda_device(), std::make_unique<Idle>(), nullptr});
  const auto memory = engine->encode(Ids(std::size_t{32} * 20, 5), Ids(32, 20));
  auto state = engine->allocate(32, 20, 64, {});
  std::vector<std::size_t> all(32);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const auto calls_of = [](const std::function<void()>& work) {
    const auto before = calls();
    work();
    return calls() - before;
  };
  constexpr int kUpload = 3;  // wait for an earlier one, copy, event
  // Caches, keys and values, twice the bias, and the state. These were 1345 and 43.
  CHECK(calls_of([&] { state->place(all, *memory, all, Ids(32, 60)); }) == 5 + kUpload);
  CHECK(calls_of([&] { state->place({3}, *memory, {3}, {60}); }) == 5 + kUpload);
  state->step(4);  // captured
  state->read();
  CHECK(calls_of([&] { state->step(4); }) == 3);  // launch; poll, event
  CHECK(calls_of([&] { state->read(); }) == 1);
  CHECK(calls_of([&] { state->override_tokens(all, Ids(32, 5), std::vector<bool>(32)); }) == kUpload);        // was 68
  CHECK(calls_of([&] { state = state->resized(std::vector<std::size_t>(32, 0), 64); }) == 31 * 3 + kUpload);  // was 899
}

TEST_CASE("CUDA: steps that cannot be captured are launched one by one, and said once" *
          doctest::skip(!runs_over("lazy"))) {
  class Waiting : public DriverStream {
   public:
    explicit Waiting(Device& device) : DriverStream(device.stream()), device_(device) {}
    void enqueue(std::function<void()> command) override {
      DriverStream::enqueue(std::move(command));
      device_.synchronize();
    }

   private:
    Device& device_;
  };
  std::vector<std::string> warnings;
  const auto device = cuda_device();
  Waiting stream(*device);
  const auto engine =
      driver_engine(device, stream, "int64", [&](const std::string& warning) { warnings.push_back(warning); });
  check_same(*engine, 1.0F, 12, 0, false);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("without CUDA graphs: CUDA failed in cuStreamSynchronize") != std::string::npos);
}

TEST_CASE("CUDA: a capture in which a library allocates is tried again, and others go on" *
          doctest::skip(!runs_over("lazy"))) {
  class Allocating : public DriverStream {
   public:
    Allocating(Device& device, int refusals) : DriverStream(device.stream()), device_(device), refusals_(refusals) {}
    void enqueue(std::function<void()> command) override {
      DriverStream::enqueue(std::move(command));
      if (refusals_ == 0) return;
      try {
        device_.free(device_.allocate(1));
      } catch (const EngineError&) {
        --refusals_;
        throw ResourceError("Failed to allocate memory for requested buffer");
      }
    }

   private:
    Device& device_;
    int refusals_;
  };
  for (const int refusals : {1, 4, 5, 10}) {
    std::vector<std::string> warnings;
    const auto device = cuda_device();
    Allocating stream(*device, refusals);
    const auto engine =
        driver_engine(device, stream, "int64", [&](const std::string& warning) { warnings.push_back(warning); });
    check_same(*engine, 1.0F, 12, 0, false);
    REQUIRE(warnings.size() == (refusals < 5 ? 0 : 1));
    CHECK((refusals < 5 || warnings[0] == "steps are launched one by one, without CUDA graphs: Failed to allocate "
                                          "memory for requested buffer"));
  }
}

TEST_CASE("CUDA: who waits for the whole device spoils a capture, unless the library knows of it" *
          doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  std::byte* place = device->allocate(256);
  const auto wait = driver_function<int (*)()>("cuCtxSynchronize");
  const auto wait_apart = [&] {
    int result = 0;
    std::thread([&] {
      device->free_memory();  // makes the context current
      result = wait();
    }).join();
    return result;
  };
  std::string fault;
  int refused = 0;
  StepGroups spoilt(
      *device, [&](std::size_t /*slot*/) { refused += wait_apart() == 900 ? 1 : 0; },
      [&](const std::string& said) { fault = said; });
  for (int i = 0; i < 6; ++i) spoilt.launch(1);
  CHECK(refused == 5);
  CHECK(fault.find("cuStreamEndCapture") != std::string::npos);

  std::atomic<bool> stop = false;
  std::atomic<int> failures = 0;
  std::thread other([&] {
    while (!stop) {
      const std::shared_lock uncaptured(whole_device());
      failures += wait_apart() != 0 ? 1 : 0;
    }
  });
  for (int i = 0; i < 100; ++i) {
    StepGroups steps(
        *device, [&](std::size_t /*slot*/) { device->fill({place}, 1, 256); },
        [&](const std::string& said) { fault = said; });
    fault.clear();
    for (std::size_t count = 1; count < 6; ++count) steps.launch(count);
    device->synchronize();
    CHECK(fault.empty());
  }
  stop = true;
  other.join();
  CHECK(failures == 0);
}

TEST_CASE("CUDA: a forked process fails instead of waiting for a thread of its parent" *
          doctest::skip(!runs_over("lazy"))) {
  // A thread that has locked everything: it captures a step.
  class Held : public DriverStream {
   public:
    explicit Held(Device& device) : DriverStream(device.stream()), device_(device) {}
    void enqueue(std::function<void()> command) override {
      DriverStream::enqueue(std::move(command));
      int capturing = 0;
      driver_function<int (*)(void*, int*)>("cuStreamIsCapturing")(device_.stream(), &capturing);
      if (capturing == 0 || std::exchange(was_held_, true)) return;
      reached.set_value();
      released.get_future().wait();
    }
    std::promise<void> reached;
    std::promise<void> released;

   private:
    Device& device_;
    bool was_held_ = false;
  };
  const auto device = cuda_device();
  Held stream(*device);
  auto engine = driver_engine(device, stream, "int64", [](const std::string& said) { FAIL_CHECK(said); });
  const std::vector<Request> asked = requests(3, 5);
  std::thread other([&] { decode_all(*engine, asked, {8}); });
  stream.reached.get_future().wait();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    const std::string fault = fault_of<EngineError>([&] { decode_all(*engine, asked, {8}); });
    engine = nullptr;
    ::_exit(fault.find("this process was forked after the GPU was used: use posix_spawn") == 0 ? 0 : 1);
  }
  stream.released.set_value();
  other.join();
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  check_same(*engine, 1.0F, 3, 0, false);
}

TEST_CASE("CUDA: a forked process leaves what its parent has leased" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  DriverStream stream(device->stream());
  const auto engine = driver_engine(device, stream, "int64", [](const std::string& said) { FAIL_CHECK(said); });
  auto state = engine->allocate(2, 5, 9, {});
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    state = nullptr;  // as when an exception ends a call in whose callback a program forks
    ::_exit(0);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("CUDA: work that comes often is captured, and replayed from then on" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  std::byte* places = device->allocate(512);
  std::array<int, 2> called{};
  CapturedRuns runs(*device, 3, nullptr);
  for (int i = 0; i < 7; ++i) {
    device->fill({places}, 0, 512);
    for (std::size_t key = 0; key < 2; ++key) {
      runs.launch({places, static_cast<std::int64_t>(key), 0}, [&] {
        ++called[key];
        device->fill({places + 256 * key}, static_cast<unsigned char>(key + 1), 256);
      });
    }
    const Bytes found = downloaded(*device, places, 512);
    CHECK((found.front() == 1 && found.back() == 2));
  }
  CHECK(called == std::array<int, 2>{3, 3});
  // A key that is forgotten for later ones starts anew.
  for (std::int64_t other = 1; other < 70; ++other) {
    runs.launch({places, 2, other}, [&] { device->fill({places}, 9, 512); });
  }
  runs.launch({places, 0, 0}, [&] { ++called[0]; });
  CHECK(called[0] == 4);
  // What cannot be captured runs as it is; a few failures end the trying.
  int refused = 0;
  for (int i = 0; i < 12; ++i) {
    runs.launch({places, 3, 3}, [&] {
      try {
        device->synchronize();
      } catch (const EngineError&) {
        ++refused;
        throw;
      }
    });
  }
  CHECK(refused == 5);
}

TEST_CASE("CUDA: rows are filled however far they are apart" * doctest::skip(!runs_over("lazy"))) {
  // The driver takes less as a pitch: 1 MiB here, 2 GiB on a GPU.
  constexpr std::size_t kPitch = (std::size_t{1} << 20) + 256;
  const auto device = cuda_device();
  std::byte* place = device->allocate(3 * kPitch);
  device->fill({place}, 1, 3 * kPitch);
  device->fill({place + 256, kPitch}, 2, 100, 3);
  const Bytes found = downloaded(*device, place, 3 * kPitch);
  for (std::size_t row = 0; row < 3; ++row) {
    const auto start = found.begin() + static_cast<std::ptrdiff_t>(row * kPitch);
    CHECK(std::count(start, start + static_cast<std::ptrdiff_t>(kPitch), 2) == 100);
    CHECK((start[255] == 1 && start[256] == 2 && start[355] == 2 && start[356] == 1));
  }
  device->free(place);
}

TEST_CASE("CUDA: ONNX Runtime over the device's buffers answers as over its own" * doctest::skip(!runs_over("eager"))) {
  const Manifest manifest = Manifest::load(kToyBundle);
  std::vector<Request> asked(12);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    for (std::size_t t = 0; t < i * 5 % 13; ++t) {
      asked[i].source_ids.push_back(static_cast<std::int64_t>(4 + (i * 31 + t * 17) % 90));
    }
    asked[i].source_ids.push_back(manifest.tokens.eos);
  }
  const auto before = left();
  for (const std::string lowering : {"ort", "scatter", "tensorscatter"}) {
    const Choice choice = choose(kToyBundle, manifest, {"cpu", "auto", lowering});
    const auto plain = open_ort(kToyBundle, manifest, choice, {1}, nullptr);
    const auto engine = open_ort_on(cuda_device(), kToyBundle, manifest, choice, nullptr);
    const auto expected = decode_all(*plain, asked, {5});
    const auto found = decode_all(*engine, asked, {5});
    for (std::size_t i = 0; i < asked.size(); ++i) CHECK(found[i].ids() == expected[i].ids());
  }
  CHECK(left() == before);
}

// The last one: a driver that has met a wild address is of no use any more, as with CUDA.
TEST_CASE("CUDA: ~ a wild address breaks the device for good" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_device();
  std::byte* place = device->allocate(256);
  device->fill({place}, 1, 257);
  CHECK(fault_of<EngineError>([&] { device->synchronize(); }).find("CUDA failed in cuStreamSynchronize") == 0);
  CHECK(fault_of<EngineError>([&] { device->fill({place}, 1, 1); }).find("CUDA failed in") == 0);
}
