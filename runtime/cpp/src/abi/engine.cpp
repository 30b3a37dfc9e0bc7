// The C ABI of core::Engine and core::DecoderState. Sizes and ids are checked here, since engines do not check them.

#include "txport/engine.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi/engine.hpp"
#include "abi/guard.hpp"
#include "arguments.hpp"
#include "errors.hpp"

struct txport_engine_memory {
  std::shared_ptr<const txport::core::Engine> engine;
  std::shared_ptr<const txport::core::Memory> memory;
  std::int64_t rows;
  std::int64_t source;  // length of the longest source
};

namespace {

using txport::abi::guarded;
using txport::abi::idle;
using txport::abi::required;
using txport::abi::valid;
using txport::abi::within;
using txport::core::Ids;
using txport::core::InputError;
using txport::core::StepOutput;

// Return `count` numbers of an argument, which must be from 0 to `bound` - 1.
std::vector<std::size_t> indices(const std::int64_t* values, std::int64_t count, std::int64_t bound, const char* name) {
  std::vector<std::size_t> result;
  if (count > 0) required(values, name);
  for (std::int64_t i = 0; i < count; ++i) {
    result.push_back(static_cast<std::size_t>(within(values[i], 0, bound - 1, name)));
  }
  return result;
}

// Return a state whose steps were all read and whose logits can be read. Throws InputError.
txport_engine_state& with_logits(txport_engine_state* state) {
  txport_engine_state& from = idle(state);
  if (!from.outputs.logits && !from.handle.engine->recomputes_logits()) {
    throw InputError("the state was allocated without logits: allocate it with them");
  }
  return from;
}

// What an encoder made of sources of these lengths.
txport_engine_memory* memory_of(const std::shared_ptr<const txport::core::Engine>& engine,
                                std::shared_ptr<const txport::core::Memory> encoded, const std::int64_t* lengths,
                                std::int64_t batch) {
  const std::int64_t longest = *std::max_element(lengths, lengths + batch);
  return std::make_unique<txport_engine_memory>(txport_engine_memory{engine, std::move(encoded), batch, longest})
      .release();
}

}  // namespace

void txport_engine_close(txport_engine_handle* engine) noexcept { delete engine; }

txport_code txport_engine_name(const txport_engine_handle* engine, const char** name) noexcept {
  return guarded([&] {
    required(name, "name") = required(engine, "engine").engine->name().c_str();
    return TXPORT_OK;
  });
}

txport_code txport_engine_get_facts(const txport_engine_handle* engine, txport_engine_facts* facts) noexcept {
  return guarded([&] {
    const auto& [opened, sizes] = required(engine, "engine");
    const auto& limits = opened->limits();
    const auto& tokens = opened->tokens();
    const std::size_t size = required(facts, "facts").struct_size;
    constexpr std::size_t kFirst = sizeof(txport_engine_facts);  // the size of the first version of the struct
    if (size < kFirst)
      throw InputError("txport_engine_facts.struct_size is " + std::to_string(size) +
                       ": set it to sizeof(txport_engine_facts)");
    // Unknown fields of a newer header are not changed.
    *facts = {size,
              limits.batch,
              limits.source,
              limits.target,
              tokens.pad,
              tokens.unk,
              tokens.bos,
              tokens.eos,
              opened->vocabulary(),
              opened->poll(),
              opened->recomputes_logits() ? 1 : 0};
    return TXPORT_OK;
  });
}

std::int64_t txport_engine_first_target(const txport_engine_handle* engine, std::int64_t source) noexcept {
  std::int64_t target = 0;
  guarded([&] {
    const auto& opened = required(engine, "engine").engine;
    target = opened->first_target(std::clamp<std::int64_t>(source, 0, opened->limits().source));
    return TXPORT_OK;
  });
  return target;
}

txport_code txport_engine_encode(const txport_engine_handle* engine, const std::int64_t* input_ids,
                                 const std::int64_t* lengths, std::int64_t batch, std::int64_t source,
                                 txport_engine_memory** memory) noexcept {
  return guarded([&] {
    required(memory, "memory") = nullptr;
    const auto& [opened, sizes] = required(engine, "engine");
    if (sizes.feature_size) throw InputError(txport::core::kReadsFeatures);
    within(batch, 1, opened->limits().batch, "batch");
    within(source, 1, opened->limits().source, "source");
    required(input_ids, "input_ids");
    required(lengths, "lengths");
    Ids ids(input_ids, input_ids + batch * source);
    for (std::int64_t row = 0; row < batch; ++row) {
      within(lengths[row], 1, source, "lengths");
      for (std::int64_t i = 0; i < lengths[row]; ++i) {
        within(ids[static_cast<std::size_t>(row * source + i)], 0, sizes.source_vocabulary - 1, "input_ids");
      }
    }
    *memory = memory_of(opened, opened->encode(ids, Ids(lengths, lengths + batch)), lengths, batch);
    return TXPORT_OK;
  });
}

