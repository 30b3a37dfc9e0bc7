// The interface of the graphs (format 1): names, types, shapes and aliases of what runtimes bind as raw buffers.
//
// txport.runtime.bundle.interface is the same in Python; tests/data/interface.json holds both to each other.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bundle/manifest.hpp"

namespace txport::core {

// Added to the attention scores of padding: below the scores of any trained model. In float16, the bits of the lowest
// finite number, -65504.
inline constexpr float kMasked = -1e30F;
inline constexpr std::uint16_t kMaskedHalf = 0xFBFF;

inline constexpr const char* kEncoder = "encoder";
inline constexpr const char* kStep = "decoder_step";
// Of optional graphs: the decoder over whole translations, and the encoder whose own output and attention are read.
inline constexpr const char* kDecoder = "decoder";
inline constexpr const char* kEncoderAttention = "encoder_attention";
// And one step of beam search, whose hypotheses share what their sentence has.
inline constexpr const char* kBeams = "decoder_beams";
// The source of an encoder: ids or, of a model that reads them, feature vectors.
inline constexpr const char* kInputIds = "input_ids";
inline constexpr const char* kFeatures = "features";
inline constexpr const char* kCrossBias = "cross_bias";
inline constexpr const char* kCrossIds = "cross_ids";  // the source's, where the model copies
// Inputs that only some graphs need.
inline constexpr const char* kCachePositions = "cache_positions";
inline constexpr const char* kSlotPositions = "slot_positions";
// Which slots of its sentence's caches a hypothesis continues.
inline constexpr const char* kAncestors = "self_ancestors";
// Candidates of each row of a step of beam search, and by what their logits are normalised.
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

// The interface of one of these roles. `floating` is the type of keys, values, bias and logits; the outputs of optional
// graphs are float32 in every precision.
Interface interface_of(const std::string& role, const ModelSizes& sizes, const std::string& floating);

// Whether a tensor is a self-attention cache, `[batch, heads, target or slots, head_dim]`, or of its slots.
bool is_cache(const std::string& name);
// Whether a tensor is cross-attention's: an output of the encoder and an input of the step.
bool is_cross(const std::string& name);
// Whether engines bind this output: all except optional ones that this version does not support.
bool is_bound(const Tensor& output);

}  // namespace txport::core
