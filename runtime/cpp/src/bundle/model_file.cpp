// Apart from manifest.cpp: tests of the engine alone have neither JSON nor SHA-256.
#include "bundle/manifest.hpp"
#include "errors.hpp"

namespace txport::core {

ModelFile Manifest::model_file(const std::filesystem::path& directory) const {
  if (!parameters) throw EngineError("the fused engine cannot run " + directory.string() + ": " + kNoParameters);
  const std::int64_t bytes = files.at(kWeightsName).bytes;
  return {directory / kWeightsName, bytes, model, tokens, limits(), precision.weights, *parameters, nullptr};
}

}  // namespace txport::core
