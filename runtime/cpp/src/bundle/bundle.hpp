// Access to the files of a bundle in a directory, in a file of tx-pack, or in memory.
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

// The rest of the message for a package of Argos Translate, after its path.
inline constexpr char kArgosPackage[] = " is a package of Argos Translate: tx-get makes a bundle of it";

// Copies share open files. Methods throw BundleError: a file is missing or cannot be read.
class Bundle {
 public:
  // Open a directory, or map a file of tx-pack, which must not be shortened while it is open. A path that does not
  // exist is treated as a directory. Throws BundleError: the file is not a valid file of tx-pack.
  Bundle(const std::filesystem::path& path);  // NOLINT(google-explicit-constructor): a path names a bundle
  Bundle(const char* path) : Bundle(std::filesystem::path(path)) {}         // NOLINT(google-explicit-constructor)
  Bundle(const std::string& path) : Bundle(std::filesystem::path(path)) {}  // NOLINT(google-explicit-constructor)

  // Open the bytes of a file of tx-pack. They must outlive everything that is opened from the bundle. Throws
  // InputError: their address is not a multiple of 8; BundleError: as above.
  static Bundle of_memory(std::string_view data);

  // Return the name of the bundle or of one of its files, for messages.
  const std::string& name() const { return name_; }
  std::string name(const std::string& file) const { return (std::filesystem::path(name_) / file).string(); }

  bool is_directory() const { return archive_ == nullptr; }
  const std::filesystem::path& directory() const { return directory_; }

  // Return the bytes of a file, which may have up to `max_bytes`.
  std::string read(const std::string& file, std::size_t max_bytes = kLargestFile) const;

  // Check that a listed file is inside the bundle, its size and, if `contents` is set, its hash.
  void check(const std::string& file, const FileEntry& entry, bool contents) const;

  // Return whether there is such a file; a broken link counts as one.
  bool has(const std::string& file) const;

  // Only for files of tx-pack: return the bytes of a member.
  std::string_view view(const std::string& file) const;

  // Return the bytes of a member of exactly this size for temporary use. Releasing the pointer also releases the pages
  // of the mapped file from memory. Null for a directory.
  std::shared_ptr<const std::byte> lent(const std::string& file, std::int64_t size) const;

  // The location of a member inside the file of tx-pack: the path of that file (empty for a bundle in memory) and the
  // offset of the member's first byte. Throws BundleError: the file was replaced since it was opened.
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
