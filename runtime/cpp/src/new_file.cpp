#include "new_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>

#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

// Return the absolute path with symbolic links resolved.
fs::path resolved(const std::string& path) {
  std::error_code fault;
  fs::path found = fs::weakly_canonical(fs::absolute(path, fault), fault);
  return fault ? fs::path(path) : found;
}

std::string temporary_path_of(const fs::path& path) {
  constexpr unsigned kDigits = 8;
  std::random_device random;
  std::string name = "." + path.filename().string() + ".txport-";
  for (unsigned i = 0; i < kDigits; ++i) name += "0123456789abcdef"[random() % 16];
  return (path.parent_path() / name).string();
}

}  // namespace

NewFile::NewFile(const std::string& path) : path_(resolved(path).string()), temporary_(temporary_path_of(path_)) {
  std::error_code fault;
  const fs::file_status status = fs::status(path_, fault);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InputError(path_ + " exists and is not a file: choose another path");
  }
}

void NewFile::open() {
  constexpr mode_t kMode = 0666;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (descriptor_ < 0) fail(errno);
  struct stat old {};  // keep the permissions of the old file
  if (::stat(path_.c_str(), &old) == 0 && ::fchmod(descriptor_, old.st_mode & 07777U) != 0) fail(errno);
}

NewFile::~NewFile() {
  ::close(descriptor_);
  ::unlink(temporary_.c_str());  // already gone if it was published
}

void NewFile::publish() {
  if (::fsync(descriptor_) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
}

void NewFile::fail(int code) const {
  if (code == ENOSPC || code == EDQUOT) {
    throw ResourceError("the disk is full: " + path_ + " was not written; free some space or choose another disk");
  }
  throw_io_failure(path_ + " cannot be written (" + std::generic_category().message(code) + "): choose another path",
                   code);
}

}  // namespace txport::core