txport_code txport_engine_encode_features(const txport_engine_handle* engine, const float* features,
                                          const std::int64_t* lengths, std::int64_t batch, std::int64_t source,
                                          txport_engine_memory** memory) noexcept {
  return guarded([&] {
    required(memory, "memory") = nullptr;
    const auto& [opened, sizes] = required(engine, "engine");
    if (!sizes.feature_size) throw InputError(txport::core::kReadsIds);
    within(batch, 1, opened->limits().batch, "batch");
    within(source, 1, opened->limits().source, "source");
    required(features, "features");
    required(lengths, "lengths");
    for (std::int64_t row = 0; row < batch; ++row) within(lengths[row], 1, source, "lengths");
    const std::vector<float> vectors(features, features + batch * source * *sizes.feature_size);
    *memory = memory_of(opened, opened->encode_features(vectors, Ids(lengths, lengths + batch)), lengths, batch);
    return TXPORT_OK;
  });
}

void txport_engine_memory_free(txport_engine_memory* memory) noexcept { delete memory; }

txport_code txport_engine_allocate(const txport_engine_handle* engine, std::int64_t rows, std::int64_t source,
                                   std::int64_t target, std::int32_t logits, std::int64_t top,
                                   txport_engine_state** state) noexcept {
  return guarded([&] {
    required(state, "state") = nullptr;
    const txport_engine_handle& handle = required(engine, "engine");
    const auto& limits = handle.engine->limits();
    within(rows, 1, limits.batch, "rows");
    within(source, 1, limits.source, "source");
    within(target, 1, limits.target, "target");
    within(top, 0, handle.sizes.target_vocabulary, "top");
    const txport::core::Outputs outputs{logits != 0, static_cast<std::size_t>(top)};
    auto allocated = handle.engine->allocate(static_cast<std::size_t>(rows), source, target, outputs);
    *state =
        std::make_unique<txport_engine_state>(txport_engine_state{handle, std::move(allocated), outputs, {}}).release();
    return TXPORT_OK;
  });
}

void txport_state_free(txport_engine_state* state) noexcept { delete state; }

txport_code txport_state_place(txport_engine_state* state, std::int64_t count, const std::int64_t* rows,
                               const txport_engine_memory* memory, const std::int64_t* memory_rows,
                               const std::int64_t* target_limits) noexcept {
  return guarded([&] {
    const txport_engine_state& into = idle(state);
    const txport_engine_memory& from = required(memory, "memory");
    within(count, 0, into.rows(), "count");
    if (from.engine != into.handle.engine) throw InputError("memory belongs to another engine: encode with this one");
    within(from.source, 1, into.state->source(), "the longest sentence of memory");
    const auto to_rows = indices(rows, count, into.rows(), "rows");
    const auto from_rows = indices(memory_rows, count, from.rows, "memory_rows");
    if (count > 0) required(target_limits, "target_limits");
    Ids limits;
    for (std::int64_t i = 0; i < count; ++i) {
      limits.push_back(within(target_limits[i], 1, into.handle.engine->limits().target, "target_limits"));
    }
    into.state->place(to_rows, *from.memory, from_rows, limits);
    return TXPORT_OK;
  });
}

txport_code txport_state_restrict(txport_engine_state* state, std::int64_t count, const std::int64_t* rows,
                                  const std::int64_t* ends, const std::int64_t* words) noexcept {
  return guarded([&] {
    const txport_engine_state& changed = idle(state);
    if (!changed.handle.engine->restricts()) throw InputError("this engine does not restrict rows: use the fused one");
    within(count, 0, changed.rows(), "count");
    const auto to_rows = indices(rows, count, changed.rows(), "rows");
    const std::int64_t vocabulary = changed.handle.sizes.target_vocabulary;
    std::vector<std::shared_ptr<const Ids>> lists;
    if (count > 0) required(ends, "ends");
    for (std::int64_t i = 0, begin = 0; i < count; begin = ends[i++]) {
      within(ends[i], begin + 1, begin + vocabulary, "ends");
      required(words, "words");
      const Ids& list = *lists.emplace_back(std::make_shared<const Ids>(words + begin, words + ends[i]));
      indices(list.data(), ends[i] - begin, vocabulary, "words");
      if (std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) != list.end()) {
        throw InputError("words of a row are not in ascending order: sort them without duplicates");
      }
    }
    changed.state->restrict_rows(to_rows, lists);
    return TXPORT_OK;
  });
}

txport_code txport_state_step(txport_engine_state* state, std::int64_t count) noexcept {
  return guarded([&] {
    txport_engine_state& stepped = valid(state);
    stepped.state->step(within(count, 1, txport::core::kMaxSteps, "count"));
    stepped.unread.push_back(count);
    return TXPORT_OK;
  });
}

