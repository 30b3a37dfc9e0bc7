#include "text/lines.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <system_error>

#include "errors.hpp"
#include "text/plain.hpp"

namespace txport::core {

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 16;
constexpr std::size_t kWindowBytes = std::size_t{1} << 20;

[[noreturn]] void fail(const std::string& what, int code) {
  throw_io_failure(what + ": " + std::generic_category().message(code), code);
}

// Read the next bytes, at most the size of the chunk; empty at the end.
std::string_view read_some(int descriptor, std::vector<char>& chunk) {
  while (true) {
    const ssize_t count = ::read(descriptor, chunk.data(), chunk.size());
    if (count >= 0) return {chunk.data(), static_cast<std::size_t>(count)};
    if (errno != EINTR) fail("the input cannot be read", errno);
  }
}

}  // namespace

std::string read_all(int descriptor) {
  std::vector<char> chunk(kChunk);
  std::string text;
  for (auto data = read_some(descriptor, chunk); !data.empty(); data = read_some(descriptor, chunk)) text += data;
  return text;
}

InputFile::InputFile(const std::string& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {  // NOLINT(cppcoreguidelines-pro-type-vararg)
  if (descriptor_ < 0) fail(path + " cannot be read", errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) return;
  std::array<char, kPeek> first{};
  const ssize_t count = ::pread(descriptor_, first.data(), first.size(), 0);
  try {
    check_content(path, {first.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))});
  } catch (const InputError&) {
    ::close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::check(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || ::access(path.c_str(), R_OK) != 0) fail(path + " cannot be read", errno);
  if (S_ISDIR(status.st_mode)) throw InputError(path + " is a directory: give a text file");
  check_name(path);
}

std::vector<std::string> Windows::next() {
  std::vector<char> chunk(kChunk);
  while (!ended_) {
    if (!lines_.empty() && (lines_.size() >= next_size_ || size_ >= kWindowBytes || !ready())) return take();
    std::string_view data = read_some(descriptor_, chunk);
    if (data.empty()) {
      ended_ = true;
      if (!rest_.empty()) lines_.push_back(std::move(rest_));
      break;
    }
    size_ += data.size();
    for (std::size_t end = data.find('\n'); end != std::string_view::npos; end = data.find('\n')) {
      rest_ += data.substr(0, end);
      lines_.push_back(std::move(rest_));
      rest_.clear();
      data.remove_prefix(end + 1);
    }
    rest_ += data;
  }
  return take();
}

std::vector<std::string> Windows::take() {
  const auto end = lines_.begin() + static_cast<std::ptrdiff_t>(std::min(next_size_, lines_.size()));
  std::vector<std::string> window(std::make_move_iterator(lines_.begin()), std::make_move_iterator(end));
  lines_.erase(lines_.begin(), end);
  for (const std::string& line : window) size_ -= std::min(size_, line.size() + 1);
  next_size_ = std::min(2 * next_size_, max_lines_);
  return window;
}

bool Windows::ready() const {
  pollfd status{descriptor_, POLLIN, 0};
  return ::poll(&status, 1, 0) > 0;
}

std::string as_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text + "\n";
}

bool write_all(int descriptor, std::string_view data) {
  while (!data.empty()) {
    const ssize_t count = ::write(descriptor, data.data(), data.size());
    if (count >= 0) {
      data.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EPIPE) {
      return false;
    } else if (errno != EINTR) {
      fail("the output cannot be written", errno);
    }
  }
  return true;
}

}  // namespace txport::core
