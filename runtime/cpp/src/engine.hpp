// What a library must offer to run a bundle: encode, then step a fixed set of rows whose buffers it owns.
//
// Search (search/) is written once over these classes, and does not depend on a library. Engines do not depend on it.
// The location of buffers is private: an engine on a GPU keeps them there, and `read` is the only point at which the
// host waits for it. Methods throw ResourceError: there is not enough memory; and EngineError: the library or the GPU
// failed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace txport::core {

using Ids = std::vector<std::int64_t>;

// The cache length that a batch begins with at least: enough for most sentences.
inline constexpr std::int64_t kFirstTarget = 32;
// Steps of one call, at most.
inline constexpr std::int64_t kMaxSteps = 64;

// The largest sizes that an engine accepts: rows of a batch, source tokens and target tokens (both with eos).
struct Limits {
  std::int64_t batch = 0;
  std::int64_t source = 0;
  std::int64_t target = 0;
};

// Ids with a meaning: padding, unknown, decoder start (bos) and end of sequence.
struct SpecialTokens {
  std::int64_t pad = 0;
  std::int64_t unk = 0;
  std::int64_t bos = 0;
  std::int64_t eos = 0;
};

// Numbers `[rows, columns]`, row after row.
struct FloatMatrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<float> values;
};

// What an encoder reads of one sentence: ids or, of a model that reads these, vectors `[length, feature_size]`.
struct EncoderInput {
  Ids ids;
  std::shared_ptr<const FloatMatrix> vectors;

  std::size_t size() const { return vectors != nullptr ? vectors->rows : ids.size(); }
};

// What the host learns of a group of steps.
struct StepOutput {
  // [steps, rows], what each of them made; pad for rows that had finished.
  Ids token_ids;
  // [rows], after the last of these steps.
  std::vector<bool> finished;
};

// What the host may read of a step besides its tokens.
struct Outputs {
  bool logits = false;
  std::size_t top = 0;  // the most candidates of a row that DecoderState::top is asked for; 0: none
  // This number of adjacent rows belongs to one sentence: they are placed by the first of them, make tokens together,
  // are reordered among themselves and moved as a whole. An engine may make use of that.
  std::size_t beams = 1;

  // For engines that choose candidates by their logits.
  bool any_logits() const { return logits || top > 0; }
};

// The k likeliest tokens of each row after a step, by descending logit, equal ones by ascending id.
struct Top {
  Ids token_ids;                   // [rows, k]
  std::vector<float> logits;       // [rows, k]
  std::vector<double> normaliser;  // [rows] ln of the sum of e^x over all logits of a row
};

// Of the logits of one row: the natural logarithm of the sum of e^x over them,
double log_sum_exp(const std::vector<float>& logits);
// and the k ids that have the largest, in descending order, equal ones by ascending id; of float or double.
template <typename Number>
Ids best_ids(const std::vector<Number>& logits, std::size_t k);

// What Engine::encode returned; opaque to all but the engine that made it.
class Memory {
 public:
  Memory() = default;
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

// The buffers of one running batch: ids, positions, flags, caches and cross-attention keys and values.
//
// Rows are independent: each has its own position, so a finished row can be refilled while the others continue. A row
// that was never placed is finished and makes pad.
class DecoderState {
 public:
  DecoderState() = default;
  virtual ~DecoderState() = default;
  DecoderState(const DecoderState&) = delete;
  DecoderState& operator=(const DecoderState&) = delete;

  virtual std::size_t rows() const = 0;
  virtual std::int64_t source() const = 0;  // width of the cross-attention buffers, in tokens
  virtual std::int64_t target() const = 0;  // length of the self-attention caches, in tokens

  // Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished. A state
  // that takes all rows of `memory` may keep its buffers, and later placements write over them.
  virtual void place(const std::vector<std::size_t>& rows, const Memory& memory,
                     const std::vector<std::size_t>& memory_rows, const Ids& target_limits) = 0;
  // Let these rows, which were just placed, choose among `words[i]` only, ascending ids: all results of the state
  // is over these words, and others have the logit -infinity. Copies of a row have its words, until the row is placed
  // again. Only on states of an engine that `restricts`.
  virtual void restrict_rows(const std::vector<std::size_t>& rows,
                             const std::vector<std::shared_ptr<const Ids>>& words);
  // Advance every unfinished row by up to `count` tokens, at most kMaxSteps; may return before the device is done.
  // Where Engine::poll is more than 1, a group of steps may begin before the one before it was read: the device works
  // on it while the host polls the other.
  virtual void step(std::int64_t count) = 0;
  // Wait for the first group of steps that was not read yet, and return its tokens.
  virtual StepOutput read() = 0;
  // Replace the last token that was made for these rows (forced prefix, suppressed eos) and their flag. Taking back a
  // `finished` also advances the row's position by one, which the step did not do; finishing a row takes that step
  // back, so that no finished row stands behind the end of its cache.
  virtual void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                               const std::vector<bool>& finished) = 0;
  // [target_vocabulary] of one row after the last step. Only on a state that was allocated with logits, or of an engine
  // that `recomputes_logits`.
  virtual std::vector<float> logits(std::size_t row) = 0;
  // Those of some tokens.
  virtual std::vector<float> some_logits(std::size_t row, const Ids& token_ids);
  // The natural logarithm of a token's probability by these logits.
  virtual double log_probability(std::size_t row, std::int64_t token);
  // The k best candidates of every row after the last step, undefined for rows that it did not advance. k is at least
  // 1, and at most Outputs::top of the state's allocation.
  virtual Top top(std::size_t k);
  // Rearrange the rows in place: row i continues what row `rows[i]` was. A row may be taken more than once, and its
  // copies are independent from then on. All steps must have been read; logits and candidates are undefined until the
  // next one.
  virtual void reorder(const std::vector<std::size_t>& rows) = 0;
  // A new state of rows.size() rows, from 1 to Limits::batch and possibly more than now, with caches of `target`
  // tokens. Row i continues row `rows[i]` of this state; a row may be taken more than once, and its copies are
  // independent from then on. This state is invalid afterwards, and all of its steps must have been read.
  virtual std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) = 0;
};

// A bundle, loaded by one library on one device. Threads may share one.
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
  // Steps that are worth making before the host polls; 1 where polling costs nothing.
  virtual std::int64_t poll() const = 0;
  // Whether `logits` and `some_logits` are there without having been asked for, at their price when they are read.
  virtual bool recomputes_logits() const { return false; }
  // Whether its states have `restrict_rows`.
  virtual bool restricts() const { return false; }
  // Whether short sources beside long ones cost nothing: no padding is computed.
  virtual bool ragged() const { return false; }
  // The length of the first caches of a batch of sources of up to `source` tokens; they double when a row has filled
  // them. As short as possible where longer ones make a step more expensive.
  virtual std::int64_t first_target(std::int64_t /*source*/) const { return kFirstTarget; }

  // Run the encoder on `[batch, source]` ids, padded with pad, of `[batch]` lengths.
  virtual std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const = 0;
  // The same on `[batch, source, feature_size]` vectors of a model that reads these; padding is not read.
  // Throws EngineError: this engine does not take vectors.
  virtual std::shared_ptr<const Memory> encode_features(const std::vector<float>& features,
                                                        const Ids& source_lengths) const;
  // Buffers for `rows` sentences of up to `source` tokens that make up to `target` tokens, all rows finished.
  virtual std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                                 const Outputs& outputs) const = 0;
  // Wait for all work that is under way, as measurements must: `encode` and `step` may return before they are done.
  virtual void synchronize() const {}
};

}  // namespace txport::core
