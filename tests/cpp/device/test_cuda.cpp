// cuda.cpp over a driver in host memory, tests/cpp/cuda_driver.cpp, which ctest puts in the place of libcuda.so.1.

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <thread>

#include "device/cuda.hpp"
#include "engines/ort.hpp"
#include "engines/ort_cuda.hpp"
#include "errors.hpp"
#include "greedy.hpp"
#include "memory_device.hpp"
#include "repository.hpp"

using namespace memory;

namespace {

bool runs_over(const char* kind) {
  const char* chosen = std::getenv("TXPORT_TEST_CUDA");
  return chosen != nullptr && std::string(chosen) == kind;
}

template <typename Function>
Function driver_function(const char* name) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  REQUIRE(library != nullptr);
  return reinterpret_cast<Function>(::dlsym(library, name));
}

// Allocations, streams and graphs that the driver holds.
unsigned long long left() { return driver_function<unsigned long long (*)()>("txport_test_cuda_left")(); }

// CUDA's device, and work of the host in its stream.
class DriverDevice : public Device, public HostStream {
 public:
  std::byte* allocate(std::size_t bytes) override { return device_->allocate(bytes); }
  void free(std::byte* address) noexcept override { device_->free(address); }
  std::size_t free_memory() override { return device_->free_memory(); }
  void upload(std::byte* to, const void* from, std::size_t bytes) override { device_->upload(to, from, bytes); }
  void download(void* to, const std::byte* from, std::size_t bytes) override { device_->download(to, from, bytes); }
  void copy(Buffer to, Buffer from, std::size_t bytes, std::size_t count) override {
    device_->copy(to, from, bytes, count);
  }
  void fill(std::byte* to, std::uint32_t pattern, std::size_t item_bytes, std::size_t count) override {
    device_->fill(to, pattern, item_bytes, count);
  }
  void synchronize() override { device_->synchronize(); }
  std::function<void()> capture(std::function<void()> work, std::string& fault) override {
    return device_->capture(std::move(work), fault);
  }
  void* stream() const override { return device_->stream(); }

  void enqueue(std::function<void()> command) override {
    using Launch = int (*)(void*, void (*)(void*), void*);
    commands_.push_back(std::move(command));  // stays: what was captured runs again and again
    const auto call = [](void* given) { (*static_cast<std::function<void()>*>(given))(); };
    require(driver_function<Launch>("cuLaunchHostFunc")(stream(), call, &commands_.back()) == 0, "cuLaunchHostFunc");
  }

 private:
  std::deque<std::function<void()>> commands_;
  std::shared_ptr<Device> device_ = cuda_devices()();  // goes first: it waits for its work
};

using Bytes = std::vector<unsigned char>;

Bytes downloaded(Device& device, const std::byte* from, std::size_t bytes) {
  Bytes found(bytes);
  device.download(found.data(), from, bytes);
  return found;
}

}  // namespace

