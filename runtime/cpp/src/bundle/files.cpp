#include "bundle/files.hpp"

#include <fcntl.h>
#include <sha2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
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

std::string hexadecimal(SHA2_CTX& context) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256Final(digest.data(), &context);
  std::string result;
  for (const unsigned char byte : digest) {
    result += "0123456789abcdef"[byte >> 4];
    result += "0123456789abcdef"[byte & 15];
  }
  return result;
}

void update(SHA2_CTX& context, const char* data, std::size_t size) {
  SHA256Update(&context, reinterpret_cast<const unsigned char*>(data), size);
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t most) {
  const Descriptor file(path);
  std::string result;
  std::vector<char> buffer(kChunk);
  while (result.size() < most) {
    const std::size_t count = file.read(buffer.data(), std::min(buffer.size(), most - result.size()));
    if (count == 0) break;
    result.append(buffer.data(), count);
  }
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

std::string sha256(std::string_view data) {
  SHA2_CTX context;
  SHA256Init(&context);
  update(context, data.data(), data.size());
  return hexadecimal(context);
}

std::string sha256_of(const std::filesystem::path& path) {
  const Descriptor file(path);
  SHA2_CTX context;
  SHA256Init(&context);
  std::vector<char> buffer(kChunk);
  while (const std::size_t count = file.read(buffer.data(), buffer.size())) update(context, buffer.data(), count);
  return hexadecimal(context);
}

}  // namespace txport::core
