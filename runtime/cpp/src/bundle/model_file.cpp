// Not in manifest.cpp, because tests of the engine alone are built without JSON and SHA-256.
#include "bundle/manifest.hpp"
#include "errors.hpp"

namespace txport::core {

ModelFile Manifest::model_file(const std::filesystem::path& directory) const {
  if (!parameters) throw EngineError("the fused engine cannot run " + directory.string() + ": " + kNoParameterTable);
  const std::int64_t bytes = files.at(kWeightsName).bytes;
  return {directory / kWeightsName, bytes, model, tokens, limits(), precision.weights, *parameters, nullptr};
}

}  // namespace txport::core
