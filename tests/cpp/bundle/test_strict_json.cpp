#include <doctest/doctest.h>

#include "bundle/strict_json.hpp"
#include "errors.hpp"

using namespace txport::core;

namespace {

std::string fault_of(const std::string& data) {
  try {
    parse(data, "file.json");
  } catch (const BundleError& error) {
    return error.what();
  }
  return "accepted";
}

bool refused(const std::string& data, const std::string& words) {
  const std::string fault = fault_of(data);
  INFO(fault);
  return fault.rfind("file.json", 0) == 0 && fault.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("what is not JSON by our rules") {
  CHECK(refused("", "not valid JSON"));
  CHECK(refused("[]", "must hold a JSON object, not an array"));
  CHECK(refused("{\"a\": 1, \"a\": 2}", "'a' occurs twice"));
  CHECK(refused("{\"a\": {\"b\": 1, \"b\": 1}}", "'b' occurs twice"));
  CHECK(refused("{\"a\": NaN}", "not valid JSON"));
  CHECK(refused("{\"a\": 1e999}", "not valid JSON"));
  CHECK(refused("{\"a\": 9223372036854775808}", "does not fit 64 bits"));
  CHECK(refused("{\"a\": -9223372036854775809}", "does not fit 64 bits"));
  CHECK(refused("{\"a\": 123456789012345678901234567890}", "does not fit 64 bits"));
  CHECK(refused("{\"a\": \"\\ud800\"}", "not valid JSON"));
  CHECK(refused("{\"a\": \"\xC0\xAF\"}", "not valid JSON"));
  CHECK(refused("\xEF\xBB\xBF{}", "byte order mark"));
  CHECK(refused(std::string("{}\0{", 4), "NUL"));
  CHECK(refused("{} {}", "not valid JSON"));
  CHECK(refused("{\"a\": " + std::string(1000, '[') + std::string(1000, ']') + "}", "too deeply"));
}

TEST_CASE("values of the wrong type name their path") {
  const Json json = parse(R"({"a": [{"b": true}], "n": 9223372036854775807, "x": 1, "e": 2.5})", "file.json");
  const Value value(json, "file.json");
  const auto fault = [&](const auto& body) {
    try {
      body();
    } catch (const BundleError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(value["n"].integer() == 9223372036854775807);
  CHECK(value["x"].number() == 1.0);
  CHECK(value["e"].number() == 2.5);
  CHECK(fault([&] { value["a"].items()[0]["b"].integer(); }) ==
        "file.json: a[0].b must be an integer, not true or false");
  CHECK(fault([&] { value["e"].integer(); }) == "file.json: e must be an integer, not a number");
  CHECK(fault([&] { value["a"].items(2); }) == "file.json: a must be an array of 2, not of 1");
  CHECK(fault([&] { value.fields({"a", "n", "x"}); }).find("unknown field 'e'") != std::string::npos);
  CHECK(fault([&] { value.fields({"a", "n", "x", "e", "z"}); }).find("lacks the field 'z'") != std::string::npos);
  CHECK(fault([&] { value["x"].literal({"p", "q"}); }) == "file.json: x is 1, not one of p, q");
}
