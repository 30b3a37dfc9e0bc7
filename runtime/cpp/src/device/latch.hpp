// Remembers that a device has failed: what it holds cannot be trusted any more, and no later call may go on with it.
#pragma once

#include <mutex>
#include <string>

#include "errors.hpp"

namespace txport::core {

class Latch {
 public:
  // Run `work`. Throws EngineError: the device fails now, or has failed before.
  template <typename Work>
  auto guard(const Work& work) const {
    check();
    try {
      return work();
    } catch (const EngineError& error) {
      set(error.what());
      throw;
    }
  }

 private:
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
