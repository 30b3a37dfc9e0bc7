// Handles of the C ABI: numbers in the shape of pointers, never dereferenced and never used twice.
//
// So a handle that was closed, or never was one, is recognised without touching freed memory, and what it stood for
// lives until the last call that uses it has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace txport::core {

template <typename Handle, typename Object>
class Handles {
 public:
  Handle* add(std::shared_ptr<Object> object) {
    const std::unique_lock lock(mutex_);
    // Odd, so that no real pointer to an object of ours is taken for a handle.
    const std::uintptr_t key = (++count_ << 4) | 9U;
    objects_.emplace(key, std::move(object));
    return reinterpret_cast<Handle*>(key);  // NOLINT(performance-no-int-to-ptr)
  }

  // A null pointer if this is no open handle.
  std::shared_ptr<Object> find(const Handle* handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  void remove(const Handle* handle) {
    std::shared_ptr<Object> last;  // destroyed after the lock is given back
    const std::unique_lock lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == objects_.end()) return;
    last = std::move(found->second);
    objects_.erase(found);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::uintptr_t count_ = 0;
  std::unordered_map<std::uintptr_t, std::shared_ptr<Object>> objects_;
};

}  // namespace txport::core
