// Linux and macOS.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#else
#include <sched.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cfenv>
#include <csignal>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "system/system.hpp"

namespace txport::core {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Bits of Linux's HWCAP_ASIMDDP and HWCAP2_I8MM, which not all headers define; Apple has names instead.
#ifdef __APPLE__
bool has_feature(const char* name) {
  int value = 0;
  std::size_t size = sizeof(value);
  return ::sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
#elif defined(__aarch64__)
constexpr unsigned kSdotBit = 20;
constexpr unsigned kSmmlaBit = 13;
#endif

std::atomic<unsigned> fork_count{0};

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

int affinity() {
#ifndef __APPLE__
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof(usable), &usable) == 0) return CPU_COUNT(&usable);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void name_this_thread(const std::string& name) {
#ifdef __APPLE__
  ::pthread_setname_np(name.c_str());
#else
  ::pthread_setname_np(::pthread_self(), name.c_str());
#endif
}

struct SignalsBlocked::Mask {
  sigset_t signals{};
};

SignalsBlocked::SignalsBlocked() : saved_mask_(std::make_unique<Mask>()) {
  sigset_t all;  // macros on macOS
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
  ::pthread_sigmask(SIG_SETMASK, &all, &saved_mask_->signals);
}

SignalsBlocked::~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &saved_mask_->signals, nullptr); }

unsigned forks() {
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
  return fork_count.load(std::memory_order_relaxed);
}

void set_default_arithmetic() { std::fesetenv(FE_DFL_ENV); }

void* allocate(std::size_t alignment, std::size_t bytes) {
  void* memory = std::aligned_alloc(alignment, bytes);
#ifdef MADV_HUGEPAGE
  if (memory != nullptr && alignment >= kHugePage) ::madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

void release(void* memory) { std::free(memory); }

bool has_sdot() {
#ifdef __APPLE__
  return has_feature("hw.optional.arm.FEAT_DotProd");
#elif defined(__aarch64__)
  return (::getauxval(AT_HWCAP) >> kSdotBit & 1U) != 0;
#else
  return false;
#endif
}

bool has_smmla() {
#ifdef __APPLE__
  return has_feature("hw.optional.arm.FEAT_I8MM");
#elif defined(__aarch64__)
  return (::getauxval(AT_HWCAP2) >> kSmmlaBit & 1U) != 0;
#else
  return false;
#endif
}

std::string variable(const char* name) {
#ifdef __GLIBC__
  const char* value = ::secure_getenv(name);  // NOLINT(concurrency-mt-unsafe): dlopen also reads the environment
#else
  const bool same = ::geteuid() == ::getuid() && ::getegid() == ::getgid();
  const char* value = same ? std::getenv(name) : nullptr;
#endif
  return value == nullptr ? "" : value;
}

std::filesystem::path path_of(const std::string& text) { return text; }

std::string text_of(const std::filesystem::path& path) { return path.string(); }

OpenFile::OpenFile(const std::filesystem::path& path) : handle_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (handle_ < 0) fail(path.string());
}

OpenFile::~OpenFile() { ::close(static_cast<int>(handle_)); }

std::uintmax_t OpenFile::size() const {
  struct stat status {};
  if (::fstat(static_cast<int>(handle_), &status) != 0) fail("fstat");
  return static_cast<std::uintmax_t>(status.st_size);
}

std::size_t OpenFile::read(char* data, std::size_t max_bytes) const {
  while (true) {
    const ssize_t count = ::read(static_cast<int>(handle_), data, max_bytes);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR) fail("read");
  }
}

void* OpenFile::map(std::size_t bytes) const {
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, static_cast<int>(handle_), 0);
  if (data == MAP_FAILED) fail("mmap");
  return data;
}

void unmap(void* data, std::size_t bytes) { ::munmap(data, bytes); }

}  // namespace txport::core
