// A bundle's model, its matrices packed.
#pragma once

#include <cstddef>
#include <vector>

#include "bundle/parameters.hpp"
#include "fused/matrix.hpp"
#include "fused/team.hpp"
#include "fused/workspace.hpp"

namespace txport::core::fused {

// LayerNorm: [d, padded] each; none if they are empty.
struct Norm {
  std::vector<float> weight;
  std::vector<float> bias;
};

enum class Activation { none, relu, gelu, silu };

struct Embedding {
  Matrix tokens;                 // a row is an output; the projection's where they are tied
  std::vector<float> positions;  // [positions, width]
  Norm norm;
};

// Projections of queries, keys and values are packed head by head: [head, part, width of a head].
struct EncoderLayer {
  Matrix query_key_value, output, inner, outer;
};

struct DecoderLayer {
  Matrix query_key_value, self_output, query, key_value, cross_output, inner, outer;
};

struct Model {
  // Packs on all threads of `team`. The table was checked; the file is not needed afterwards. Throws BundleError.
  Model(const ModelFile& file, Team& team);

  std::size_t d;        // d_model
  std::size_t width;    // d, padded
  std::size_t ffn = 0;  // of the widest layer, padded
  Groups heads;
  std::size_t all;         // heads, padded
  std::size_t vocabulary;  // of the target
  std::size_t step_bytes;  // weights of the decoder, which a step reads
  float epsilon;           // of LayerNorm
  float embedding_scale;
  bool norm_first;   // pre-norm
  bool int8_caches;  // keys and values are int8, else float32
  Activation activation;
  Embedding source, target;
  std::vector<EncoderLayer> encoder;
  std::vector<DecoderLayer> decoder;
  Matrix projection;
  UpperBounds bounds;  // of the projection; empty if that is int8, or too wide
  // One before each sublayer and one after the last; with post-norm the first of them is none.
  std::vector<Norm> encoder_norms, decoder_norms;
  Norm encoder_final, decoder_final;  // the one more of post_final

 private:
  Block matrices_;
};

}  // namespace txport::core::fused
