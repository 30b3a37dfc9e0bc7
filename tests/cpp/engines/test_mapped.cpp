// Pages of file mappings are given back, and only those that nobody wrote to.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "engines/mapped.hpp"

using namespace txport::core;

namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;

// A file of x, mapped privately and writably as ONNX Runtime does it.
struct MappedFile {
  std::filesystem::path path;
  char* data;

  explicit MappedFile(const std::string& name) : path(std::filesystem::temp_directory_path() / name) {
    std::ofstream(path, std::ios::binary) << std::string(kBytes, 'x');
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    data = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
    ::close(file);
    REQUIRE(static_cast<void*>(data) != MAP_FAILED);
    CHECK(std::count(data, data + kBytes, 'x') == kBytes);  // every page is resident now
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    ::munmap(data, kBytes);
    std::filesystem::remove(path);
  }

  // Bytes of the mapping that are in this process's tables.
  std::size_t resident() const {
    std::ifstream facts("/proc/self/smaps");
    bool is_ours = false;
    for (std::string line; std::getline(facts, line);) {
      if (line.find('-') < line.find(' ')) {
        is_ours = std::stoull(line, nullptr, 16) == reinterpret_cast<std::uintptr_t>(data);
      } else if (is_ours && line.rfind("Rss:", 0) == 0) {
        return std::stoull(line.substr(4)) * 1024;
      }
    }
    return 0;
  }
};

}  // namespace

TEST_CASE("pages that were only read are given back, those of other files stay") {
  const std::string name = "txport_mapped_" + std::to_string(::getpid());
  const MappedFile ours(name);
  const MappedFile other(name + ".txt");
  release(ours.path);
  CHECK(ours.resident() == 0);
  CHECK(other.resident() == kBytes);
  CHECK(std::count(ours.data, ours.data + kBytes, 'x') == kBytes);
  release(other.path.parent_path() / (name + ".nowhere"));
  CHECK(other.resident() == kBytes);
}

TEST_CASE("what was written is kept") {
  const MappedFile file("txport_mapped_" + std::to_string(::getpid()));
  file.data[5] = 'y';
  release(file.path);
  CHECK(file.data[5] == 'y');
}
