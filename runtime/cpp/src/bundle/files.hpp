// Files that are read whole, in pieces, or mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace txport::core {

// The largest manifest, vocabulary or golden file that is read.
inline constexpr std::size_t kLargestFile = std::size_t{16} << 20;

// Gives the bytes of a file, or of its first `most` ones, in pieces. Throws std::system_error.
void read_chunks(const std::filesystem::path& path, std::size_t most,
                 const std::function<void(std::string_view)>& take);

// The bytes of a file, or of its first `most` ones. Throws std::system_error.
std::string read_file(const std::filesystem::path& path, std::size_t most);

// The bytes of a file of a bundle. Throws BundleError: it is missing, cannot be read, or is larger than `most`.
std::string read_bundle_file(const std::filesystem::path& path, std::size_t most = kLargestFile);

// A file of a bundle in memory, as pages that are read when they are needed. The file must not be shortened meanwhile.
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

// Throws BundleError: the size of a file differs from the manifest.
void check_size(const std::filesystem::path& path, std::uintmax_t size, std::uintmax_t expected);

}  // namespace txport::core
