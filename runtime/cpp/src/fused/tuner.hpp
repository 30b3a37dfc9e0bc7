// Choice of the number of threads of a call, and of the way to read a projection, from measurements of earlier calls.
//
// More threads are faster on an idle machine, but wait for each other. On a busy machine, or for a model that fits the
// cache of one core, fewer threads may be faster. Results do not depend on the number of threads, so any call may try
// another number.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace txport::core::fused {

// Choice of the number of threads. Callers may share a tuner.
class ThreadTuner {
 public:
  explicit ThreadTuner(std::size_t max_threads);

  // Return the number of threads for a call with this amount of work (rows or tokens): 1, 2, 4 ... or `max_threads`. It
  // is the fastest so far, except in occasional trials.
  std::size_t choose(std::size_t work);
  // Record the seconds of a call for one unit of its work.
  void record(std::size_t work, std::size_t threads, double seconds);

 private:
  static constexpr std::size_t kLevels = 8;  // powers of two up to kMaxThreads, and the maximum
  // Calls with similar amounts of work. Trials of slower levels cost time, so the pause between them doubles.
  struct Bucket {
    std::array<double, kLevels> seconds{};  // running mean for each level; 0 before the first call
    std::size_t best = 0;                   // the fastest level
    unsigned until_trial = 2;               // number of calls until the next trial
    unsigned pause = 2;                     // number of calls between trials
    std::size_t tried = 0;                  // level of the last trial; the next one is on the other side of the best
    bool again = false;  // whether to repeat a trial of more threads, whose caches were cold the first time
  };

  const std::size_t max_threads_;
  std::size_t levels_ = 1;
  // Only try_lock is used: a call that cannot lock it uses one thread, or records nothing.
  std::mutex mutex_;
  std::array<Bucket, 16> buckets_;

  std::size_t threads_of(std::size_t level) const;
  Bucket& bucket(std::size_t work);
};

// Choice whether to read the int4 copy of a projection first. This pays if its bounds exclude most panels, as those of
// trained weights do. Ids are the same in both cases. Callers may share a tuner.
class BoundsTuner {
 public:
  bool choose() { return pause_.load(std::memory_order_relaxed) <= 0 || pause_.fetch_sub(1) <= 1; }
  void record(std::size_t read, std::size_t panels) {
    constexpr std::size_t kMinRatio = 8;  // the copy does not pay if more than one panel in this number is read
    constexpr int kPause = 64;            // number of calls until the next trial
    if (read * kMinRatio > panels) pause_.store(kPause);
  }

 private:
  std::atomic<int> pause_{0};
};

}  // namespace txport::core::fused
