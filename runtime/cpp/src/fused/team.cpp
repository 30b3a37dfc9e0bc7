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

// A waiting thread yields its core after this number of pauses: beside busy neighbours, the one that it waits for
// may need it. A patient spin was up to 200 times slower there, and is not faster on an idle machine.
constexpr int kPauses = 200;
// A worker without work sleeps after this number of further turns, some 50 us.
constexpr int kTurns = 200;
// A waiting thread sleeps between looks after this number, some milliseconds: a thread of a real-time class yields
// to no ordinary one, and may keep the threads that it waits for from its core.
constexpr int kYields = 4000;
constexpr std::chrono::microseconds kSleep(50);

// One turn of waiting.
void spin(int turn) { turn < kPauses ? hwy::Pause() : std::this_thread::yield(); }

// Waits until `done` returns true.
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

// Rounding and numbers near zero as IEEE 754 has them, whatever the application has set (torch.set_flush_denormal,
// libraries of -ffast-math): what comes out must not depend on which thread computed it.
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
      busy->value.fetch_sub(1, std::memory_order_release);  // then the lease may be gone
    }
  }
};

Team::Team(std::size_t size) : born_(forks()) {
  const SignalsBlocked blocked;  // signals are the application's: its own threads take them
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
  // In a forked process the threads are the parent's: there are none to join.
  for (auto& worker : workers_) static_cast<void>(is_forked() ? worker.release() : nullptr);
}

bool Team::is_forked() const { return forks() != born_; }

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
  {
    const DefaultArithmetic arithmetic;
    task({&barrier_, 0, size()});
  }
  wait_until([&] { return busy_.value.load(std::memory_order_acquire) == 0; });
}

}  // namespace txport::core::fused
