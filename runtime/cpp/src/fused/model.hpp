// The model of a bundle, with packed matrices.
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

// LayerNorm, or RMSNorm, which has no bias. Weight and bias are [d, padded]. If both are empty, there is no norm.
struct Norm {
  std::vector<float> weight;
  std::vector<float> bias;
};

enum class Activation { none, relu, gelu, gelu_tanh, silu };

// Bias of relative positions, which is added to scores (Raffel et al. 2020, section 2.1). Each head has one vector over
// all distances. A query reads the part of it that begins at the distance of the first key.
struct PositionBias {
  std::vector<float> values;  // [tables, heads, stride]; empty if there is no bias
  std::size_t tables = 0;     // number of tables: 1, or one for each layer
  std::size_t heads = 0;
  std::size_t stride = 0;
  std::size_t zero = 0;  // index of the distance 0

  // Return the biases of a query from the first key on, padded to a multiple of 16; null if there is no bias.
  const float* of(std::size_t layer, std::size_t head, std::size_t position) const {
    if (values.empty()) return nullptr;
    return values.data() + ((layer < tables ? layer : 0) * heads + head) * stride + zero - position;
  }
};

// Rotary positions (Su et al. 2021), which rotate queries and keys. Each vector is [positions, width of a head,
// padded]. Both are empty if positions are not rotary.
struct Rotation {
  std::vector<float> cosines;
  std::vector<float> sines;  // negative for the first number of each pair
};

struct Embedding {
  Matrix tokens;                 // each token is an output; the projection, if it is tied
  std::vector<float> positions;  // [positions, width]; one row of zeros if no positions are added
  std::size_t next = 0;          // stride of positions; 0 if there is only the row of zeros
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
  // Pack the matrices with all threads of `team`. The table of parameters must have been checked. The file is not
  // needed afterwards. Throws BundleError.
  Model(const ModelFile& file, Team& team);

  std::size_t d;                // d_model
  std::size_t width;            // d, padded
  std::size_t ffn = 0;          // hidden size of the widest feed-forward layer, padded
  Groups encoder_heads;         // heads of the encoder
  Groups heads;                 // heads of the decoder
  std::size_t encoder_all = 0;  // width of all heads of the encoder, padded
  std::size_t all;              // width of all heads of the decoder, padded
  std::size_t vocabulary;       // size of the target vocabulary
  std::size_t features = 0;     // size of a feature vector; 0 if the model reads ids
  std::size_t step_bytes;       // bytes of weights that a step reads
  std::size_t layer_bytes = 0;  // bytes of weights of an encoder layer
  float epsilon;                // of all norms
  float embedding_scale;
  bool norm_first;           // whether norms come before sublayers (pre-norm)
  bool gated = false;        // whether feed-forward layers are gated (Shazeer 2020)
  bool int8_caches = false;  // whether keys and values are int8, otherwise float32
  Activation activation;
  Matrix feature_projection;  // projection of feature vectors; empty if they are the states of another encoder
  Embedding source, target;
  PositionBias encoder_bias, decoder_bias;
  Rotation encoder_rotation, decoder_rotation;
  std::vector<EncoderLayer> encoder;
  std::vector<DecoderLayer> decoder;
  Matrix projection;
  UpperBounds bounds;  // bounds of the projection; empty if the projection is too wide for int8, or int8 and small
  // A norm before each sublayer, and one after the last. With post-norm, the first of them is empty.
  std::vector<Norm> encoder_norms, decoder_norms;
  Norm encoder_final, decoder_final;  // the additional norm of the placement post_final

 private:
  Block matrices_;
};

// A projection to the words of some shortlists only: column c is the token ids()[c]. If there are too many words to
// copy their weights, it is the projection of the model, whose column c is the token c.
class Selection {
 public:
  // Lay out the projection; `gather` copies its weights. A list may be null, which means all words. Throws
  // std::bad_alloc.
  Selection(const Model& model, const std::vector<Words>& lists);

  // Copy this thread's share of the panels. All threads must have done so before the projection is read.
  void gather(const Member& member) const;

  bool has(const Words& words) const { return columns_.count(words) > 0; }
  const Matrix& projection() const { return projection_; }
  const UpperBounds& bounds() const { return bounds_; }
  // Return the tokens of the columns, ascending; empty for the projection of the model.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  // Return the columns of one of the lists: all columns if the list has all selected words.
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
