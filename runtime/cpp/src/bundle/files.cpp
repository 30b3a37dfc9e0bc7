#include "bundle/files.hpp"

#include <algorithm>
#include <system_error>
#include <vector>

#include "errors.hpp"
#include "system/system.hpp"

namespace txport::core {

namespace {

constexpr std::size_t kChunk = 1 << 16;  // larger buffers cause page faults

}  // namespace

void read_chunks(const std::filesystem::path& path, std::size_t max_bytes,
                 const std::function<void(std::string_view)>& take) {
  const OpenFile file(path);
  std::vector<char> buffer(kChunk);
  while (max_bytes > 0) {
    const std::size_t count = file.read(buffer.data(), std::min(buffer.size(), max_bytes));
    if (count == 0) break;
    take({buffer.data(), count});
    max_bytes -= count;
  }
}

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::string result;
  read_chunks(path, max_bytes, [&](std::string_view chunk) { result += chunk; });
  return result;
}

std::string read_bundle_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::string data;
  try {
    data = read_file(path, max_bytes + 1);
  } catch (const std::system_error&) {
    throw BundleError(text_of(path) + " is missing or cannot be read: copy or export the bundle again");
  }
  if (data.size() <= max_bytes) return data;
  throw BundleError(text_of(path) + " is larger than " + std::to_string(max_bytes) + " bytes: export the bundle again");
}

MappedFile::MappedFile(const std::filesystem::path& path, std::size_t bytes) : bytes_(bytes) {
  try {
    const OpenFile file(path);
    check_size(path, file.size(), bytes);  // check the open file, since the path may now belong to another file
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
