// A bundle's model, its matrices packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "bundle/parameters.hpp"
#include "fused/matrix.hpp"
#include "fused/row.hpp"
#include "fused/team.hpp"
#include "fused/workspace.hpp"

namespace txport::core::fused {

// LayerNorm, or RMSNorm, which has no bias: [d, padded] each; none if both are empty.
struct Norm {
  std::vector<float> weight;
  std::vector<float> bias;
};

enum class Activation { none, relu, gelu, gelu_tanh, silu };

// What relative positions add to scores (Raffel et al. 2020, section 2.1): for each head one vector over distances, of
// which a query reads its part.
struct PositionBias {
  std::vector<float> values;  // [tables, heads, stride]; empty if there is none
  std::size_t tables = 0;     // 1, or one for each layer
  std::size_t heads = 0;
  std::size_t stride = 0;
  std::size_t zero = 0;  // where the distance 0 is

  // From the first key on, and up to a multiple of 16; null if there is none.
  const float* of(std::size_t layer, std::size_t head, std::size_t position) const {
    if (values.empty()) return nullptr;
    return values.data() + ((layer < tables ? layer : 0) * heads + head) * stride + zero - position;
  }
};

// Rotary positions (Su et al. 2021), which turn queries and keys: [positions, width of a head] each, padded.
struct Rotation {
  std::vector<float> cosines;
  std::vector<float> sines;  // of the first of each pair negative; empty if positions are not rotary
};

struct Embedding {
  Matrix tokens;                 // a row is an output; the projection's where they are tied
  std::vector<float> positions;  // [positions, width]; one row of zeros where they are not added
  std::size_t next = 0;          // numbers from one position to the next
  Norm norm;
};

// Projections of queries, keys and values are packed head by head: [head, part, width of a head].
struct EncoderLayer {
  Matrix query_key_value, output, gate, inner, outer;
};

struct DecoderLayer {
  Matrix query_key_value, self_output, query, key_value, cross_output, gate, inner, outer;
};

struct Model {
  // Packs on all threads of `team`. The table was checked; the file is not needed afterwards. Throws BundleError.
  Model(const ModelFile& file, Team& team);

  std::size_t d;        // d_model
  std::size_t width;    // d, padded
  std::size_t ffn = 0;  // of the widest layer, padded
  Groups encoder_heads;
  Groups heads;                 // of the decoder
  std::size_t encoder_all = 0;  // heads, padded
  std::size_t all;
  std::size_t vocabulary;       // of the target
  std::size_t features = 0;     // numbers of a feature vector; 0: the model reads ids
  std::size_t step_bytes;       // weights of the decoder, which a step reads
  std::size_t layer_bytes = 0;  // weights of a layer of the encoder
  float epsilon;                // of the norms
  float embedding_scale;
  bool norm_first;           // pre-norm
  bool gated = false;        // feed-forward layers (Shazeer 2020)
  bool int8_caches = false;  // keys and values are int8, else float32
  Activation activation;
  Matrix feature_projection;  // of vectors; none if they are the states of another encoder
  Embedding source, target;
  PositionBias encoder_bias, decoder_bias;
  Rotation encoder_rotation, decoder_rotation;
  std::vector<EncoderLayer> encoder;
  std::vector<DecoderLayer> decoder;
  Matrix projection;
  UpperBounds bounds;  // of the projection; empty if that is too wide, or int8 and small
  // One before each sublayer and one after the last; with post-norm the first of them is none.
  std::vector<Norm> encoder_norms, decoder_norms;
  Norm encoder_final, decoder_final;  // the one more of post_final

 private:
  Block matrices_;
};

// The union of some lists of words, and the projection's outputs for these alone: column c is the token ids()[c].
// If they are too many to copy, it is the projection itself, whose column c is the token c.
class Selection {
 public:
  // Without the weights, which `gather` copies. A list may be null: it has all words. Throws std::bad_alloc.
  Selection(const Model& model, const std::vector<Words>& lists);

  // Copies this thread's share of the panels. All threads must have done so before the projection is read.
  void gather(const Member& member) const;

  bool has(const Words& words) const { return columns_.count(words) > 0; }
  const Matrix& projection() const { return projection_; }
  const UpperBounds& bounds() const { return bounds_; }
  const std::vector<std::int32_t>& ids() const { return ids_; }  // ascending; empty: of the projection itself
  // Of one of the lists; all of them if its words are those of all lists.
  Columns columns(const Words& words) const;

 private:
  const Model& model_;
  std::vector<std::int32_t> ids_;
  std::map<Words, std::vector<std::int32_t>> columns_;
  Block memory_;
  Matrix projection_;
  UpperBounds bounds_;

  std::size_t lay_out(std::byte* base);
};

}  // namespace txport::core::fused
