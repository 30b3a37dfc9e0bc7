// The computations of the engine, with the best instruction set of the processor.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fused/model.hpp"
#include "fused/row.hpp"
#include "fused/team.hpp"
#include "fused/workspace.hpp"

namespace txport::core::fused {

// Shape of the keys and values of a sentence, of all heads of all decoder layers.
struct CacheShape {
  std::size_t layers = 0;
  std::size_t heads = 0;
  std::size_t k = 0;          // width of a head
  std::size_t positions = 0;  // padded
  bool int8 = false;
  std::size_t head_bytes() const { return positions * (int8 ? 2 * k + 3 * sizeof(float) : 2 * k * sizeof(float)); }
  std::size_t layer_bytes() const { return heads * head_bytes(); }
  std::size_t bytes() const { return layers * layer_bytes(); }
};
inline CacheShape cache_shape(const Model& model, std::size_t positions) {
  CacheShape shape;
  shape.layers = model.decoder.size();
  shape.heads = model.heads.count;
  shape.k = model.heads.width();
  shape.positions = padded(positions);
  shape.int8 = model.int8_caches;
  return shape;
}
// Return the shape of the keys and values of one encoder layer.
inline CacheShape source_shape(const Model& model, std::size_t positions) {
  CacheShape shape = cache_shape(model, positions);
  shape.layers = 1;
  shape.heads = model.encoder_heads.count;
  shape.k = model.encoder_heads.width();
  return shape;
}

// A sentence to encode. The keys and values of cross-attention, for `length` positions, are written to `cross`.
struct Source {
  const std::int64_t* ids;  // null for a model that reads vectors
  const float* features;    // [length, Model::features]; null for a model that reads ids
  std::size_t length;
  std::byte* cross;
};

// Sentences that a team encodes together.
struct EncodeJob {
  const Model& model;
  const Workspace& workspace;
  std::size_t team = 0;  // index of the team's buffers, and of the own buffers of its first thread
  const Source* sources = nullptr;
  std::size_t count = 0;        // number of sources
  std::size_t tokens = 0;       // number of tokens of all sources
  std::size_t cache_bytes = 0;  // size of the keys and values of one layer; the team has memory for two layers
  bool by_columns = false;      // whether threads divide heads and columns between them; otherwise they divide tokens
};

// Return the maximum number of tokens that a thread of a team encodes.
constexpr std::size_t most_tokens(std::size_t tokens, std::size_t threads) {
  return std::min(tokens, (tokens + threads - 1) / threads + 3);
}
// Write the tokens of a thread to `to`, and return their range among the tokens of the team. The four positions of a
// sentence from a multiple of four on belong to one thread, since int8 values have them in the same 32-bit words.
Member::Range share_tokens(const EncodeJob& job, const Member& member, SourceToken* to);

// Steps of the rows of a team.
struct StepJob {
  const Model& model;
  const Workspace& workspace;
  std::size_t team = 0;        // as in EncodeJob
  Row* const* rows = nullptr;  // unfinished rows
  std::size_t count = 0;       // number of rows
  std::size_t first = 0;       // number of rows of earlier teams in the same call
  std::size_t eos = 0;
  std::size_t steps = 0;
  std::int64_t* made = nullptr;  // [steps, stride] generated tokens of the state's rows; initially pad
  const Row* base = nullptr;     // first row of the state
  std::size_t stride = 0;
  const Matrix* projection = nullptr;        // projection of the model, or a selection of its columns
  const UpperBounds* bounds = nullptr;       // bounds of the projection; null to multiply by all of its panels
  std::atomic<std::size_t>* read = nullptr;  // receives the number of panels that bounds do not exclude; may be null
  const std::int32_t* ids = nullptr;         // tokens of the columns; null if columns are tokens
  std::size_t id_count = 0;
  float* hidden = nullptr;        // [rows, width] inputs of the projection
  float* logits = nullptr;        // [rows, outputs of the projection], or null
  std::size_t top = 0;            // number of candidates of a row
  Best* candidates = nullptr;     // [rows of the state, top]
  double* normalisers = nullptr;  // [rows of the state]
};

// Compilers whose assemblers support AVX-VNNI.
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define TXPORT_AVX_VNNI
#endif

// Instructions for int8 dot products that this processor has and Highway's targets lack. Tests change it while no
// engine runs.
struct Extensions {
  bool avx512_vnni = false;
  bool avx_vnni = false;
  bool i8mm = false;  // SMMLA
};
Extensions& extensions();

struct InstructionSet {
  const char* name = nullptr;  // Highway's name
  void (*encode)(const EncodeJob&, const Member&) = nullptr;
  void (*step)(const StepJob&, const Member&) = nullptr;
  // Compute the logits of panels of a projection for a row `hidden` [inputs], as a step does.
  void (*project)(const Matrix&, const float* hidden, const OwnBuffers&, Member::Range panels, float* logits) = nullptr;
  // Return the logarithm of the sum of e^x over this number of logits, whose padding is -infinity.
  double (*log_sum_exp)(const float* logits, std::size_t size) = nullptr;
};

// Return the best instruction set that this processor has and the engine is compiled for; its fields are null if there
// is none. The environment variable TXPORT_MAX_ISA=AVX2, for tests and measurements, excludes better ones than AVX2.
// Throws InputError: the variable has another value.
const InstructionSet& instruction_set();

}  // namespace txport::core::fused
