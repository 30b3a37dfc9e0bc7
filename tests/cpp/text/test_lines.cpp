#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "errors.hpp"
#include "repository.hpp"
#include "text/lines.hpp"

using namespace txport::core;

namespace {

class Pipe {
 public:
  Pipe() { REQUIRE(::pipe(ends_) == 0); }
  ~Pipe() {
    ::close(ends_[0]);
    close_writer();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int reader() const { return ends_[0]; }
  void write(const std::string& data) const { REQUIRE(write_all(ends_[1], data)); }
  void close_writer() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  int ends_[2];
};

using Window = std::vector<std::string>;

}  // namespace

TEST_CASE("a line that stands alone is given at once, and what is ready comes together") {
  Pipe pipe;
  Windows windows(pipe.reader(), 3);
  pipe.write("one\n");
  CHECK(windows.next() == Window{"one"});
  pipe.write("a\nb\n\nd\ne\nrest");
  CHECK(windows.next() == Window{"a", "b", ""});
  CHECK(windows.next() == Window{"d", "e"});
  pipe.write(" of a line\r\n\xFF\v");
  CHECK(windows.next() == Window{"rest of a line\r"});
  pipe.close_writer();
  CHECK(windows.next() == Window{"\xFF\v"});
  CHECK(windows.next().empty());
  CHECK(windows.next().empty());
}

TEST_CASE("windows grow where somebody waits") {
  Pipe pipe;
  for (int i = 0; i < 100; ++i) pipe.write("x\n");
  Windows windows(pipe.reader(), 20, 4);
  const std::vector<std::size_t> sizes{4, 8, 16, 20, 20, 20};
  for (const std::size_t size : sizes) CHECK(windows.next().size() == size);
  CHECK(windows.next().size() == 12);
}

TEST_CASE("files that cannot be read") {
  CHECK_THROWS_WITH_AS(InputFile::check("/nothing/here"), "/nothing/here cannot be read: No such file or directory",
                       InputError);
  CHECK_THROWS_WITH_AS(InputFile::check("/dev"), "/dev is a directory: give a text file", InputError);
  CHECK_THROWS_AS(InputFile("/nothing/here"), InputError);
}

TEST_CASE("a window of large lines has fewer, and a line may have any length") {
  Pipe pipe;
  std::thread writer([&] {
    for (int i = 0; i < 5; ++i) pipe.write(std::string(900'000, static_cast<char>('a' + i)) + "\n");
    pipe.close_writer();
  });
  Windows windows(pipe.reader(), 1000);
  std::size_t lines = 0;
  for (auto window = windows.next(); !window.empty(); window = windows.next()) {
    CHECK(window.size() <= 3);
    for (const auto& line : window) CHECK(line == std::string(900'000, static_cast<char>('a' + lines++)));
  }
  writer.join();
  CHECK(lines == 5);
}

TEST_CASE("output") {
  CHECK(as_line("a\nb") == "a b\n");
  Pipe pipe;
  CHECK_THROWS_AS(write_all(pipe.reader(), "x"), InputError);
  const int full = ::open("/dev/full", O_WRONLY);
  CHECK_THROWS_AS(write_all(full, "x"), ResourceError);
  ::close(full);
  CHECK_THROWS_AS(Windows(-1, 10).next(), InputError);
}
