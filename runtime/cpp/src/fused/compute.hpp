// The two computations of the engine, each by the best instruction set of the processor.
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

// Keys and values of a sentence, of all heads of all decoder layers.
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
// Of one layer of the encoder.
inline CacheShape source_shape(const Model& model, std::size_t positions) {
  CacheShape shape = cache_shape(model, positions);
  shape.layers = 1;
  shape.heads = model.encoder_heads.count;
  shape.k = model.encoder_heads.width();
  return shape;
}

// A sentence to encode; `cross` gets cross-attention's keys and values, for `length` positions.
struct Source {
  const std::int64_t* ids;  // null for a model that reads vectors
  const float* features;    // [length, Model::features]; null for a model that reads ids
  std::size_t length;
  std::byte* cross;
};

// Sentences that a team encodes as one.
struct EncodeJob {
  const Model& model;
  const Workspace& workspace;
  std::size_t team = 0;  // whose buffers; its threads' own begin with the same number
  const Source* sources = nullptr;
  std::size_t count = 0;
  std::size_t tokens = 0;       // of all of them
  std::size_t cache_bytes = 0;  // of one layer's keys and values; the team has room for two
  bool by_columns = false;      // threads share every token, by heads and columns; else each has tokens of its own
};

// Maximum number of tokens that a thread of a team encodes.
constexpr std::size_t most_tokens(std::size_t tokens, std::size_t threads) {
  return std::min(tokens, (tokens + threads - 1) / threads + 3);
}
// Which ones: `to` and their places among the team's. Four positions of a sentence, from a multiple of four on, are one
// thread's, since they are bytes of the same words of int8 values.
Member::Range share_tokens(const EncodeJob& job, const Member& member, SourceToken* to);

// Steps of a team's rows.
struct StepJob {
  const Model& model;
  const Workspace& workspace;
  std::size_t team = 0;        // as above
  Row* const* rows = nullptr;  // unfinished ones
  std::size_t count = 0;
  std::size_t first = 0;  // how many rows other teams of the same call have before these
  std::size_t eos = 0;
  std::size_t steps = 0;
  std::int64_t* made = nullptr;  // [steps, stride], of the state's rows from `base` on; filled with pad
  const Row* base = nullptr;
  std::size_t stride = 0;
  const Matrix* projection = nullptr;        // the model's, or a selection of it
  const UpperBounds* bounds = nullptr;       // of it, to read its copy first; null: to read it whole
  std::atomic<std::size_t>* read = nullptr;  // gets how many panels the bounds did not rule out, unless null
  const std::int32_t* ids = nullptr;         // of its columns; null: they are the tokens themselves
  std::size_t id_count = 0;
  float* hidden = nullptr;        // [rows, width] what is projected
  float* logits = nullptr;        // [rows, the projection's outputs], or null
  std::size_t top = 0;            // candidates of a row
  Best* candidates = nullptr;     // [the state's rows, top]
  double* normalisers = nullptr;  // [the state's rows]
};

// Compilers whose assemblers support AVX-VNNI.
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define TXPORT_AVX_VNNI
#endif

// Int8 dot products of this processor that are not of a target of Highway. Tests change it while nothing runs.
struct Extensions {
  bool avx512_vnni = false;
  bool avx_vnni = false;
  bool i8mm = false;  // SMMLA
};
Extensions& extensions();

struct InstructionSet {
  const char* name = nullptr;  // Highway's
  void (*encode)(const EncodeJob&, const Member&) = nullptr;
  void (*step)(const StepJob&, const Member&) = nullptr;
  // Panels of a projection of a row `hidden` [inputs]: what a step makes of it.
  void (*project)(const Matrix&, const float* hidden, const OwnBuffers&, Member::Range panels, float* logits) = nullptr;
  // ln of the sum of e^x over this number of logits, whose padding is -infinity.
  double (*log_sum_exp)(const float* logits, std::size_t size) = nullptr;
};

// The best one that this processor has and the engine is compiled for; empty if there is none. With the environment
// variable TXPORT_MAX_ISA=AVX2, for tests and measurements, not better than AVX2. Throws InputError: it has another
// value.
const InstructionSet& instruction_set();

}  // namespace txport::core::fused
