// Description of a model for engines without graphs: its sizes, and the position and layout of each tensor in the
// weights file (the field `parameters` of a manifest). The Python twin is txport.runtime.bundle.parameters.
//
// Names are those of the model's state dict. Relative positions have the layout of `RelativePositions.table`. Weight
// and bias of every `query` are multiplied by head_dim^-0.5. If source_embedding.tokens.weight or projection.weight is
// missing, target_embedding.tokens.weight is used instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ids.hpp"

namespace txport::core {

// Sizes of a model, which determine sizes of buffers.
struct ModelSizes {
  std::int64_t encoder_layers = 0;
  std::int64_t decoder_layers = 0;
  std::int64_t d_model = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t source_vocabulary = 0;
  std::int64_t target_vocabulary = 0;
  bool copies = false;             // decoder steps also read the source ids
  std::int64_t encoder_heads = 0;  // `heads` and `head_dim` belong to the decoder
  // Size of a feature vector, for a model that reads vectors instead of source ids. If there are no encoder layers, the
  // vectors are the states of another encoder.
  std::optional<std::int64_t> feature_size;

  bool reads_states() const { return encoder_layers == 0; }
};

// Properties of the model that sizes and tensors do not determine.
struct Architecture {
  std::string norm;        // post, pre or post_final
  std::string activation;  // relu, gelu (exact), gelu_tanh or silu; gated layers apply it to the gate
  double embedding_scale = 1;
  double layer_norm_epsilon = 0;
  std::string norm_kind = "layer";  // or rms, without biases
};

// A view of weights.bin, with its offset in bytes and its strides in elements. For int8 tensors, `scales` is the byte
// offset of the scales, contiguous float32 [shape[0]].
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

// A model without graphs.
struct ModelFile {
  std::filesystem::path weights;
  std::int64_t bytes = 0;  // size of the weights file
  ModelSizes sizes;
  SpecialTokens tokens;
  Limits limits;
  std::string precision;  // of the weights: float32, float16 or int8; with int8, activations and caches are also int8
  Parameters parameters;
  std::shared_ptr<const std::byte> data;  // bytes of the weights file; null: read the file
};

// Return a message about the first invalid size of a model; empty if all are valid.
std::string size_fault(const ModelSizes& sizes);

// Return a message about the first special token outside the vocabulary; empty if all are valid. Sizes must be valid.
std::string token_fault(const ModelSizes& sizes, const SpecialTokens& tokens);

// Return a message about the first fault of the parameters; empty if there is none. Checks that all tensors exist, that
// their shapes match the model, and that their views are inside the file. The file is not read. Sizes must be valid.
std::string parameter_fault(const ModelFile& model);

// Throw BundleError for any of these faults, or for limits that are not positive.
void check_model(const ModelFile& model);

}  // namespace txport::core
