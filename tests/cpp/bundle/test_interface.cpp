// The graphs' contract as Python has it: tests/data/interface.json is compared with both languages.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "bundle/interface.hpp"
#include "repository.hpp"

using namespace txport::core;
using nlohmann::json;

namespace {

json listed(const std::vector<Tensor>& tensors) {
  json result = json::array();
  for (const Tensor& tensor : tensors) {
    json shape = json::array();
    for (const Size& size : tensor.shape) {
      std::visit([&](const auto& value) { shape.push_back(value); }, size);
    }
    result.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", shape}, {"optional", tensor.optional}});
  }
  return result;
}

ModelSizes sizes_of(const json& model) {
  const json encoder_heads = model.value("encoder_heads", model["heads"]);
  return {model["encoder_layers"],
          model["decoder_layers"],
          model["d_model"],
          model["heads"],
          model["head_dim"],
          model["source_vocabulary"],
          model["target_vocabulary"],
          model.value("copies", false),
          encoder_heads,
          model.contains("feature_size") ? std::optional(model["feature_size"].get<std::int64_t>()) : std::nullopt};
}

}  // namespace

TEST_CASE("the interface is that of Python") {
  const json expected = json::parse(contents(kTests / "data" / "interface.json"));
  CHECK(expected["format_version"] == kFormatVersion);
  CHECK(expected["files"] == json{{"manifest", kManifestName}, {"golden", kGoldenName}, {"weights", kWeightsName}});
  CHECK(expected["lowerings"] == json(kLowerings));
  CHECK(expected["masked"].get<float>() == kMasked);
  CHECK(expected["optional_inputs"] == json::array({kCachePositions, kSlotPositions}));
  REQUIRE(expected["models"].size() == 5);
  for (const json& item : expected["models"]) {
    for (const char* role : {kEncoder, kStep, kDecoder, kEncoderAttention}) {
      const Interface found = interface_of(role, sizes_of(item["model"]), item["type"]);
      CHECK(listed(found.inputs) == item[role]["inputs"]);
      CHECK(listed(found.outputs) == item[role]["outputs"]);
      CHECK(json(found.aliases) == item[role]["aliases"]);
    }
  }
}
