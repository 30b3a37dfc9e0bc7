// How many threads a call is given, and how it reads a projection, learned from calls before.
//
// More threads are faster on an idle machine, but wait for each other: beside a busy neighbour, or for a model that
// fits the cache of one core, fewer may be. All give the same numbers, so any call may try another number of threads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace txport::core::fused {

// Callers may share it.
class ThreadTuner {
 public:
  explicit ThreadTuner(std::size_t most);  // threads

  // The threads for a call of so much work (rows, tokens): 1, 2, 4 ... or `most`. Now and then not the best so far.
  std::size_t choose(std::size_t work);
  void record(std::size_t work, std::size_t threads, double seconds);  // for one unit of the work

 private:
  static constexpr std::size_t kLevels = 8;  // powers of two up to kMaxThreads, and the most
  // Calls of similar work. Trying what was slower costs time: twice as rarely after each time that it was.
  struct Bucket {
    std::array<double, kLevels> seconds{};  // of each level, a running mean; 0 before the first
    std::size_t best = 0;
    unsigned until_trial = 2;
    unsigned pause = 2;
    std::size_t tried = 0;  // by the last trial; the next one goes the other way
    bool again = false;     // more threads are tried twice, since the caches of the first time were cold
  };

  const std::size_t most_;
  std::size_t levels_ = 1;
  std::mutex mutex_;  // only tried: who cannot have it learns nothing
  std::array<Bucket, 16> buckets_;

  std::size_t threads_of(std::size_t level) const;
  Bucket& bucket(std::size_t work);
};

// Whether the int4 copy of a projection is worth reading first: where it leaves few panels, as trained weights do.
// Either way gives the same ids. Callers may share it.
class BoundsTuner {
 public:
  bool choose() { return pause_.load(std::memory_order_relaxed) <= 0 || pause_.fetch_sub(1) <= 1; }
  void record(std::size_t read, std::size_t panels) {
    constexpr std::size_t kMaxRead = 8;  // above one of this number, the copy does not pay
    constexpr int kPause = 64;           // calls until it is tried again
    if (read * kMaxRead > panels) pause_.store(kPause);
  }

 private:
  std::atomic<int> pause_{0};
};

}  // namespace txport::core::fused
