#include "fused/team.hpp"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace txport::core::fused {

namespace {

// A thread that waits offers its core to others after so many pauses: beside busy neighbours, the one that it waits for
// may need it. A patient spin was up to 200 times slower there, and is no faster on an idle machine.
constexpr int kPauses = 200;
// A worker without work sleeps after so many more turns, some 50 us.
constexpr int kTurns = 200;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

// One turn of waiting.
void spin(int turn) { turn < kPauses ? pause() : std::this_thread::yield(); }

// How often this process is the child of a fork.
std::atomic<unsigned>& forks() {
  static std::atomic<unsigned> count{0};
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { forks().fetch_add(1); });
  (void)registered;
  return count;
}

}  // namespace

void Barrier::wait(std::size_t rank, std::size_t size) {
  const std::uint32_t epoch = epochs_[rank].value.load(std::memory_order_relaxed) + 1;
  epochs_[rank].value.store(epoch, std::memory_order_release);
  for (std::size_t other = 0; other < size; ++other) {
    const std::atomic<std::uint32_t>& theirs = epochs_[other].value;
    for (int turn = 0; static_cast<std::int32_t>(theirs.load(std::memory_order_acquire) - epoch) < 0; ++turn) {
      spin(std::min(turn, kPauses));
    }
  }
}

void Barrier::reset() {
  for (Counter& epoch : epochs_) epoch.value.store(0, std::memory_order_relaxed);
}

// A thread with a door of its own: others may sleep on.
struct Team::Worker {
  std::thread thread;
  std::mutex mutex;
  std::condition_variable wake;
  Counter calls;
  const Task* task = nullptr;  // null: end
  Member member;
  std::atomic<std::uint32_t>* busy = nullptr;
  // Of the group that this thread is the second of.
  Barrier barrier;
  Counter group_busy;

  void call(const Task* next, const Member& as, std::atomic<std::uint32_t>* counter) {
    const std::lock_guard lock(mutex);
    task = next;
    member = as;
    busy = counter;
    calls.value.fetch_add(1, std::memory_order_release);
    wake.notify_one();
  }

  void work() {
    for (std::uint32_t done = 0;; ++done) {
      const auto called = [&] { return calls.value.load(std::memory_order_acquire) != done; };
      for (int turn = 0; turn < kPauses + kTurns && !called(); ++turn) spin(turn);
      if (!called()) {
        std::unique_lock lock(mutex);
        wake.wait(lock, called);
      }
      if (task == nullptr) return;
      (*task)(member);
      busy->fetch_sub(1, std::memory_order_release);
    }
  }
};

Team::Team(std::size_t size) : born_(forks().load()) {
  for (std::size_t i = 1; i < std::min(size, kMostThreads); ++i) {
    workers_.push_back(std::make_unique<Worker>());
    Worker* worker = workers_.back().get();
    worker->thread = std::thread([worker] { worker->work(); });
    idle_.push_back(worker);
  }
}

Team::~Team() {
  for (auto& worker : workers_) {
    if (is_forked()) {  // the thread is the parent's: there is none to join
      static_cast<void>(worker.release());
      continue;
    }
    worker->call(nullptr, {}, nullptr);
    worker->thread.join();
  }
}

bool Team::is_forked() const { return forks().load(std::memory_order_relaxed) != born_; }

std::vector<Team::Worker*> Team::take(std::size_t most) {
  if (most <= 1 || workers_.empty() || is_forked()) return {};
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min(most - 1, idle_.size());
  std::vector<Worker*> taken(idle_.end() - static_cast<std::ptrdiff_t>(count), idle_.end());
  idle_.resize(idle_.size() - count);
  return taken;
}

void Team::give_back(const std::vector<Worker*>& workers) {
  if (workers.empty()) return;
  const std::lock_guard lock(mutex_);
  idle_.insert(idle_.end(), workers.begin(), workers.end());
}

void Team::Lease::run(std::size_t size, const Task& task) {
  if (size <= 1) return task(Member{});
  Worker& second = *workers_.front();
  second.barrier.reset();
  std::atomic<std::uint32_t>& busy = second.group_busy.value;
  busy.store(static_cast<std::uint32_t>(size - 1), std::memory_order_relaxed);
  for (std::size_t rank = 1; rank < size; ++rank) {
    workers_[rank - 1]->call(&task, {&second.barrier, rank, size}, &busy);
  }
  task({&second.barrier, 0, size});
  for (int turn = 0; busy.load(std::memory_order_acquire) != 0; ++turn) spin(std::min(turn, kPauses));
}

}  // namespace txport::core::fused
