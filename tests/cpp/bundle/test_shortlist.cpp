// Files of shortlists; tests/runtime/bundle/test_shortlist.py refuses the same ones in the same words.

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>

#include "bundle/shortlist.hpp"
#include "errors.hpp"
#include "repository.hpp"

using namespace txport::core;

namespace {

using Numbers = std::vector<std::int32_t>;

// Of 3 source ids and 9 target ids: 3 and 5 in every list, and what the source ids 0 and 2 bring.
Numbers sound() { return {0x4C535854, 1, 3, 9, 2, 3, 3, 5, 0, 2, 2, 3, 1, 7, 4}; }

const std::filesystem::path kFile = std::filesystem::temp_directory_path() / "txport-test-shortlist.bin";

Shortlist open(const Numbers& numbers, std::size_t less = 0) {
  std::ofstream(kFile, std::ios::binary)
      .write(reinterpret_cast<const char*>(numbers.data()), static_cast<std::streamsize>(4 * numbers.size() - less));
  ModelSizes model;
  model.source_vocabulary = 3;
  model.target_vocabulary = 9;
  return {kFile.parent_path(), kFile.filename().string(), model, 3};
}

std::string fault(std::size_t place, std::int32_t value, std::size_t less = 0) {
  Numbers numbers = sound();
  numbers.at(place) = value;
  try {
    open(numbers, less);
  } catch (const BundleError& error) {
    const std::string text = error.what();
    const std::string begin = kFile.string() + " ";
    const std::string end = ": make it again with tx-shortlist";
    REQUIRE(text.substr(0, begin.size()) == begin);
    REQUIRE(text.substr(text.size() - end.size()) == end);
    return text.substr(begin.size(), text.size() - begin.size() - end.size());
  }
  return "";
}

}  // namespace

TEST_CASE("a shortlist gives each sentence the words of all and of its own ids") {
  const Shortlist shortlist = open(sound());
  CHECK(*shortlist.words({1}, {}) == Ids{3, 5});
  CHECK(*shortlist.words({0, 2, 0}, {8, 5}) == Ids{1, 3, 4, 5, 7, 8});
}

TEST_CASE("a shortlist that cannot be is refused") {
  CHECK(fault(0, 7) == "is not a shortlist");
  CHECK(fault(1, 2) == "is of version 2, and this txport reads version 1");
  CHECK(fault(3, 8) == "is for vocabularies of 3 and 8 ids, but the model has 3 and 9");
  CHECK(fault(4, 10) == "has 10 words in every list, more than the vocabulary of 9");
  CHECK(fault(4, 1) == "has 60 bytes, which differs from its header");
  CHECK(fault(5, -1) == "has 60 bytes, which differs from its header");
  CHECK(fault(5, 3, 1) == "has 59 bytes, which differs from its header");
  CHECK(fault(6, 2) == "lacks the end of sequence, 3, among the words of every list");
  CHECK(fault(7, 9) == "has the word 9, outside the vocabulary of 9");
  CHECK(fault(12, -1) == "has the word -1, outside the vocabulary of 9");
  CHECK(fault(12, 7) == "has words that are not in ascending order");
  CHECK(fault(9, 1) == "");
  CHECK(fault(9, 4) == "has word ranges that are not consecutive");
  CHECK_THROWS_AS(open({}), BundleError);
  std::filesystem::remove(kFile);
}
