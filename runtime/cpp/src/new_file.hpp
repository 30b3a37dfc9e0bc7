// A file that appears only when it is complete.
#pragma once

#include <string>

namespace txport::core {

// A temporary file in the same directory. It replaces the target file when it is complete; otherwise it is removed.
class NewFile {
 public:
  // Choose the name of the temporary file, without creating it. Throws InputError: `path` exists and is not a regular
  // file.
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Create the temporary file. Throws InputError: it cannot be written; ResourceError: the disk is full.
  void open();
  // Return the descriptor for writing.
  int descriptor() const { return descriptor_; }
  // Return the path of the temporary file.
  const std::string& temporary_path() const { return temporary_; }
  // Replace the target file atomically: readers see either the old or the new content. Throws the errors of `open`.
  void publish();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;

  [[noreturn]] void fail(int code) const;
};

}  // namespace txport::core