txport_code txport_state_read(txport_engine_state* state, std::int64_t* token_ids, std::int64_t capacity,
                              std::int64_t* steps, std::uint8_t* finished) noexcept {
  return guarded([&] {
    txport_engine_state& from = valid(state);
    required(steps, "steps") = 0;
    if (from.unread.empty()) return TXPORT_OK;
    required(token_ids, "token_ids");
    required(finished, "finished");
    within(capacity, from.unread.front(), INT64_MAX, "capacity");
    const StepOutput output = from.state->read();
    *steps = from.unread.front();
    from.unread.pop_front();
    std::copy(output.token_ids.begin(), output.token_ids.end(), token_ids);
    std::transform(output.finished.begin(), output.finished.end(), finished,
                   [](bool value) { return static_cast<std::uint8_t>(value); });
    return TXPORT_OK;
  });
}

txport_code txport_state_override(txport_engine_state* state, std::int64_t count, const std::int64_t* rows,
                                  const std::int64_t* token_ids, const std::uint8_t* finished) noexcept {
  return guarded([&] {
    const txport_engine_state& changed = idle(state);
    within(count, 0, changed.rows(), "count");
    const auto to_rows = indices(rows, count, changed.rows(), "rows");
    indices(token_ids, count, changed.handle.sizes.target_vocabulary, "token_ids");
    if (count > 0) required(finished, "finished");
    changed.state->override_tokens(to_rows, Ids(token_ids, token_ids + count),
                                   std::vector<bool>(finished, finished + count));
    return TXPORT_OK;
  });
}

txport_code txport_state_logits(txport_engine_state* state, std::int64_t count, const std::int64_t* rows,
                                float* logits) noexcept {
  return guarded([&] {
    const txport_engine_state& from = with_logits(state);
    within(count, 0, from.rows(), "count");
    const auto of_rows = indices(rows, count, from.rows(), "rows");
    float* to = count > 0 ? &required(logits, "logits") : logits;
    for (const std::size_t row : of_rows) {
      const std::vector<float> each = from.state->logits(row);
      to = std::copy(each.begin(), each.end(), to);
    }
    return TXPORT_OK;
  });
}

txport_code txport_state_log_probabilities(txport_engine_state* state, std::int64_t count, const std::int64_t* rows,
                                           const std::int64_t* token_ids, double* log_probabilities) noexcept {
  return guarded([&] {
    const txport_engine_state& from = with_logits(state);
    within(count, 0, from.rows(), "count");
    const auto of_rows = indices(rows, count, from.rows(), "rows");
    indices(token_ids, count, from.handle.sizes.target_vocabulary, "token_ids");
    if (count > 0) required(log_probabilities, "log_probabilities");
    for (std::size_t i = 0; i < of_rows.size(); ++i) {
      log_probabilities[i] = from.state->log_probability(of_rows[i], token_ids[i]);
    }
    return TXPORT_OK;
  });
}

txport_code txport_state_top(txport_engine_state* state, std::int64_t k, std::int64_t* token_ids, float* logits,
                             double* normaliser) noexcept {
  return guarded([&] {
    const txport_engine_state& from = idle(state);
    if (from.outputs.top == 0) throw InputError("the state was allocated without candidates: allocate it with top");
    within(k, 1, static_cast<std::int64_t>(from.outputs.top), "k");
    required(token_ids, "token_ids");
    required(logits, "logits");
    required(normaliser, "normaliser");
    const txport::core::Top top = from.state->top(static_cast<std::size_t>(k));
    std::copy(top.token_ids.begin(), top.token_ids.end(), token_ids);
    std::copy(top.logits.begin(), top.logits.end(), logits);
    std::copy(top.normaliser.begin(), top.normaliser.end(), normaliser);
    return TXPORT_OK;
  });
}

txport_code txport_state_reorder(txport_engine_state* state, std::int64_t count, const std::int64_t* rows) noexcept {
  return guarded([&] {
    const txport_engine_state& changed = idle(state);
    within(count, changed.rows(), changed.rows(), "count");
    changed.state->reorder(indices(rows, count, changed.rows(), "rows"));
    return TXPORT_OK;
  });
}

txport_code txport_state_moved(txport_engine_state* state, std::int64_t count, const std::int64_t* rows,
                               std::int64_t target, txport_engine_state** moved) noexcept {
  return guarded([&] {
    required(moved, "moved") = nullptr;
    txport_engine_state& from = idle(state);
    const auto& limits = from.handle.engine->limits();
    within(count, 1, limits.batch, "count");
    within(target, 1, limits.target, "target");
    auto next = from.state->resized(indices(rows, count, from.rows(), "rows"), target);
    from.state.reset();
    *moved = std::make_unique<txport_engine_state>(txport_engine_state{from.handle, std::move(next), from.outputs, {}})
                 .release();
    return TXPORT_OK;
  });
}
