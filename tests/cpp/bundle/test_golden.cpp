#include <doctest/doctest.h>

#include "bundle/golden.hpp"
#include "errors.hpp"
#include "repository.hpp"

using namespace txport::core;

TEST_CASE("golden.json") {
  const auto cases = parse_golden(contents(kToyBundle / "golden.json"), "golden.json");
  REQUIRE(cases.size() == 5);
  CHECK(cases[0].source == "the cat sees a bird");
  CHECK(cases[0].source_ids == Ids{4, 14, 15, 17, 7, 3});
  CHECK_THROWS_WITH_AS(parse_golden(R"({"format_version": 2, "cases": []})", "g.json"),
                       "g.json has format_version 2, but this txport reads 1: copy or export the bundle again",
                       BundleError);
  CHECK_THROWS_AS(parse_golden(R"({"format_version": 1.0, "cases": []})", "g.json"), BundleError);
  CHECK_THROWS_AS(parse_golden(R"({"format_version": true, "cases": []})", "g.json"), BundleError);
  CHECK_THROWS_AS(parse_golden(R"({"format_version": 1})", "g.json"), BundleError);
  CHECK_THROWS_AS(parse_golden(R"({"format_version": 1, "cases": [{"source": "a", "source_ids": [1]}]})", "g.json"),
                  BundleError);
}
