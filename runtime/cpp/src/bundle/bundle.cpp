#include "bundle/bundle.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "bundle/archive.hpp"
#include "bundle/hash.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

bool is_relative_to(const fs::path& path, const fs::path& directory) {
  const auto [rest, unused] = std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return rest == directory.end();
}

// Return whether the name of a file ends in .argosmodel, in letters of any case.
bool is_argos_package(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& letter : extension) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return extension == ".argosmodel";
}

// The identity of a file, to detect that it was replaced.
struct Identity {
  explicit Identity(const fs::path& path) {
    if (::stat(path.c_str(), &status) != 0) status = {};
  }
  bool operator==(const Identity& other) const {
    return status.st_dev == other.status.st_dev && status.st_ino == other.status.st_ino &&
           status.st_mtim.tv_sec == other.status.st_mtim.tv_sec &&
           status.st_mtim.tv_nsec == other.status.st_mtim.tv_nsec;
  }
  struct stat status {};
};

// Release the pages of a mapping that are completely inside a view.
void release_pages(std::string_view view) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = (page - reinterpret_cast<std::uintptr_t>(view.data()) % page) % page;
  if (view.size() <= before) return;
  const std::size_t size = (view.size() - before) / page * page;
  ::madvise(const_cast<char*>(view.data()) + before, size, MADV_DONTNEED);
}

}  // namespace

struct Bundle::Archive {
  // Map a file.
  explicit Archive(const fs::path& path)
      : file(fs::canonical(path)),
        identity(Identity(file)),
        mapped(std::in_place, file, static_cast<std::size_t>(identity->status.st_size)),
        members(read_archive(
            {reinterpret_cast<const char*>(mapped->data()), static_cast<std::size_t>(identity->status.st_size)},
            path.string())) {}
  Archive(std::string_view data, const std::string& name) : members(read_archive(data, name)) {}

  fs::path file;  // empty for bytes in memory
  std::optional<Identity> identity;
  std::optional<MappedFile> mapped;
  std::map<std::string, std::string_view> members;
};

Bundle::Bundle(const fs::path& path) : name_(path.string()) {
  std::error_code fault;
  if (!fs::is_regular_file(path, fault)) {
    directory_ = path;
    return;
  }
  if (is_argos_package(path)) throw BundleError(name_ + kArgosPackage);
  if (fs::file_size(path, fault) == 0) {
    throw BundleError(name_ + " is not a bundle: give a directory of tx-export or a file of tx-pack");
  }
  archive_ = std::make_shared<const Archive>(path);
}

Bundle Bundle::of_memory(std::string_view data) {
  if (reinterpret_cast<std::uintptr_t>(data.data()) % 8 != 0) {
    throw InputError("the address of the bundle in memory is not a multiple of 8: copy it to an aligned buffer");
  }
  Bundle bundle;
  bundle.name_ = "the bundle in memory";
  bundle.archive_ = std::make_shared<const Archive>(data, bundle.name_);
  return bundle;
}

std::string Bundle::read(const std::string& file, std::size_t max_bytes) const {
  if (!archive_) return read_bundle_file(directory_ / file, max_bytes);
  const std::string_view bytes = view(file);
  if (bytes.size() <= max_bytes) return std::string(bytes);
  throw BundleError(name(file) + " is larger than " + std::to_string(max_bytes) + " bytes: export the bundle again");
}

bool Bundle::has(const std::string& file) const {
  if (!archive_) return fs::exists(fs::symlink_status(directory_ / file));
  return archive_->members.count(file) == 1;
}

std::string_view Bundle::view(const std::string& file) const {
  const auto found = archive_->members.find(file);
  if (found != archive_->members.end()) return found->second;
  throw BundleError(name(file) + " is missing or cannot be read: copy or export the bundle again");
}

void Bundle::check(const std::string& file, const FileEntry& entry, bool contents) const {
  const fs::path path = directory_ / file;
  try {
    if (!archive_ && !is_relative_to(fs::canonical(path), fs::canonical(directory_))) {
      throw BundleError(path.string() + " is a link that leaves the bundle: copy the bundle with cp -rL");
    }
    if (!archive_ && !fs::is_regular_file(path)) {
      throw BundleError(path.string() + " is not a file: the bundle is damaged, copy or export it again");
    }
    check_size(name(file), archive_ ? view(file).size() : fs::file_size(path),
               static_cast<std::uintmax_t>(entry.bytes));
    if (contents && (archive_ ? sha256(view(file)) : sha256_of(path)) != entry.sha256) {
      throw BundleError(name(file) + " was changed (its SHA-256 differs): copy or export the bundle again");
    }
  } catch (const std::system_error&) {  // from file system functions and from reading
    throw BundleError(path.string() + " is missing or cannot be read: copy or export the bundle again");
  }
}

std::shared_ptr<const std::byte> Bundle::lent(const std::string& file, std::int64_t size) const {
  if (!archive_) return nullptr;
  const std::string_view bytes = view(file);
  check_size(name(file), bytes.size(), static_cast<std::uintmax_t>(size));
  return {reinterpret_cast<const std::byte*>(bytes.data()), [archive = archive_, bytes](const std::byte*) {
            if (archive->mapped) release_pages(bytes);
          }};
}

Bundle::Place Bundle::place(const std::string& file) const {
  const std::string_view bytes = view(file);
  if (!archive_->mapped) return {};
  if (!(Identity(archive_->file) == *archive_->identity)) {
    throw BundleError(name_ + " was replaced or changed since it was opened: open it again");
  }
  const auto* first = reinterpret_cast<const char*>(archive_->mapped->data());
  return {archive_->file, static_cast<std::size_t>(bytes.data() - first)};
}

}  // namespace txport::core
