#include "mapped.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>

namespace txport::core {

namespace {

struct Mapping {
  std::uintptr_t start;
  std::uintptr_t end;
};

// The header of an entry of /proc/self/smaps: "start-end permissions offset device inode  path".
std::optional<Mapping> parse_header(const std::string& line, const std::string& file) {
  unsigned long long start = 0;
  unsigned long long end = 0;
  int path = 0;
  if (std::sscanf(line.c_str(), "%llx-%llx %*s %*s %*s %*s %n", &start, &end, &path) != 2 || path == 0) {
    return std::nullopt;
  }
  if (line.compare(static_cast<std::size_t>(path), std::string::npos, file) != 0) return std::nullopt;
  return Mapping{static_cast<std::uintptr_t>(start), static_cast<std::uintptr_t>(end)};
}

}  // namespace

void release(const std::filesystem::path& file) {
  std::error_code fault;
  const std::string name = std::filesystem::canonical(file, fault).string();
  if (fault) return;
  std::ifstream facts("/proc/self/smaps");
  std::optional<Mapping> mapping;
  for (std::string line; std::getline(facts, line);) {
    if (line.find('-') < line.find(' ')) {
      mapping = parse_header(line, name);
    } else if (mapping && line.rfind("Anonymous:", 0) == 0) {
      // ONNX Runtime maps privately and writably. A page that was written is anonymous, and would be lost.
      if (std::stoull(line.substr(10)) == 0) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the address comes from the system as a number
        ::madvise(reinterpret_cast<void*>(mapping->start), mapping->end - mapping->start, MADV_DONTNEED);
      }
      mapping.reset();
    }
  }
}

}  // namespace txport::core
