// The engine's threads among all else that a process does: limits, signals, real-time callers, other arithmetic.

#include <doctest/doctest.h>
#ifdef __linux__
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fused/team.hpp"
#include "fused/tuner.hpp"

using namespace txport::core::fused;

namespace {

// How many threads a task runs on.
std::size_t members(Team& team) {
  Team::Lease lease(team, kMaxThreads);
  std::atomic<std::size_t> count{0};
  lease.run([&](const Member& member) {
    member.wait();
    ++count;
  });
  return count;
}

#ifdef __linux__
// Threads whose stacks no machine has room for, as where a limit of the user or of the container is reached.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    ::pthread_getattr_default_np(&before_);
    ::pthread_attr_t huge;
    ::pthread_attr_init(&huge);
    ::pthread_attr_setstacksize(&huge, std::size_t{1} << 46);
    REQUIRE(::pthread_setattr_default_np(&huge) == 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  ::pthread_attr_t before_{};
};

// A line of the status of one of this process's threads, as "SigBlk".
std::string status(const std::filesystem::path& thread, const std::string& name) {
  std::ifstream file(thread / "status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":\t", 0) == 0) return line.substr(name.size() + 2);
  }
  return "";
}

// How often the calling thread has slept.
long sleeps() {
  ::rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}
#endif

// Until another thread says so, or it will not.
bool comes(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

volatile float least = std::numeric_limits<float>::denorm_min();  // NOLINT: read at run time

}  // namespace

TEST_CASE("threads share heads and rows without gaps, twice or waiting for one that has much more") {
  for (const std::size_t heads : {1U, 3U, 8U, 12U}) {
    for (std::size_t size = 1; size <= kMaxThreads; ++size) {
      for (const std::size_t rows : {1U, 2U, 7U, 32U, 64U}) {
        std::vector<int> owners(heads * rows);
        std::size_t most = 0;
        for (std::size_t rank = 0; rank < size; ++rank) {
          const Member member{nullptr, rank, size};
          const Member::Range mine = member.share_or_part(heads);
          const Member::Range of = member.part(heads).share(rows);
          for (std::size_t h = mine.begin; h < mine.end; ++h) {
            for (std::size_t i = of.begin; i < of.end; ++i) ++owners[h * rows + i];
          }
          most = std::max(most, (mine.end - mine.begin) * (of.end - of.begin));
        }
        REQUIRE(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
        const std::size_t parts = std::max<std::size_t>(1, size / heads);  // of a head, at least
        REQUIRE(most <= (heads + size - 1) / size * ((rows + parts - 1) / parts));
      }
    }
  }
}

TEST_CASE("a team has the threads that were asked for") {
  Team team(5);
  CHECK(members(team) == 5);
}

// Of what each thread has done before the others go on, whoever is late.
TEST_CASE("a barrier lets nobody on before all have come, however many they are") {
  for (const std::size_t size : std::vector<std::size_t>{2, 3, 4, 5, 7, 8, 13, 33, 64}) {
    CAPTURE(size);
    Team team(size);
    Team::Lease lease(team, size);
    REQUIRE(lease.size() == size);
    std::vector<std::atomic<int>> phases(size);
    std::atomic<int> early{0};
    lease.run([&](const Member& member) {
      for (int phase = 1; phase <= 50; ++phase) {
        if ((member.rank * 7 + static_cast<std::size_t>(phase)) % 5 == 0) std::this_thread::yield();
        phases[member.rank].store(phase, std::memory_order_relaxed);
        member.wait();
        for (const auto& other : phases) early += other.load(std::memory_order_relaxed) < phase ? 1 : 0;
      }
    });
    CHECK(early == 0);
  }
}

#ifdef __linux__  // what its kernel says of threads
TEST_CASE("a team works with the threads that there are") {
  const NoMoreThreads limit;
  Team team(16);
  CHECK(members(team) == 1);
}

TEST_CASE("threads of a team have names, and leave signals to the application") {
  Team team(3);
  REQUIRE(members(team) == 3);
  std::set<std::string> names;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string name = status(thread.path(), "Name");
    if (name.rfind("txport/", 0) != 0) continue;
    names.insert(name);
    const std::uint64_t blocked = std::stoull(status(thread.path(), "SigBlk"), nullptr, 16);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGALRM, SIGCHLD, SIGPROF}) {
      CAPTURE(signal);
      CHECK((blocked >> (signal - 1) & 1) == 1);
    }
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE}) CHECK((blocked >> (signal - 1) & 1) == 0);
  }
  CHECK(names == std::set<std::string>{"txport/1", "txport/2"});
  ::sigset_t mine;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  CHECK(::sigismember(&mine, SIGTERM) == 0);
}

// A caller of a real-time class would keep the others from its core for ever.
TEST_CASE("who waits for others long sleeps") {
  Team team(2);
  Team::Lease lease(team, 2);
  REQUIRE(lease.size() == 2);
  for (const bool barrier : {false, true}) {
    CAPTURE(barrier);
    const long before = sleeps();
    const auto caller = std::filesystem::path("/proc/self/task") / std::to_string(::gettid());
    std::atomic<bool> slept{false};
    lease.run([&](const Member& member) {
      if (member.rank == 1) {
        slept = comes([&] { return std::stol(status(caller, "voluntary_ctxt_switches")) > before + 2; });
      }
      if (barrier) member.wait();
    });
    CHECK(slept);
  }
}

#endif

TEST_CASE("arithmetic is the same on all threads, whatever the caller has set, and the caller's stays") {
  std::fenv_t before{};
  std::fegetenv(&before);
#if defined(__x86_64__)
  unsigned mode = 0;
  asm volatile("stmxcsr %0" : "=m"(mode));
  mode |= 0x8040U;  // numbers near zero are zero
  asm volatile("ldmxcsr %0" : : "m"(mode));
#elif defined(__aarch64__)
  std::uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  mode |= 1U << 24U;
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
  std::fesetround(FE_UPWARD);
  Team team(3);  // threads begin with the arithmetic of the one that makes them
  std::vector<float> sums(3);
  std::vector<int> rounding(3);
  Team::Lease lease(team, 3);
  lease.run([&](const Member& member) {
    sums[member.rank] = least + least;
    rounding[member.rank] = std::fegetround();
  });
  const float flushed = least + least;
  const int upward = std::fegetround();
  std::fesetenv(&before);
  for (std::size_t rank = 0; rank < lease.size(); ++rank) {
    CHECK(sums[rank] > 0);
    CHECK(rounding[rank] == FE_TONEAREST);
  }
  CHECK(flushed == 0);
  CHECK(upward == FE_UPWARD);
}

TEST_CASE("callers that collide are given threads that were worth it") {
  ThreadTuner tuner(6);
  for (int i = 0; i < 100; ++i) {
    const std::size_t threads = tuner.choose(5);
    tuner.record(5, threads, static_cast<double>(threads));  // one is the best, and two are tried
  }
  std::atomic<std::size_t> most{0};
  std::atomic<int> ready{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      ++ready;
      comes([&] { return ready == 4; });
      for (int i = 0; i < 1000000; ++i) {
        const std::size_t threads = tuner.choose(5);
        if (threads > 2) most = threads;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(most == 0);
}
