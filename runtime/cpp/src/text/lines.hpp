// Reads lines of a byte stream in windows: small windows as lines are typed, large ones when a file is piped in.
//
// Lines end only at "\n", so that line numbers agree with those of other tools.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace txport::core {

// Maximum number of lines of a window. A window is translated together; this is enough to sort by length and fill
// batches.
inline constexpr std::size_t kWindowLines = 1024;
// Size of the first window if the first lines are needed soon. Later windows double in size.
inline constexpr std::size_t kFirstLines = 32;

// A file that is open for reading.
class InputFile {
 public:
  // Throws InputError: the file cannot be read, or it is compressed or binary.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return descriptor_; }

  // Check that a file can be read, and its name, without opening it, since a named pipe can be opened only once. Throws
  // InputError.
  static void check(const std::string& path);

 private:
  int descriptor_;
};

// Reads a file descriptor to its end.
class Windows {
 public:
  // `max_lines`: maximum number of lines of a window; windows of long lines have fewer. `first`: maximum of the first
  // window. It doubles with each window, up to `max_lines`.
  Windows(int descriptor, std::size_t max_lines, std::size_t first = kWindowLines)
      : descriptor_(descriptor), max_lines_(max_lines), next_size_(std::min(first, max_lines)) {}

  // Return complete lines without line ends, as soon as there are any; none at the end of the input. Throws InputError:
  // the input cannot be read.
  std::vector<std::string> next();

 private:
  int descriptor_;
  std::size_t max_lines_;
  std::size_t next_size_;  // maximum of the next window
  std::deque<std::string> lines_;
  std::string rest_;      // incomplete last line
  std::size_t size_ = 0;  // bytes read but not returned yet
  bool ended_ = false;

  bool ready() const;
  std::vector<std::string> take();
};

// Read all bytes of a file descriptor. Throws InputError, ResourceError: it cannot be read.
std::string read_all(int descriptor);

// Return a translation as one output line. Line breaks become spaces, so that later lines keep their numbers.
std::string as_line(std::string text);

// Write bytes without buffering. Return false if the reader closed the pipe. Throws InputError: the output cannot be
// written; ResourceError: the disk is full or failed.
bool write_all(int descriptor, std::string_view data);

}  // namespace txport::core
