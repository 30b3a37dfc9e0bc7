// The field `parameters` of a manifest: where each tensor of the model lies in weights.bin, in which form; the same as
// txport.runtime.bundle.parameters.
//
// Names are those of the model's state dict. Weight and bias of every `query` are stored times head_dim^-0.5. Where
// source_embedding.tokens.weight or projection.weight is missing, it is target_embedding.tokens.weight.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bundle/strict_json.hpp"
#include "engine.hpp"

namespace txport::core {

struct Manifest;

// What the sizes and the tensors do not say about the model's arithmetic.
struct Architecture {
  std::string norm;        // post, pre or post_final
  std::string activation;  // relu, gelu (by erf) or silu
  double embedding_scale = 1;
  double layer_norm_epsilon = 0;
};

// A view of weights.bin: offset in bytes, strides in elements. An int8 tensor has scales, the offset in bytes of
// float32 [shape[0]], contiguous.
struct Parameter {
  std::string name;
  std::string dtype;  // float32, float16 or int8
  std::int64_t offset = 0;
  Ids shape;
  Ids strides;
  std::optional<std::int64_t> scales;
};

struct Parameters {
  Architecture architecture;
  std::vector<Parameter> tensors;
};

// Throws BundleError: the value is not such a table.
Parameters decode_parameters(const Value& value);

// The first fault of a manifest's table, or an empty text: whether it is complete, its shapes are the model's and its
// views lie in the file.
std::string parameter_fault(const Manifest& manifest, const Parameters& parameters);

}  // namespace txport::core
