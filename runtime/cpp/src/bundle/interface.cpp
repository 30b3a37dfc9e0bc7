#include "bundle/interface.hpp"

namespace txport::core {

namespace {

using Shape = std::vector<Size>;

void add(std::vector<Tensor>& tensors, const std::vector<std::string>& names, const std::string& dtype,
         const Shape& shape) {
  for (const std::string& name : names) tensors.push_back({name, dtype, shape, name == kLogits});
}

// Keys and values of each layer, after `start`.
std::vector<std::string> layers(const std::string& start, std::int64_t count) {
  std::vector<std::string> names;
  for (std::int64_t layer = 0; layer < count; ++layer) {
    for (const char* kind : {"key_", "value_"}) names.push_back(start + kind + std::to_string(layer));
  }
  return names;
}

}  // namespace

Interface interface_of(const std::string& role, const ModelSizes& sizes, const std::string& floating) {
  const auto cross = [&](std::vector<Tensor>& tensors) {
    add(tensors, {kCrossBias}, floating, {"batch", std::int64_t{1}, std::int64_t{1}, "source"});
    add(tensors, layers("cross_", sizes.decoder_layers), floating, {"batch", sizes.heads, "source", sizes.head_dim});
  };
  Interface result;
  if (role == kEncoder) {
    add(result.inputs, {"input_ids"}, "int64", {"batch", "source"});
    add(result.inputs, {"source_lengths"}, "int64", {"batch"});
    cross(result.outputs);
    return result;
  }
  add(result.inputs, {"token_ids", "positions"}, "int64", {"batch"});
  add(result.inputs, {"finished"}, "bool", {"batch"});
  add(result.inputs, layers("self_", sizes.decoder_layers), floating, {"batch", sizes.heads, "target", sizes.head_dim});
  // The state so far: each of these comes out advanced, in the same buffer.
  for (const Tensor& state : result.inputs) {
    add(result.outputs, {"next_" + state.name}, state.dtype, state.shape);
    result.aliases.emplace_back(state.name, result.outputs.back().name);
  }
  add(result.outputs, {kLogits}, floating, {"batch", sizes.target_vocabulary});
  add(result.inputs, {"target_limits"}, "int64", {"batch"});
  add(result.inputs, {kCachePositions}, "int64", {"target"});
  cross(result.inputs);
  return result;
}

bool is_cache(const std::string& name) { return name.rfind("self_", 0) == 0; }
bool is_cross(const std::string& name) { return name.rfind("cross_", 0) == 0; }
bool is_bound(const Tensor& output) { return !output.optional || output.name == kLogits; }

}  // namespace txport::core
