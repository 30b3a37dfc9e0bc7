#include "fused/team.hpp"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <string>
#include <system_error>
#include <thread>

#include "system/system.hpp"

namespace txport::core::fused {

namespace {

// Number of pauses after which a waiting thread yields its core. On a busy machine, the thread that it waits for may
// need this core: spinning without yielding was up to 200 times slower there, and is not faster on an idle machine.
constexpr int kPauses = 200;
// Number of further turns, about 50 us, after which a worker without work sleeps.
constexpr int kTurns = 200;
// Number of turns, some milliseconds, after which a waiting thread sleeps between turns. A thread of a real-time class
// does not yield to ordinary threads, so it could keep the threads that it waits for from its core.
constexpr int kYields = 4000;
constexpr std::chrono::microseconds kSleep(50);

// Wait for one turn.
void spin(int turn) { turn < kPauses ? hwy::Pause() : std::this_thread::yield(); }

// Wait until `done` returns true.
template <class Done>
void wait_until(const Done& done) {
  for (int turn = 0; !done();) {
    if (turn < kPauses + kYields) {
      spin(turn++);
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

// Sets rounding and subnormal numbers to the defaults of IEEE 754 while it exists. The application may have changed
// them (torch.set_flush_denormal, libraries compiled with -ffast-math), but results must not depend on the thread.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    set_default_arithmetic();
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t before_{};
};

}  // namespace

void Barrier::wait(std::size_t rank, std::size_t size) {
  std::atomic<std::uint32_t>& mine = rounds_[rank].value;
  std::uint32_t round = mine.load(std::memory_order_relaxed);
  for (std::size_t distance = 1; distance < size; distance *= 2) {
    mine.store(++round, std::memory_order_release);
    const std::atomic<std::uint32_t>& theirs = rounds_[(rank + size - distance) % size].value;
    wait_until([&] { return static_cast<std::int32_t>(theirs.load(std::memory_order_acquire) - round) >= 0; });
  }
}

// A thread with its own condition variable, so that waking it does not wake others.
struct Team::Worker {
  std::thread thread;
  std::mutex mutex;
  std::condition_variable wake;
  Counter calls;
  const Task* task = nullptr;  // null ends the thread
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

  ~Worker() {
    if (!thread.joinable()) return;
    call(nullptr, {}, nullptr);
    thread.join();
  }

  void work(std::size_t rank) {
    name_this_thread("txport/" + std::to_string(rank));
    const DefaultArithmetic arithmetic;
    for (std::uint32_t done = 0;; ++done) {
      const auto called = [&] { return calls.value.load(std::memory_order_acquire) != done; };
      for (int turn = 0; turn < kPauses + kTurns && !called(); ++turn) spin(turn);
      if (!called()) {
        std::unique_lock lock(mutex);
        wake.wait(lock, called);
      }
      if (task == nullptr) return;
      (*task)(member);
      busy->value.fetch_sub(1, std::memory_order_release);  // the lease may be destroyed from here on
    }
  }
};

Team::Team(std::size_t size) : born_(forks()) {
  const SignalsBlocked blocked;  // threads inherit this mask, so that only threads of the application handle signals
  for (std::size_t i = 1; i < std::min(size, kMaxThreads); ++i) {
    auto made = std::make_unique<Worker>();
    Worker* worker = made.get();
    try {
      worker->thread = std::thread([worker, i] { worker->work(i); });
    } catch (const std::system_error&) {  // limits of the user or of the container
      break;
    }
    workers_.push_back(std::move(made));
    idle_.push_back(worker);
  }
}

Team::~Team() {
  // In a forked process there are no threads to join: they belong to the parent.
  for (auto& worker : workers_) static_cast<void>(is_forked() ? worker.release() : nullptr);
}

bool Team::is_forked() const { return forks() != born_; }

Team::Lease::Lease(Team& team, std::size_t max_threads) : team_(team) {
  if (max_threads <= 1 || team.workers_.empty() || team.is_forked()) return;
  const std::lock_guard lock(team.mutex_);
  const std::size_t count = std::min(max_threads - 1, team.idle_.size());
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
  {
    const DefaultArithmetic arithmetic;
    task({&barrier_, 0, size()});
  }
  wait_until([&] { return busy_.value.load(std::memory_order_acquire) == 0; });
}

}  // namespace txport::core::fused
