// A file that is either whole or absent.
#pragma once

#include <string>

namespace txport::core {

// A temporary sibling of a file, which takes its place when it is complete and is removed if it never is.
class NewFile {
 public:
  // Only a name. Throws InputError: `path` is not a regular file.
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Throws InputError: the place cannot be written. ResourceError: the disk is full.
  void open();
  // To write to.
  int descriptor() const { return descriptor_; }
  // Of the sibling.
  const std::string& temporary_path() const { return temporary_; }
  // Replace the file, so that readers see the old content or the new one. Throws as `open`.
  void publish();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;

  [[noreturn]] void fail(int code) const;
};

}  // namespace txport::core
