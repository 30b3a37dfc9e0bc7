// An engine whose encoder waits until it may go on.
#pragma once

#include <atomic>
#include <future>

#include "memory_engine.hpp"

namespace memory {

inline constexpr float kNeverEnds = -99;  // the weight of eos

class Gate : public MemoryEngine {
 public:
  explicit Gate(std::int64_t rows = 4, std::int64_t poll = 1) : MemoryEngine({rows, 12, 100}, poll, kNeverEnds) {}

  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    if (!arrived_.exchange(true)) arrived.set_value();
    opened_.wait();
    return MemoryEngine::encode(input_ids, source_lengths);
  }

  mutable std::promise<void> arrived;
  std::promise<void> open;

 private:
  mutable std::atomic<bool> arrived_{false};
  std::shared_future<void> opened_ = open.get_future().share();
};

}  // namespace memory
