// Interfaces of the graphs (format 1): names, types, shapes and aliases of the tensors that runtimes bind as raw
// buffers.
//
// The Python twin is txport.runtime.bundle.interface; tests/data/interface.json keeps both equal.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bundle/manifest.hpp"

namespace txport::core {

// Value that is added to the attention scores of padding; lower than the scores of any trained model. In float16, these
// are the bits of the lowest finite number, -65504.
inline constexpr float kMasked = -1e30F;
inline constexpr std::uint16_t kMaskedHalf = 0xFBFF;

inline constexpr const char* kEncoder = "encoder";
inline constexpr const char* kStep = "decoder_step";
// Roles of optional graphs: the decoder over whole translations, and the encoder with its output and attention.
inline constexpr const char* kDecoder = "decoder";
inline constexpr const char* kEncoderAttention = "encoder_attention";
// One step of beam search, whose hypotheses share the encoder output and cache of their sentence.
inline constexpr const char* kBeams = "decoder_beams";
// The source of an encoder: ids or, of a model that reads them, feature vectors.
inline constexpr const char* kInputIds = "input_ids";
inline constexpr const char* kFeatures = "features";
inline constexpr const char* kCrossBias = "cross_bias";
inline constexpr const char* kCrossIds = "cross_ids";  // source ids, for models that copy
// Inputs that only some graphs have.
inline constexpr const char* kCachePositions = "cache_positions";
inline constexpr const char* kSlotPositions = "slot_positions";
// Mask of the cache slots of its sentence that a hypothesis continues.
inline constexpr const char* kAncestors = "self_ancestors";
// Candidates of each row in a step of beam search, and the normaliser of their logits.
inline constexpr const char* kTopIds = "top_ids";
inline constexpr const char* kTopLogits = "top_logits";
inline constexpr const char* kNormaliser = "normaliser";
// An output that need not be bound.
inline constexpr const char* kLogits = "logits";

struct Interface {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::vector<std::pair<std::string, std::string>> aliases;  // (input, output) pairs that share one buffer
};

// Return the interface of a role. `floating` is the type of keys, values, bias and logits. Outputs of optional graphs
// are float32 in every precision.
Interface interface_of(const std::string& role, const ModelSizes& sizes, const std::string& floating);

// Return whether a tensor is a self-attention cache `[batch, heads, target or slots, head_dim]`, or belongs to its
// slots.
bool is_cache(const std::string& name);
// Return whether a tensor belongs to cross-attention: an output of the encoder and input of the step.
bool is_cross(const std::string& name);
// Return whether engines bind this output: all except optional outputs that this version does not support.
bool is_bound(const Tensor& output);

}  // namespace txport::core
