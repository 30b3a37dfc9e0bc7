// Access to a device: by one thread at a time, by no thread after a failure, since its memory may then be invalid, and
// not by a forked process, which has no GPU and waits for ever for mutexes that threads of its parent held.
#pragma once

#include <mutex>
#include <string>

#include "errors.hpp"
#include "system/system.hpp"

namespace txport::core {

class Latch {
 public:
  // Run `work`, which uses the device. Throws EngineError: the device fails now or has failed before, or this process
  // was forked.
  template <typename Work>
  auto guard(const Work& work) const {
    const auto locked = lock();
    return watch(work);
  }

  // Run `work`, which only waits for the device, without excluding other threads. Throws the errors of `guard`.
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

  // Exclude other threads from the device, even if it has failed. Throws EngineError: this process was forked.
  std::unique_lock<std::recursive_mutex> lock() const {
    refuse_forked();
    return std::unique_lock(device_mutex_);
  }

  bool is_forked() const { return forks() != forks_; }

 private:
  const unsigned forks_ = forks();  // at construction
  mutable std::recursive_mutex device_mutex_;
  mutable std::mutex mutex_;
  mutable std::string fault_;  // message of the first failure; empty if there was none

  void refuse_forked() const {
    if (is_forked()) {
      throw EngineError("this process was forked after the GPU was used: use posix_spawn, or call exec after fork");
    }
  }
  void check() const {
    refuse_forked();
    const std::lock_guard lock(mutex_);
    if (!fault_.empty()) throw EngineError("the GPU failed before (" + fault_ + "): open the bundle again");
  }
  void set(const char* fault) const {
    const std::lock_guard lock(mutex_);
    if (fault_.empty()) fault_ = fault;
  }
};

}  // namespace txport::core
