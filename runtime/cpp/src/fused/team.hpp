// Threads that stay, and a barrier that spins: a step of a small model has one every two microseconds.
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

// In a cache line of its own.
struct alignas(128) Counter {
  std::atomic<std::uint32_t> value{0};
};

// By dissemination (Hensgen, Finkel and Manber 1988): in round r each thread waits for the one 2^r before it, which has
// heard of 2^r by then, so that log2(size) rounds are enough. Each thread writes its own cache line and reads one of
// another in each round: one transfer each way for two threads.
class Barrier {
 public:
  void wait(std::size_t rank, std::size_t size);

 private:
  std::array<Counter, kMaxThreads> rounds_;  // so far
};

// One of the threads that compute the same rows together.
struct Member {
  Barrier* barrier = nullptr;
  std::size_t rank = 0;
  std::size_t size = 1;

  void wait() const {
    if (size > 1) barrier->wait(rank, size);
  }
  // This thread's share of `count` things, in order and without gaps.
  struct Range {
    std::size_t begin, end;
  };
  Range share(std::size_t count) const { return {count * rank / size, count * (rank + 1) / size}; }
  // As `share`, but with more threads than things each has one, which some have together.
  Range share_or_part(std::size_t count) const {
    if (size <= count) return share(count);
    const std::size_t thing = count * rank / size;
    return {thing, thing + 1};
  }
  // Which of the threads that have the same things, by `share_or_part`, this one is. They have no barrier.
  Member part(std::size_t count) const {
    if (size <= count) return {};
    const std::size_t thing = count * rank / size;
    const std::size_t first = (thing * size + count - 1) / count;
    const std::size_t next = ((thing + 1) * size + count - 1) / count;
    return {nullptr, rank - first, next - first};
  }
};

using Task = std::function<void(const Member&)>;

// The threads of an engine. They sleep when there is nothing to do. A caller gets threads that no other caller uses;
// one that gets none, or is in a forked process, in which they are not, works alone: what comes out is the same.
class Team {
 public:
  // `size` includes the thread of a caller. If the system refuses threads, there are fewer.
  explicit Team(std::size_t size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  struct Worker;

  // Threads that only this caller may use until it is destroyed.
  class Lease {
   public:
    Lease(Team& team, std::size_t most);  // the caller's included
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::size_t size() const { return workers_.size() + 1; }
    // Runs a task on all of them, the caller's the first, and waits for them. It must not throw.
    void run(const Task& task);

   private:
    Team& team_;
    std::vector<Worker*> workers_;
    Barrier barrier_;
    Counter busy_;
  };

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  const unsigned born_;  // how often the process had forked by then
  std::mutex mutex_;
  std::vector<Worker*> idle_;

  bool is_forked() const;
};

}  // namespace txport::core::fused
