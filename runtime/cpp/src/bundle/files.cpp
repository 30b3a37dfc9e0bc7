#include "bundle/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::size_t kChunk = 1 << 16;  // larger ones cost page faults

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path) : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value_ < 0) throw std::system_error(errno, std::generic_category(), path.string());
  }
  ~Descriptor() { ::close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int value() const { return value_; }

  std::uintmax_t size() const {
    struct stat status {};
    if (::fstat(value_, &status) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
    return static_cast<std::uintmax_t>(status.st_size);
  }

  // Read some bytes; 0 at the end.
  std::size_t read(char* data, std::size_t most) const {
    while (true) {
      const ssize_t count = ::read(value_, data, most);
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "read");
    }
  }

 private:
  int value_;
};

}  // namespace

void read_chunks(const std::filesystem::path& path, std::size_t most,
                 const std::function<void(std::string_view)>& take) {
  const Descriptor file(path);
  std::vector<char> buffer(kChunk);
  while (most > 0) {
    const std::size_t count = file.read(buffer.data(), std::min(buffer.size(), most));
    if (count == 0) break;
    take({buffer.data(), count});
    most -= count;
  }
}

std::string read_file(const std::filesystem::path& path, std::size_t most) {
  std::string result;
  read_chunks(path, most, [&](std::string_view chunk) { result += chunk; });
  return result;
}

std::string read_bundle_file(const std::filesystem::path& path, std::size_t most) {
  std::string data;
  try {
    data = read_file(path, most + 1);
  } catch (const std::system_error&) {
    throw BundleError(path.string() + " is missing or cannot be read: copy or export the bundle again");
  }
  if (data.size() <= most) return data;
  throw BundleError(path.string() + " is larger than " + std::to_string(most) + " bytes: export the bundle again");
}

MappedFile::MappedFile(const std::filesystem::path& path, std::size_t bytes) : bytes_(bytes) {
  try {
    const Descriptor file(path);
    check_size(path, file.size(), bytes);  // of what is mapped: another file may be at the path by now
    data_ = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.value(), 0);
  } catch (const std::system_error&) {
    data_ = MAP_FAILED;
  }
  if (data_ == MAP_FAILED) {
    throw BundleError(path.string() + " cannot be mapped into memory: copy or export the bundle again");
  }
}

MappedFile::~MappedFile() { ::munmap(data_, bytes_); }

void check_size(const std::filesystem::path& path, std::uintmax_t size, std::uintmax_t expected) {
  if (size == expected) return;
  throw BundleError(path.string() + " has " + std::to_string(size) + " bytes instead of " + std::to_string(expected) +
                    ": copy or export the bundle again");
}

}  // namespace txport::core
