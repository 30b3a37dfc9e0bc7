// CUDA's driver in host memory (cuda_driver.cpp) as tests see it, and work of the host in its streams.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <string>

#include "memory_device.hpp"

namespace memory {

inline bool runs_over(const char* kind) {
  const char* chosen = std::getenv("TXPORT_TEST_CUDA");
  return chosen != nullptr && std::string(chosen) == kind;
}

template <typename Function>
Function driver_function(const char* name) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  REQUIRE(library != nullptr);
  return reinterpret_cast<Function>(::dlsym(library, name));
}

// Allocations, streams, events and graphs that the driver holds.
inline unsigned long long left() { return driver_function<unsigned long long (*)()>("txport_test_cuda_left")(); }

// How often work was enqueued or waited for.
inline unsigned long long calls() { return driver_function<unsigned long long (*)()>("txport_test_cuda_calls")(); }

// The largest pitch that the driver takes; 2^31 - 1 on a GPU.
inline constexpr std::size_t kMaxPitch = std::size_t{1} << 20;

// Tell the driver what its txport_test_cuda_* want, until this goes.
class DriverThat {
 public:
  ~DriverThat() {
    driver_function<void (*)(std::size_t, std::size_t)>("txport_test_cuda_pitches")(kMaxPitch, 1);
    driver_function<void (*)(std::size_t)>("txport_test_cuda_take")(0);
    driver_function<void (*)()>("txport_test_cuda_recover")();
  }
  DriverThat() = default;
  DriverThat(const DriverThat&) = delete;
  DriverThat& operator=(const DriverThat&) = delete;

  static void takes_pitches(std::size_t most, std::size_t unit) {
    driver_function<void (*)(std::size_t, std::size_t)>("txport_test_cuda_pitches")(most, unit);
  }
  static void fails(const char* call, int code) {
    driver_function<void (*)(const char*, int)>("txport_test_cuda_fail")(call, code);
  }
  static void has_others_taking(std::size_t bytes) {
    driver_function<void (*)(std::size_t)>("txport_test_cuda_take")(bytes);
  }
};

// Work of the host in a stream.
class DriverStream : public HostStream {
 public:
  explicit DriverStream(void* stream) : stream_(stream) {}

  void enqueue(std::function<void()> command) override {
    using Launch = int (*)(void*, void (*)(void*), void*);
    commands_.push_back(std::move(command));  // stays: what was captured runs again and again
    const auto call = [](void* given) { (*static_cast<std::function<void()>*>(given))(); };
    require(driver_function<Launch>("cuLaunchHostFunc")(stream_, call, &commands_.back()) == 0, "cuLaunchHostFunc");
  }

 private:
  std::deque<std::function<void()>> commands_;
  void* const stream_;
};

}  // namespace memory
