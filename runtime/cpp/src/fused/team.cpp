#include "fused/team.hpp"

#include <hwy/cache_control.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <thread>

namespace txport::core::fused {

namespace {

// A thread that waits offers its core to others after so many pauses: beside busy neighbours, the one that it waits for
// may need it. A patient spin was up to 200 times slower there, and is no faster on an idle machine.
constexpr int kPauses = 200;
// A worker without work sleeps after so many more turns, some 50 us.
constexpr int kTurns = 200;

// One turn of waiting.
void spin(int turn) { turn < kPauses ? hwy::Pause() : std::this_thread::yield(); }

// How often this process is the child of a fork.
std::atomic<unsigned>& forks() {
  static std::atomic<unsigned> count{0};
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { forks().fetch_add(1); });
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

// A thread with a door of its own: others may sleep on.
struct Team::Worker {
  std::thread thread;
  std::mutex mutex;
  std::condition_variable wake;
  Counter calls;
  const Task* task = nullptr;  // null: end
  Member member;
  Counter* busy = nullptr;

  void call(const Task* next, const Member& as, Counter* counter) {
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
      busy->value.fetch_sub(1, std::memory_order_release);  // then the lease may be gone
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

Team::Lease::Lease(Team& team, std::size_t most) : team_(team) {
  if (most <= 1 || team.workers_.empty() || team.is_forked()) return;
  const std::lock_guard lock(team.mutex_);
  const std::size_t count = std::min(most - 1, team.idle_.size());
  workers_.assign(team.idle_.end() - static_cast<std::ptrdiff_t>(count), team.idle_.end());
  team.idle_.resize(team.idle_.size() - count);
}

Team::Lease::~Lease() {
  if (workers_.empty()) return;
  const std::lock_guard lock(team_.mutex_);
  team_.idle_.insert(team_.idle_.end(), workers_.begin(), workers_.end());
}

void Team::Lease::run(const Task& task) {
  busy_.value.store(static_cast<std::uint32_t>(workers_.size()), std::memory_order_relaxed);
  for (std::size_t i = 0; i < workers_.size(); ++i) workers_[i]->call(&task, {&barrier_, i + 1, size()}, &busy_);
  task({&barrier_, 0, size()});
  for (int turn = 0; busy_.value.load(std::memory_order_acquire) != 0; ++turn) spin(std::min(turn, kPauses));
}

}  // namespace txport::core::fused
