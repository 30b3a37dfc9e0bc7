// Interface of engines, which run a bundle with a library: they encode sentences and then decode a fixed set of rows,
// step by step, in buffers that they own.
//
// The search (search/) uses these classes and does not depend on a library. Engines do not depend on the search. An
// engine on a GPU keeps its buffers there, and the host waits for the GPU only in `read`. Methods throw ResourceError
// if memory does not suffice, and EngineError if the library or the GPU failed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ids.hpp"

namespace txport::core {

// Minimum initial cache length of a batch, which suffices for most sentences.
inline constexpr std::int64_t kFirstTarget = 32;
// Maximum number of steps in one call.
inline constexpr std::int64_t kMaxSteps = 64;

// Cross-attention `[layers, heads, targets, sources]` of one sentence and its translation.
struct CrossAttention {
  std::size_t layers = 0;
  std::size_t heads = 0;
  std::size_t targets = 0;
  std::size_t sources = 0;
  std::vector<float> values;
};

// What an encoder reads of one sentence: ids, or vectors `[length, feature_size]` for a model that reads vectors.
struct EncoderInput {
  Ids ids;
  std::shared_ptr<const FloatMatrix> vectors;

  std::size_t size() const { return vectors != nullptr ? vectors->rows : ids.size(); }
};

// Output of a group of steps.
struct StepOutput {
  // [steps, rows], generated tokens; pad for finished rows.
  Ids token_ids;
  // [rows], flags after the last of these steps.
  std::vector<bool> finished;
};

// Outputs of a step that the host may read, in addition to tokens.
struct Outputs {
  bool logits = false;
  std::size_t top = 0;  // largest k of DecoderState::top; 0: none
  // Number of adjacent rows that belong to one sentence. Only the first of them is placed. They advance together, are
  // only reordered among themselves, and are moved as a whole. Engines may use this.
  std::size_t beams = 1;

  // For engines that compute candidates from logits.
  bool any_logits() const { return logits || top > 0; }
};

// The k most likely tokens of each row after a step, sorted by descending logit, then by ascending id.
struct Top {
  Ids token_ids;                   // [rows, k]
  std::vector<float> logits;       // [rows, k]
  std::vector<double> normaliser;  // [rows], log-sum-exp of all logits
};

// Return the log-sum-exp of the logits of one row.
double log_sum_exp(const std::vector<float>& logits);
// Return the k ids with the largest logits (float or double), sorted by descending logit, then by ascending id.
template <typename Number>
Ids best_ids(const std::vector<Number>& logits, std::size_t k);

// Result of Engine::encode, which only the engine that created it can use.
class Memory {
 public:
  Memory() = default;
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

// The state of one running batch: ids, positions, flags, caches, and keys and values of cross-attention.
//
// Rows are independent: each has its own position, so a finished row can be refilled while the others continue. A row
// that was never placed is finished and generates pad.
class DecoderState {
 public:
  DecoderState() = default;
  virtual ~DecoderState() = default;
  DecoderState(const DecoderState&) = delete;
  DecoderState& operator=(const DecoderState&) = delete;

  virtual std::size_t rows() const = 0;
  virtual std::int64_t source() const = 0;  // length of the cross-attention buffers in tokens
  virtual std::int64_t target() const = 0;  // length of the self-attention caches in tokens

  // Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]` and bos at position 0, and is not finished.
  // A state that gets all rows of `memory` may reuse its buffers, which later placements overwrite.
  virtual void place(const std::vector<std::size_t>& rows, const Memory& memory,
                     const std::vector<std::size_t>& memory_rows, const Ids& target_limits) = 0;
  // Restrict the target tokens of rows that were just placed to `words[i]`, ascending ids. All results of the state are
  // computed over these ids; other logits are -infinity. Copies of a row have the same restriction, which ends when a
  // row is placed again. Only for engines that support it (`restricts`).
  virtual void restrict_rows(const std::vector<std::size_t>& rows,
                             const std::vector<std::shared_ptr<const Ids>>& words);
  // Advance every unfinished row by up to `count` tokens, at most kMaxSteps. May return before the device is done. If
  // Engine::poll is more than 1, the next group of steps may be started before this one is read, so that the device
  // does not wait for the host.
  virtual void step(std::int64_t count) = 0;
  // Wait for the first group of steps that was not read yet, and return its output.
  virtual StepOutput read() = 0;
  // Replace the last token of these rows, for example by a forced prefix, and their `finished` flag. Unfinishing a row
  // also advances its position by one, which the step did not do. Finishing a row moves its position back by one, so
  // that it never exceeds the cache.
  virtual void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                               const std::vector<bool>& finished) = 0;
  // Return logits [target_vocabulary] of one row after the last step. The state must have been allocated with logits,
  // or the engine must recompute them (`recomputes_logits`).
  virtual std::vector<float> logits(std::size_t row) = 0;
  // Return the logits of some tokens.
  virtual std::vector<float> some_logits(std::size_t row, const Ids& token_ids);
  // Return the natural log-probability of a token.
  virtual double log_probability(std::size_t row, std::int64_t token);
  // Return the k best candidates of every row after the last step, undefined for rows that it did not advance. k is
  // from 1 to Outputs::top of the allocation.
  virtual Top top(std::size_t k);
  // Rearrange the rows in place: row i becomes a copy of the former row `rows[i]`. Rows may be repeated; copies are
  // independent. All steps must have been read. Logits and candidates are undefined until the next step.
  virtual void reorder(const std::vector<std::size_t>& rows) = 0;
  // Move the rows to a new state with caches of `target` tokens. Row i becomes a copy of row `rows[i]`. rows.size() is
  // from 1 to Limits::batch; rows may be repeated, and copies are independent. All steps must have been read. This
  // state becomes invalid.
  virtual std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) = 0;
};

// A bundle, loaded by one library on one device. Threads may share an engine.
class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  virtual const std::string& name() const = 0;
  virtual const Limits& limits() const = 0;
  virtual const SpecialTokens& tokens() const = 0;
  virtual std::int64_t vocabulary() const = 0;  // logits of a row
  // Return the recommended maximum number of steps that have started and are not read; 1 if reading costs nothing.
  virtual std::int64_t poll() const = 0;
  // Return whether logits can be read from states allocated without logits. They are then recomputed at each call.
  virtual bool recomputes_logits() const { return false; }
  // Return whether its states support `restrict_rows`.
  virtual bool restricts() const { return false; }
  // Return whether short sources are computed without padding, so that they can share a batch with long ones at no
  // cost.
  virtual bool ragged() const { return false; }
  // Return the initial cache length of a batch with sources of up to `source` tokens. Caches double when a row has
  // filled them. It is short if longer caches make steps slower.
  virtual std::int64_t first_target(std::int64_t /*source*/) const { return kFirstTarget; }

  // Run the encoder on `[batch, source]` ids, padded with pad, with `[batch]` lengths.
  virtual std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const = 0;
  // Run the encoder on vectors `[batch, source, feature_size]`; padding is not read. Throws EngineError: this engine
  // does not support vectors.
  virtual std::shared_ptr<const Memory> encode_features(const std::vector<float>& features,
                                                        const Ids& source_lengths) const;
  // Allocate a state for `rows` sentences of up to `source` tokens with caches of `target` tokens. All rows are
  // finished.
  virtual std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                                 const Outputs& outputs) const = 0;
  // Wait for all running work. Measurements need this, since `encode` and `step` may return before they are done.
  virtual void synchronize() const {}
};

}  // namespace txport::core
