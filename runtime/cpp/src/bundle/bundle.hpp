// The files of a bundle, wherever they are: in a directory, in one file of tx-pack, or in the bytes of such a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "bundle/files.hpp"

namespace txport::core {

struct FileEntry {
  std::int64_t bytes = 0;
  std::string sha256;
};

// Copies share what is open. Methods throw BundleError: a file is missing, or cannot be read.
class Bundle {
 public:
  // A directory, or a mapped file, which must not be shortened meanwhile. Throws BundleError: the file is not as
  // tx-pack writes it. A path at which nothing is counts as a directory.
  Bundle(const std::filesystem::path& path);  // NOLINT(google-explicit-constructor): a path names a bundle
  Bundle(const char* path) : Bundle(std::filesystem::path(path)) {}         // NOLINT(google-explicit-constructor)
  Bundle(const std::string& path) : Bundle(std::filesystem::path(path)) {}  // NOLINT(google-explicit-constructor)

  // The bytes of a file of tx-pack, from a multiple of 8 on, which must stay as long as anything that was opened of
  // this. Throws InputError: they are elsewhere. BundleError: as above.
  static Bundle of_memory(std::string_view data);

  // The bundle or one of its files, in messages.
  const std::string& name() const { return name_; }
  std::string name(const std::string& file) const { return (std::filesystem::path(name_) / file).string(); }

  bool is_directory() const { return archive_ == nullptr; }
  const std::filesystem::path& directory() const { return directory_; }

  // The bytes of a file, up to a maximum size.
  std::string read(const std::string& file, std::size_t most = kLargestFile) const;

  // Check where a listed file is, its size and, if asked, its hash.
  void check(const std::string& file, const FileEntry& entry, bool contents) const;

  // For a file instead of a directory: whether it has such a member, and its bytes.
  bool has(const std::string& file) const;
  std::string_view view(const std::string& file) const;

  // The bytes, of exactly this size, for a while: pages of a file that were read are then released. Null for a
  // directory.
  std::shared_ptr<const std::byte> lent(const std::string& file, std::int64_t size) const;

  // A file that is part of another one: the path of that, which is empty if there is none, and the first byte in it.
  // Throws BundleError: another file has taken its place.
  struct Place {
    std::filesystem::path path;
    std::size_t start = 0;
  };
  Place place(const std::string& file) const;

 private:
  struct Archive;
  std::string name_;
  std::filesystem::path directory_;
  std::shared_ptr<const Archive> archive_;  // null for a directory

  Bundle() = default;
};

}  // namespace txport::core
