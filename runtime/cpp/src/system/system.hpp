// Differences between operating systems in threads, cores, memory pages and files, for the code of libtxport_engine.
// Linux supports all functions. Comments mention what macOS (posix.cpp) and Windows (windows.cpp) do not support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace txport::core {

// Return the number of cores of this process or, if unknown (macOS), of the machine; at least 1.
int affinity();

// Give the calling thread a name of at most 15 bytes, for debuggers and `top -H`.
void name_this_thread(const std::string& name);

// Blocks signals in the calling thread and the threads it creates, as long as the object exists. Synchronous faults
// such as SIGSEGV are not blocked. Windows has no signals.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  struct Mask;
  std::unique_ptr<Mask> saved_mask_;
};

// Return how many times this process has been forked from another one since the first call. Always 0 on Windows.
unsigned forks();

// Set rounding and subnormal numbers of the calling thread to the IEEE 754 default.
void set_default_arithmetic();

// Allocate memory; null on failure. `alignment` is a power of two, and `bytes` a multiple of it. With an alignment of
// at least 2 MiB, huge pages are used if the system supports them (Linux).
void* allocate(std::size_t alignment, std::size_t bytes);
void release(void* memory);

// Return whether this ARM processor supports SDOT or SMMLA. Always false on Windows, where this is unknown.
bool has_sdot();
bool has_smmla();

// Return an environment variable; empty if it is not set. Also empty in setuid programs, whose caller must not choose
// which libraries they load.
std::string variable(const char* name);

// Convert between paths and UTF-8, which the C ABI and messages use on every system.
std::filesystem::path path_of(const std::string& text);
std::string text_of(const std::filesystem::path& path);

// A file opened for reading. Methods throw std::system_error.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  std::uintmax_t size() const;
  // Read up to `max_bytes`, and return the number of bytes read; 0 at the end.
  std::size_t read(char* data, std::size_t max_bytes) const;
  // Map the first `bytes` of the file into memory. The mapping remains valid until unmap, also after the file is
  // closed.
  void* map(std::size_t bytes) const;

 private:
  std::intptr_t handle_;  // file descriptor or HANDLE
};
void unmap(void* data, std::size_t bytes);

}  // namespace txport::core
