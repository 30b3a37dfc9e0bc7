// The differences between operating systems, as far as the engine of libtxport_engine goes: threads, cores, pages and
// files. Linux has all of it; features that macOS (posix.cpp) and Windows (windows.cpp) lack are named here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace txport::core {

// Number of cores of this process or, if unknown (macOS), of the machine; at least 1.
int affinity();

// Give the calling thread a name of at most 15 bytes, for debuggers and `top -H`.
void name_this_thread(const std::string& name);

// While it lives, the calling thread and its new threads receive no signals of the application, only their own faults.
// Windows has no signals.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  struct Mask;
  std::unique_ptr<Mask> before_;
};

// How often this process is the child of a fork; Windows has none. Counts from the first call on.
unsigned forks();

// Set the calling thread's rounding, and what it does with numbers near zero, as IEEE 754 has them.
void set_default_arithmetic();

// Memory that begins at a multiple of a power of two and has a multiple of it in bytes; null if there is none. From
// 2 MiB on in huge pages where the system has them (Linux).
void* allocate(std::size_t alignment, std::size_t bytes);
void release(void* memory);

// Whether this ARM processor has SDOT, and SMMLA; not known, and so false, on Windows.
bool has_sdot();
bool has_smmla();

// A variable of the environment; empty if it is not set, and in a program that runs with more rights than its caller
// (setuid), who must not choose what it loads.
std::string variable(const char* name);

// A path as the C ABI takes it and as messages show it: UTF-8 on every system.
std::filesystem::path path_of(const std::string& text);
std::string text_of(const std::filesystem::path& path);

// A file that is read. All throw std::system_error.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  std::uintmax_t size() const;
  // Read some bytes; 0 at the end.
  std::size_t read(char* data, std::size_t most) const;
  // The first `bytes` ones as pages that are read when they are needed, also when the file is closed, until unmap.
  void* map(std::size_t bytes) const;

 private:
  std::intptr_t handle_;  // a descriptor or a HANDLE
};
void unmap(void* data, std::size_t bytes);

}  // namespace txport::core
