#include <doctest/doctest.h>

#include <fstream>

#include "bundle/files.hpp"
#include "bundle/hash.hpp"
#include "errors.hpp"
#include "repository.hpp"

using namespace txport::core;

TEST_CASE("SHA-256 of FIPS 180-2's examples") {
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("files are read whole, and hashed as they are streamed") {
  const Scratch scratch;
  const auto path = scratch.path() / "file";
  const std::string data(3 * (1 << 20) + 5, 'a');
  std::ofstream(path) << data;
  CHECK(read_file(path, data.size()) == data);
  CHECK(read_file(path, 7) == "aaaaaaa");
  CHECK(sha256_of(path) == sha256(data));
  CHECK_THROWS_AS(read_bundle_file(path, data.size() - 1), BundleError);
  CHECK_THROWS_AS(read_bundle_file(scratch.path() / "nothing"), BundleError);
  CHECK_THROWS_AS(read_bundle_file(scratch.path()), BundleError);
}
