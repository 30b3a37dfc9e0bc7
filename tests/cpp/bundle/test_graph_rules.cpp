// What a graph of a bundle may contain: the same hostile graphs as in tests/runtime/bundle/test_graph_rules.py.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "bundle/graph_rules.hpp"
#include "errors.hpp"
#include "repository.hpp"

using namespace txport::core;

namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& digits) {
  std::string result;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    result.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return result;
}

}  // namespace

TEST_CASE("graphs of committed bundles pass") {
  std::size_t count = 0;
  for (const fs::path& bundle : {kToyBundle, kTests / "data" / "before_t5" / "bundle"}) {
    for (const auto& entry : fs::directory_iterator(bundle / "onnx")) {
      if (entry.path().extension() != ".onnx") continue;
      CHECK_NOTHROW(checked_graph(Bundle(bundle), "onnx/" + entry.path().filename().string()));
      ++count;
    }
  }
  CHECK(count == 8);
  CHECK_NOTHROW(checked_graph(Bundle(kTests / "data" / "toy_bundle.txb"), "onnx/encoder.onnx"));
}

TEST_CASE("graphs that no export writes are refused, in the words of Python") {
  const auto hostile = nlohmann::json::parse(contents(kTests / "data" / "hostile_graphs.json"));
  const auto weights = hostile["weights"].get<std::uint64_t>();
  for (const auto& [name, each] : hostile["refused"].items()) {
    const std::string model = bytes_of(each["model"].get<std::string>());
    const std::string fault = fault_of<BundleError>([&] { check_graph(model, weights); });
    const std::string title = name + ": " + fault;  // a lambda of C++17 captures no structured binding
    INFO(title);
    CHECK(fault.find(each["words"].get<std::string>()) != std::string::npos);
  }
}

TEST_CASE("graphs at other places, of other formats or of any size are refused") {
  const Scratch scratch;
  const auto bundle = scratch.bundle();
  fs::create_directories(bundle / "onnx" / "x");
  for (const char* name : {"encoder.onnx", "onnx/x/encoder.onnx", "onnx/encoder.ort"}) {
    fs::copy_file(bundle / "onnx" / "encoder.onnx", bundle / name);
    CHECK(fault_of<BundleError>([&] { checked_graph(Bundle(bundle), name); }) ==
          "txport does not load " + (bundle / name).string() +
              ", which is not a file onnx/*.onnx: export the bundle again with tx-export");
  }
  fs::resize_file(bundle / "onnx" / "encoder.onnx", kLargestGraph + 1);
  CHECK_THROWS_AS(checked_graph(Bundle(bundle), "onnx/encoder.onnx"), BundleError);
}