TEST_CASE("CUDA: copies, patterns and capturing do what they say" * doctest::skip(!runs_over("lazy"))) {
  const auto before = left();
  {
    const auto device = cuda_devices()();
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

    device->fill(second, 0, 1, 4096);
    device->copy({second + 10, 100}, {first + 3, 64}, 48, 5);
    device->copy({second + 2000, 0}, {first, 0}, 7, 1);
    Bytes expected(4096);
    for (std::size_t row = 0; row < 5; ++row) {
      std::copy_n(original.begin() + static_cast<std::ptrdiff_t>(3 + row * 64), 48,
                  expected.begin() + static_cast<std::ptrdiff_t>(10 + row * 100));
    }
    std::copy_n(original.begin(), 7, expected.begin() + 2000);
    CHECK(downloaded(*device, second, 4096) == expected);

    device->fill(second, 0xC7, 1, 3);
    device->fill(second + 4, 0x1234, 2, 2);
    device->fill(second + 8, 0xFF7F0102, 4, 1);
    CHECK(downloaded(*device, second, 12) == Bytes{0xC7, 0xC7, 0xC7, 0, 0x34, 0x12, 0x34, 0x12, 2, 1, 0x7F, 0xFF});

    device->fill(second, 1, 1, 16);
    device->synchronize();
    std::string fault;
    const auto replay = device->capture([&] { device->copy({second + 1, 0}, {second, 0}, 1, 1); }, fault);
    CHECK(fault.empty());
    device->fill(second, 9, 1, 1);
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
  const auto device = cuda_devices()();
  std::byte* place = device->allocate(256);
  int runs = 0;
  std::string fault;
  const auto work = device->capture(
      [&] {
        ++runs;
        device->fill(place, 3, 1, 256);
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

TEST_CASE("CUDA: any thread may use a device" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_devices()();
  std::byte* place = device->allocate(256);
  std::string fault;
  std::thread([&] {
    try {
      device->fill(place, 5, 1, 256);
      device->synchronize();
    } catch (const std::exception& error) {
      fault = error.what();
    }
  }).join();
  CHECK(fault.empty());
  CHECK(downloaded(*device, place, 1) == Bytes{5});
  std::thread([&] { device->free(place); }).join();
}

TEST_CASE("CUDA: answers on the device are those without one" * doctest::skip(!runs_over("lazy"))) {
  const auto before = left();
  for (const std::string id_type : {"int32", "int64"}) {
    DeviceParts parts{"driver",
                      kLimits,
                      id_type,
                      "scatter",
                      [] { return std::make_shared<DriverDevice>(); },
                      std::make_unique<MemoryProgram>(false, 1.0F, true),
                      std::make_unique<MemoryProgram>(true, 1.0F, true),
                      [](const std::string& warning) { FAIL_CHECK(warning); }};
    const auto engine = make_device_engine(small_manifest(), std::move(parts));
    for (std::uint32_t seed = 0; seed < 3; ++seed) check_same(*engine, 1.0F, 12, seed, seed == 1);
  }
  CHECK(left() == before);
}

TEST_CASE("CUDA: steps that cannot be captured are launched one by one, and said once" *
          doctest::skip(!runs_over("lazy"))) {
  class Uncaptured : public DriverDevice {
   public:
    std::function<void()> capture(std::function<void()> work, std::string& fault) override {
      return DriverDevice::capture(
          [this, work] {
            work();
            synchronize();
          },
          fault);
    }
  };
  std::vector<std::string> warnings;
  DeviceParts parts{"driver",
                    kLimits,
                    "int64",
                    "scatter",
                    [] { return std::make_shared<Uncaptured>(); },
                    std::make_unique<MemoryProgram>(false, 1.0F, true),
                    std::make_unique<MemoryProgram>(true, 1.0F, true),
                    [&](const std::string& warning) { warnings.push_back(warning); }};
  const auto engine = make_device_engine(small_manifest(), std::move(parts));
  check_same(*engine, 1.0F, 12, 0, false);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("without CUDA graphs: CUDA failed in cuStreamSynchronize") != std::string::npos);
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
    const Choice choice = choose(kToyBundle, manifest, "cpu", lowering);
    const auto plain = open_ort(kToyBundle, manifest, choice, {1}, nullptr);
    const auto engine = open_ort_on(cuda_devices()(), kToyBundle, manifest, choice, nullptr);
    const auto expected = decode_all(*plain, asked, {5});
    const auto found = decode_all(*engine, asked, {5});
    for (std::size_t i = 0; i < asked.size(); ++i) CHECK(found[i].ids == expected[i].ids);
  }
  CHECK(left() == before);
}

// The last one: a driver that has met a wild address is of no use any more, as with CUDA.
TEST_CASE("CUDA: ~ a wild address breaks the device for good" * doctest::skip(!runs_over("lazy"))) {
  const auto device = cuda_devices()();
  std::byte* place = device->allocate(256);
  device->fill(place, 1, 1, 257);
  CHECK(fault_of<EngineError>([&] { device->synchronize(); }).find("CUDA failed in cuStreamSynchronize") == 0);
  CHECK(fault_of<EngineError>([&] { device->fill(place, 1, 1, 1); }).find("CUDA failed in") == 0);
}
