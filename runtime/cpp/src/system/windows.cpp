// Windows 10 or newer.
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <malloc.h>
#include <windows.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cfenv>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "system/system.hpp"

namespace txport::core {

namespace {

HANDLE handle_of(std::intptr_t value) { return reinterpret_cast<HANDLE>(value); }

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(static_cast<int>(::GetLastError()), std::system_category(), what);
}

}  // namespace

// Only counts cores of one processor group, which has up to 64.
int affinity() {
  DWORD_PTR process = 0;
  DWORD_PTR machine = 0;
  int count = 0;
  if (::GetProcessAffinityMask(::GetCurrentProcess(), &process, &machine) != 0) {
    for (; process != 0; process &= process - 1) ++count;
  }
  return count > 0 ? count : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void name_this_thread(const std::string& name) {
  ::SetThreadDescription(::GetCurrentThread(), std::wstring(name.begin(), name.end()).c_str());
}

struct SignalsBlocked::Mask {};
SignalsBlocked::SignalsBlocked() = default;
SignalsBlocked::~SignalsBlocked() = default;

unsigned forks() { return 0; }

// fesetenv(FE_DFL_ENV) of mingw changes neither MXCSR nor the x87 unit, which computes logarithms.
void set_default_arithmetic() {
  constexpr unsigned kDefault = 0x1F80;
  std::fesetround(FE_TONEAREST);
  _mm_setcsr(kDefault);
}

void* allocate(std::size_t alignment, std::size_t bytes) { return ::_aligned_malloc(bytes, alignment); }

void release(void* memory) { ::_aligned_free(memory); }

bool has_sdot() { return false; }

bool has_smmla() { return false; }

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::filesystem::path path_of(const std::string& text) { return std::filesystem::u8path(text); }

std::string text_of(const std::filesystem::path& path) {
  const auto text = path.u8string();
  return {text.begin(), text.end()};
}

OpenFile::OpenFile(const std::filesystem::path& path)
    : handle_(reinterpret_cast<std::intptr_t>(::CreateFileW(path.c_str(), GENERIC_READ,
                                                            FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                                                            nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr))) {
  if (handle_of(handle_) == INVALID_HANDLE_VALUE) fail(text_of(path));
}

OpenFile::~OpenFile() { ::CloseHandle(handle_of(handle_)); }

std::uintmax_t OpenFile::size() const {
  LARGE_INTEGER size{};
  if (::GetFileSizeEx(handle_of(handle_), &size) == 0) fail("GetFileSizeEx");
  return static_cast<std::uintmax_t>(size.QuadPart);
}

std::size_t OpenFile::read(char* data, std::size_t max_bytes) const {
  constexpr std::size_t kMaxRead = std::size_t{1} << 30;
  DWORD count = 0;
  if (::ReadFile(handle_of(handle_), data, static_cast<DWORD>(std::min(max_bytes, kMaxRead)), &count, nullptr) == 0) {
    fail("ReadFile");
  }
  return count;
}

void* OpenFile::map(std::size_t bytes) const {
  HANDLE mapping = ::CreateFileMappingW(handle_of(handle_), nullptr, PAGE_READONLY, 0, 0, nullptr);
  if (mapping == nullptr) fail("CreateFileMappingW");
  void* data = ::MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes);
  ::CloseHandle(mapping);
  if (data == nullptr) fail("MapViewOfFile");
  return data;
}

void unmap(void* data, std::size_t /*bytes*/) { ::UnmapViewOfFile(data); }

}  // namespace txport::core
