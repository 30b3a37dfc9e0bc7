// What an engine without graphs runs: a model's sizes, and where each of its tensors lies in the file of weights, in
// which form; the table is the field `parameters` of a manifest, the same as txport.runtime.bundle.parameters.
//
// Names are those of the model's state dict. Relative positions are stored as `RelativePositions.table` has them.
// Weight and bias of every `query` are stored times head_dim^-0.5. Where source_embedding.tokens.weight or
// projection.weight is missing, it is target_embedding.tokens.weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine.hpp"

namespace txport::core {

// What a runtime needs to size its buffers.
struct ModelSizes {
  std::int64_t encoder_layers = 0;
  std::int64_t decoder_layers = 0;
  std::int64_t d_model = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t source_vocabulary = 0;
  std::int64_t target_vocabulary = 0;
  bool copies = false;             // a step reads the source's ids as well
  std::int64_t encoder_heads = 0;  // `heads` and `head_dim` are the decoder's
  // Numbers of a feature vector, of a model that reads vectors instead of source ids. If there are no encoder layers,
  // the vectors are the states of another encoder.
  std::optional<std::int64_t> feature_size;

  bool reads_states() const { return encoder_layers == 0; }
};

// Arithmetic of the model that does not follow from sizes and tensors.
struct Architecture {
  std::string norm;        // post, pre or post_final
  std::string activation;  // relu, gelu (by erf), gelu_tanh or silu; of gates, if there are some
  double embedding_scale = 1;
  double layer_norm_epsilon = 0;
  std::string norm_kind = "layer";  // or rms, which has no bias
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

// All of a model but its graphs.
struct ModelFile {
  std::filesystem::path weights;
  std::int64_t bytes = 0;  // of that file
  ModelSizes sizes;
  SpecialTokens tokens;
  Limits limits;
  std::string precision;  // of the weights: float32, float16 or int8, with which activations and caches are int8, too
  Parameters parameters;
  std::shared_ptr<const std::byte> data;  // the bytes; null: those of the file at the path
};

// The first size of a model that is not one, or an empty text.
std::string size_fault(const ModelSizes& sizes);

// The first id that a model of valid sizes does not have, or an empty text.
std::string token_fault(const ModelSizes& sizes, const SpecialTokens& tokens);

// The first fault of the table of a model of valid sizes, or an empty text: whether it is complete, its shapes are the
// model's and its views lie in the file. Nothing is read.
std::string parameter_fault(const ModelFile& model);

// Throws BundleError: any of these faults, or limits that are not positive.
void check_model(const ModelFile& model);

}  // namespace txport::core
