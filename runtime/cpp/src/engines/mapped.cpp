#include "engines/mapped.hpp"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

namespace txport::core {

void release(const std::filesystem::path& file) {
  std::error_code fault;
  const std::string name = " " + std::filesystem::canonical(file, fault).string();
  if (fault) return;
  std::ifstream facts("/proc/self/smaps");
  std::uintptr_t start = 0;
  std::uintptr_t end = 0;
  bool is_mapping = false;  // of this file
  for (std::string line; std::getline(facts, line);) {
    const std::size_t dash = line.find('-');
    if (dash < line.find(' ')) {  // "start-end permissions offset device inode     path" begins a mapping
      is_mapping = line.size() > name.size() && line.compare(line.size() - name.size(), name.size(), name) == 0;
      start = std::stoull(line, nullptr, 16);
      end = std::stoull(line.substr(dash + 1), nullptr, 16);
    } else if (is_mapping && line.rfind("Anonymous:", 0) == 0 && std::stoull(line.substr(10)) == 0) {
      // ONNX Runtime maps privately and writably. A page that was written is anonymous, and would be lost.
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the address comes from the system as a number
      ::madvise(reinterpret_cast<void*>(start), end - start, MADV_DONTNEED);
    }
  }
}

}  // namespace txport::core
