// Persistent threads, and a spinning barrier: a step of a small model has a barrier every two microseconds.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace txport::core::fused {

inline constexpr std::size_t kMaxThreads = 64;

// A counter in a separate cache line.
struct alignas(128) Counter {
  std::atomic<std::uint32_t> value{0};
};

// A dissemination barrier (Hensgen, Finkel and Manber 1988). In round r, each thread waits for the thread 2^r before
// it, whose arrival then implies those of 2^r threads, so log2(size) rounds are enough. In each round, a thread writes
// its own cache line and reads that of one other thread: for two threads, one transfer in each direction.
class Barrier {
 public:
  void wait(std::size_t rank, std::size_t size);

 private:
  std::array<Counter, kMaxThreads> rounds_;  // number of rounds that each thread has begun
};

// One of the threads that compute the same rows.
struct Member {
  Barrier* barrier = nullptr;
  std::size_t rank = 0;
  std::size_t size = 1;

  void wait() const {
    if (size > 1) barrier->wait(rank, size);
  }
  struct Range {
    std::size_t begin, end;
  };
  // Return the share of this thread in `count` items. The shares of all threads are consecutive.
  Range share(std::size_t count) const { return {count * rank / size, count * (rank + 1) / size}; }
  // As `share`, except with fewer items than threads: each thread then gets one item, and several threads get the same.
  Range share_or_part(std::size_t count) const {
    if (size <= count) return share(count);
    const std::size_t item = count * rank / size;
    return {item, item + 1};
  }
  // Return the position of this thread among the threads with the same share_or_part. They have no barrier.
  Member part(std::size_t count) const {
    if (size <= count) return {};
    const std::size_t item = count * rank / size;
    const std::size_t first = (item * size + count - 1) / count;
    const std::size_t next = ((item + 1) * size + count - 1) / count;
    return {nullptr, rank - first, next - first};
  }
};

using Task = std::function<void(const Member&)>;

// The threads of an engine. They sleep when there is no work. A caller gets threads that no other caller uses. A caller
// without free threads works alone, with the same results. So does a caller in a forked process, which has no threads.
class Team {
 public:
  // Start `size` - 1 threads, since the thread of a caller works as well. If the system refuses threads, there are
  // fewer.
  explicit Team(std::size_t size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  struct Worker;

  // Threads that only one caller may use until the lease is destroyed.
  class Lease {
   public:
    // Take up to `max_threads` threads, including the caller's.
    Lease(Team& team, std::size_t max_threads);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::size_t size() const { return workers_.size() + 1; }
    // Run a task on all threads, and wait for them. The caller's thread has rank 0. The task must not throw.
    void run(const Task& task);

   private:
    Team& team_;
    std::vector<Worker*> workers_;
    Barrier barrier_;
    Counter busy_;
  };

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  const unsigned born_;  // value of forks() at construction
  std::mutex mutex_;
  std::vector<Worker*> idle_;

  bool is_forked() const;
};

}  // namespace txport::core::fused
