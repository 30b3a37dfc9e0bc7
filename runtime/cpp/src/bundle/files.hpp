// Reading and mapping of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace txport::core {

// Maximum size of a manifest, vocabulary or golden file.
inline constexpr std::size_t kLargestFile = std::size_t{16} << 20;

// Call `take` with chunks of a file, up to `max_bytes` in total. Throws std::system_error.
void read_chunks(const std::filesystem::path& path, std::size_t max_bytes,
                 const std::function<void(std::string_view)>& take);

// Return the bytes of a file, up to `max_bytes`. Throws std::system_error.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

// Return the bytes of a file of a bundle. Throws BundleError: it is missing, cannot be read, or is larger than
// `max_bytes`.
std::string read_bundle_file(const std::filesystem::path& path, std::size_t max_bytes = kLargestFile);

// A memory-mapped file of a bundle. The file must not be shortened while it is mapped.
class MappedFile {
 public:
  // Throws BundleError: the file has another size than `bytes`, or cannot be mapped.
  MappedFile(const std::filesystem::path& path, std::size_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const std::byte* data() const { return static_cast<const std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Throw BundleError if the size of a file differs from the manifest.
void check_size(const std::filesystem::path& path, std::uintmax_t size, std::uintmax_t expected);

}  // namespace txport::core
