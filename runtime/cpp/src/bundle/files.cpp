#include "bundle/files.hpp"

#include <algorithm>
#include <system_error>
#include <vector>

#include "errors.hpp"
#include "system/system.hpp"

namespace txport::core {

namespace {

constexpr std::size_t kChunk = 1 << 16;  // larger ones cost page faults

}  // namespace

void read_chunks(const std::filesystem::path& path, std::size_t most,
                 const std::function<void(std::string_view)>& take) {
  const OpenFile file(path);
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
    throw BundleError(text_of(path) + " is missing or cannot be read: copy or export the bundle again");
  }
  if (data.size() <= most) return data;
  throw BundleError(text_of(path) + " is larger than " + std::to_string(most) + " bytes: export the bundle again");
}

MappedFile::MappedFile(const std::filesystem::path& path, std::size_t bytes) : bytes_(bytes) {
  try {
    const OpenFile file(path);
    check_size(path, file.size(), bytes);  // of what is mapped: another file may be at the path by now
    data_ = file.map(bytes);
  } catch (const std::system_error&) {
    throw BundleError(text_of(path) + " cannot be mapped into memory: copy or export the bundle again");
  }
}

MappedFile::~MappedFile() { unmap(data_, bytes_); }

void check_size(const std::filesystem::path& path, std::uintmax_t size, std::uintmax_t expected) {
  if (size == expected) return;
  throw BundleError(text_of(path) + " has " + std::to_string(size) + " bytes instead of " + std::to_string(expected) +
                    ": copy or export the bundle again");
}

}  // namespace txport::core
