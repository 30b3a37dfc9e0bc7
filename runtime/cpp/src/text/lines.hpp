// Lines of a byte stream in windows: at once when a person types, many together when a file is piped in.
//
// Lines end at "\n" and nowhere else, so that line numbers agree with every other tool's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace txport::core {

// A window is translated together: enough lines to sort by length and to keep a batch full.
inline constexpr std::size_t kWindowLines = 1024;
// If the first lines are needed soon, windows begin with this size, and double.
inline constexpr std::size_t kFirstLines = 32;

// A file that is open for reading.
class InputFile {
 public:
  // Throws InputError: it cannot be read.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return descriptor_; }

  // See that a file can be read, without opening it: a pipe of that name could be opened once only. Throws InputError.
  static void check(const std::string& path);

 private:
  int descriptor_;
};

// Reads a file descriptor to its end.
class Windows {
 public:
  // `most`: lines of a window. A window of large lines has fewer. `first`: lines of the first window, if that is less;
  // each one after it may have twice as many as the one before.
  Windows(int descriptor, std::size_t most, std::size_t first = kWindowLines)
      : descriptor_(descriptor), most_(most), now_(std::min(first, most)) {}

  // Whole lines without their ends, as soon as there are any; none at the end. Throws InputError: it cannot be read.
  std::vector<std::string> next();

 private:
  int descriptor_;
  std::size_t most_;
  std::size_t now_;  // lines of the next window
  std::deque<std::string> lines_;
  std::string rest_;      // of a line whose end has not come yet
  std::size_t size_ = 0;  // bytes read and not returned yet
  bool ended_ = false;

  bool ready() const;
  std::vector<std::string> take();
};

// All bytes of a file descriptor, to its end. Throws InputError, ResourceError: it cannot be read.
std::string read_all(int descriptor);

// A translation as one line of output; a line break in it must not shift the lines after it.
std::string as_line(std::string text);

// Write bytes at once, unbuffered; false if the reader closed the pipe. Throws InputError: they cannot be written.
// ResourceError: the disk is full or fails.
bool write_all(int descriptor, std::string_view data);

}  // namespace txport::core
