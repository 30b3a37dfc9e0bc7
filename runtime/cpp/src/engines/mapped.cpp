#include "engines/mapped.hpp"

#include <sys/mman.h>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace txport::core {

namespace {

struct Mapping {
  std::uintptr_t start;
  std::uintptr_t end;
};

// The hexadecimal number at the start of a text, which is taken off.
std::uintptr_t take_number(std::string_view& text) {
  std::uintptr_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return fault == std::errc() ? number : 0;
}

// The header of an entry of /proc/self/smaps: "start-end permissions offset device inode     path".
std::optional<Mapping> parse_header(std::string_view line, const std::string& file) {
  if (line.size() <= file.size() || line.substr(line.size() - file.size()) != file) return std::nullopt;
  if (line[line.size() - file.size() - 1] != ' ') return std::nullopt;
  const std::uintptr_t start = take_number(line);
  line.remove_prefix(1);
  return Mapping{start, take_number(line)};
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
