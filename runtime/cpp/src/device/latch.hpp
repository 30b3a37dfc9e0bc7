// The right to use a device: by one thread at a time, and by none after it has failed, since what it holds cannot be
// trusted any more.
#pragma once

#include <mutex>
#include <string>

#include "errors.hpp"

namespace txport::core {

class Latch {
 public:
  // Run `work`, which uses the device. Throws EngineError: the device fails now, or has failed before.
  template <typename Work>
  auto guard(const Work& work) const {
    const auto locked = lock();
    return watch(work);
  }

  // Run `work`, which only waits for the device, so that others may use it meanwhile. Throws as `guard`.
  template <typename Work>
  auto watch(const Work& work) const {
    check();
    try {
      return work();
    } catch (const EngineError& error) {
      set(error.what());
      throw;
    }
  }

  // Keeps others from the device, whether it has failed or not.
  std::unique_lock<std::recursive_mutex> lock() const { return std::unique_lock(using_); }

 private:
  mutable std::recursive_mutex using_;
  mutable std::mutex mutex_;
  mutable std::string fault_;  // the first one; empty as long as there is none

  void check() const {
    const std::lock_guard lock(mutex_);
    if (!fault_.empty()) throw EngineError("the GPU failed before (" + fault_ + "): open the bundle again");
  }
  void set(const char* fault) const {
    const std::lock_guard lock(mutex_);
    if (fault_.empty()) fault_ = fault;
  }
};

}  // namespace txport::core
