#include "bundle/interface.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace txport::core {

namespace {

using Shape = std::vector<Size>;

// Outputs that a runtime need not bind.
constexpr std::array<std::string_view, 4> kOptionalOutputs{kLogits, "memory", "cross_attention", "self_attention"};

void add(std::vector<Tensor>& tensors, const std::vector<std::string>& names, const std::string& dtype,
         const Shape& shape) {
  for (const std::string& name : names) {
    const bool optional = std::find(kOptionalOutputs.begin(), kOptionalOutputs.end(), name) != kOptionalOutputs.end();
    tensors.push_back({name, dtype, shape, optional});
  }
}

// Maximum number of candidates per row in a step of beam search.
constexpr std::int64_t kMaxTop = 16;

// Return the names of keys and values of all layers, with the prefix `start`.
std::vector<std::string> layers(const std::string& start, std::int64_t count) {
  std::vector<std::string> names;
  for (std::int64_t layer = 0; layer < count; ++layer) {
    for (const char* kind : {"key_", "value_"}) names.push_back(start + kind + std::to_string(layer));
  }
  return names;
}

}  // namespace

Interface interface_of(const std::string& role, const ModelSizes& sizes, const std::string& floating) {
  const std::vector<std::string> cross = layers("cross_", sizes.decoder_layers);
  const std::vector<std::string> caches = layers("self_", sizes.decoder_layers);
  const Shape cross_shape{"batch", sizes.heads, "source", sizes.head_dim};
  const Shape cache_shape{"batch", sizes.heads, "target", sizes.head_dim};
  const auto add_ids = [&sizes](std::vector<Tensor>& tensors) {
    if (sizes.copies) add(tensors, {kCrossIds}, "int64", {"batch", std::int64_t{1}, "source", std::int64_t{1}});
  };
  const Shape bias_shape{"batch", std::int64_t{1}, std::int64_t{1}, "source"};
  Interface result;
  if (role == kEncoder || role == kEncoderAttention) {
    if (sizes.feature_size) {
      add(result.inputs, {kFeatures}, "float32", {"batch", "source", *sizes.feature_size});
    } else {
      add(result.inputs, {kInputIds}, "int64", {"batch", "source"});
    }
    add(result.inputs, {"source_lengths"}, "int64", {"batch"});
    if (role == kEncoderAttention) {
      add(result.outputs, {"memory"}, "float32", {"batch", "source", sizes.d_model});
      add(result.outputs, {"self_attention"}, "float32",
          {sizes.encoder_layers, "batch", sizes.encoder_heads, "source", "source"});
      return result;
    }
    add(result.outputs, cross, floating, cross_shape);
    add(result.outputs, {kCrossBias}, floating, bias_shape);
    add_ids(result.outputs);
    return result;
  }
  if (role == kDecoder) {
    add(result.inputs, {"target_ids"}, "int64", {"batch", "target"});
    add(result.inputs, {"target_lengths"}, "int64", {"batch"});
    add(result.inputs, {kCrossBias}, floating, bias_shape);
    add(result.inputs, cross, floating, cross_shape);
    add_ids(result.inputs);
    add(result.outputs, {"log_probabilities"}, "float32", {"batch", "target"});
    for (const char* keys : {"source", "target"}) {
      const char* name = keys == std::string_view("source") ? "cross_attention" : "self_attention";
      add(result.outputs, {name}, "float32", {sizes.decoder_layers, "batch", sizes.heads, "target", keys});
    }
    return result;
  }
  if (role == kBeams) {
    const Shape slots_shape{"batch", sizes.heads, "slots", sizes.head_dim};
    const std::int64_t top = std::min(kMaxTop, sizes.target_vocabulary);
    add(result.inputs, {"token_ids", "positions", "rows"}, "int64", {"batch", "beam"});
    add(result.inputs, {"first_slots"}, "int64", {"batch"});
    add(result.inputs, {kSlotPositions}, "int64", {"slots"});
    add(result.inputs, {kCrossBias}, floating, bias_shape);
    add(result.inputs, cross, floating, cross_shape);
    add(result.inputs, {kAncestors}, "bool", {"batch", "beam", "slots"});
    add(result.inputs, caches, floating, slots_shape);
    add_ids(result.inputs);
    add(result.outputs, {kTopIds}, "int64", {"rows", top});
    add(result.outputs, {kTopLogits}, "float32", {"rows", top});
    add(result.outputs, {kNormaliser}, "float32", {"rows", std::int64_t{1}});
    for (const std::string& cache : caches) {
      add(result.outputs, {"next_" + cache}, floating, slots_shape);
      result.aliases.emplace_back(cache, result.outputs.back().name);
    }
    add(result.outputs, {kLogits}, floating, {"rows", sizes.target_vocabulary});
    return result;
  }
  // The state is an input and, advanced by one step, an output in the same buffers.
  std::vector<Tensor> state;
  add(state, {"token_ids", "positions"}, "int64", {"batch"});
  add(state, {"finished"}, "bool", {"batch"});
  result.inputs = state;
  add(result.inputs, {"target_limits"}, "int64", {"batch"});
  add(result.inputs, {kCachePositions}, "int64", {"target"});
  add(result.inputs, {kCrossBias}, floating, bias_shape);
  add(result.inputs, cross, floating, cross_shape);
  add(result.inputs, caches, floating, cache_shape);
  add_ids(result.inputs);
  add(state, caches, floating, cache_shape);
  for (const Tensor& tensor : state) {
    add(result.outputs, {"next_" + tensor.name}, tensor.dtype, tensor.shape);
    result.aliases.emplace_back(tensor.name, result.outputs.back().name);
  }
  add(result.outputs, {kLogits}, floating, {"batch", sizes.target_vocabulary});
  return result;
}

bool is_cache(const std::string& name) { return name.rfind("self_", 0) == 0; }
bool is_cross(const std::string& name) { return name.rfind("cross_", 0) == 0; }
bool is_bound(const Tensor& output) { return !output.optional || output.name == kLogits; }

}  // namespace txport::core
