// A decoder that runs in memory and checks that it is used by the rules of engine.hpp; see
// tests/fakes/memory_engine.py.
//
// The "model" is a hash: the logits of a step depend on the source ids and on every token that was fed to the row so
// far, so that a token in the wrong row, at the wrong position, or read from a stale cache changes all that follows.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <mutex>
#include <random>
#include <stdexcept>

#include "engine.hpp"

namespace memory {

using namespace txport::core;

inline const SpecialTokens kTokens{0, 1, 2, 3};
inline constexpr std::size_t kVocabulary = 12;

inline void require(bool holds, const char* rule) {
  if (!holds) throw std::logic_error(rule);
}

inline std::uint64_t mix(std::uint64_t hash, std::int64_t value) {
  hash ^= static_cast<std::uint64_t>(value) + 0x9E3779B97F4A7C15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xFF51AFD7ED558CCDULL;
}

// [kVocabulary]: what the model says after bos and the tokens made so far.
inline std::vector<float> logits_after(const Ids& source, const Ids& fed, float eos_weight) {
  std::uint64_t hash = 7;
  for (const std::int64_t id : source) hash = mix(hash, id);
  hash = mix(hash, -1);
  for (const std::int64_t id : fed) hash = mix(hash, id);
  std::mt19937_64 random(hash);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = std::normal_distribution<float>()(random);
  logits[static_cast<std::size_t>(kTokens.pad)] = logits[static_cast<std::size_t>(kTokens.bos)] = -9;
  logits[static_cast<std::size_t>(kTokens.eos)] += eos_weight;
  return logits;
}

inline std::int64_t best(const std::vector<float>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

struct Sources : Memory {
  std::vector<Ids> rows;
};

class State;

class MemoryEngine : public Engine {
 public:
  MemoryEngine(Limits limits, std::int64_t poll, float eos_weight)
      : eos_weight(eos_weight), limits_(limits), poll_(poll) {}

  const float eos_weight;
  mutable std::vector<std::size_t> steps;     // rows of each step
  mutable std::vector<std::size_t> encoded;   // sentences of each encoder run
  mutable std::vector<std::int64_t> targets;  // cache length of each state
  mutable std::vector<std::int64_t> ahead;    // steps of each group that began before another was read

  // Threads may share an engine.
  template <typename T>
  void note(std::vector<T>& list, T value) const {
    const std::lock_guard lock(mutex_);
    list.push_back(value);
  }

  const std::string& name() const override { return name_; }
  const Limits& limits() const override { return limits_; }
  const SpecialTokens& tokens() const override { return kTokens; }
  std::int64_t vocabulary() const override { return kVocabulary; }
  std::int64_t poll() const override { return poll_; }
  bool restricts() const override { return true; }

  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    const std::size_t rows = source_lengths.size();
    const std::size_t width = input_ids.size() / rows;
    require(static_cast<std::int64_t>(rows) <= limits_.batch, "rows beyond the limit");
    require(static_cast<std::int64_t>(width) <= limits_.source, "sources beyond the limit");
    require(*std::max_element(source_lengths.begin(), source_lengths.end()) == static_cast<std::int64_t>(width),
            "wider than its longest sentence");
    auto memory = std::make_shared<Sources>();
    for (std::size_t row = 0; row < rows; ++row) {
      const auto start = input_ids.begin() + static_cast<std::ptrdiff_t>(row * width);
      const auto end = start + source_lengths[row];
      require(std::all_of(end, start + static_cast<std::ptrdiff_t>(width), [](auto id) { return id == kTokens.pad; }),
              "padding that is not pad");
      memory->rows.emplace_back(start, end);
    }
    note(encoded, rows);
    return memory;
  }

  std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                         const Outputs& outputs) const override;

 private:
  std::string name_ = "memory";
  Limits limits_;
  mutable std::mutex mutex_;
  std::int64_t poll_;
};

class State : public DecoderState {
 public:
  struct Row {
    Ids source;
    Ids cache;
    std::int64_t token = 0;
    std::int64_t position = 0;
    std::int64_t limit = 1;
    bool finished = true;
    std::shared_ptr<const Ids> words;  // none: all
    std::vector<float> logits;
  };

  State(const MemoryEngine& engine, std::size_t rows, std::int64_t source, std::int64_t target, bool logits)
      : engine_(engine), rows_(rows), source_(source), target_(target), logits_(logits) {
    require(rows >= 1 && static_cast<std::int64_t>(rows) <= engine.limits().batch, "rows beyond the limit");
    require(target >= 1 && target <= engine.limits().target, "caches beyond the limit");
    for (Row& row : rows_) row.cache.assign(static_cast<std::size_t>(target), -1);
    engine.note(engine.targets, target);
  }

  std::size_t rows() const override { return rows_.size(); }
  std::int64_t source() const override { return source_; }
  std::int64_t target() const override { return target_; }

  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override {
    require(valid_ && unread_.empty(), "place before the steps were read");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Row& row = rows_.at(rows[i]);
      require(row.finished, "a row that still works");
      row.source = dynamic_cast<const Sources&>(memory).rows.at(memory_rows[i]);
      require(static_cast<std::int64_t>(row.source.size()) <= source_, "a sentence wider than the buffers");
      row.token = kTokens.bos;
      row.position = 0;
      row.limit = target_limits[i];
      row.finished = false;
      row.words = nullptr;
    }
  }

  void restrict_rows(const std::vector<std::size_t>& rows,
                     const std::vector<std::shared_ptr<const Ids>>& words) override {
    for (std::size_t i = 0; i < rows.size(); ++i) rows_.at(rows[i]).words = words[i];
  }

  void step(std::int64_t count) override {
    require(valid_ && count >= 1, "no step");
    require(unread_.size() < (engine_.poll() > 1 ? 2 : 1), "more groups than the host may leave unread");
    // The host cannot know what a group that it has not read did.
    const bool works = std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return !row.finished; });
    require(works || !unread_.empty(), "no row works");
    if (!unread_.empty()) engine_.note(engine_.ahead, count);
    unread_.emplace_back();
    for (std::int64_t i = 0; i < count; ++i) {
      engine_.note(engine_.steps, rows_.size());
      for (Row& row : rows_) advance(row);
    }
    for (const Row& row : rows_) unread_.back().finished.push_back(row.finished);
  }

  StepOutput read() override {
    require(valid_ && !unread_.empty(), "nothing to read");
    StepOutput output = std::move(unread_.front());
    unread_.pop_front();
    return output;
  }

  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override {
    require(valid_ && unread_.empty() && !rows.empty(), "nothing to override");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Row& row = rows_.at(rows[i]);
      row.position += (row.finished ? 1 : 0) - (finished[i] ? 1 : 0);
      row.token = token_ids[i];
      row.finished = finished[i];
    }
  }

  std::vector<float> logits(std::size_t row) override {
    require(valid_ && logits_, "logits that were not asked for");
    return rows_.at(row).logits;
  }

  void reorder(const std::vector<std::size_t>& rows) override {
    require(valid_ && unread_.empty() && rows.size() == rows_.size(), "reordered before the steps were read");
    std::vector<Row> next;
    for (const std::size_t row : rows) next.push_back(rows_.at(row));
    rows_ = std::move(next);
  }

  std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) override {
    require(valid_ && unread_.empty(), "moved before the steps were read");
    valid_ = false;
    auto next = std::make_unique<State>(engine_, rows.size(), source_, target, logits_);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      require(rows_.at(rows[i]).position < target, "a row beyond its new cache");
      next->rows_[i] = rows_[rows[i]];
      next->rows_[i].cache.resize(static_cast<std::size_t>(target), -1);
    }
    return next;
  }

 private:
  const MemoryEngine& engine_;
  std::vector<Row> rows_;
  std::int64_t source_;
  std::int64_t target_;
  bool logits_;
  bool valid_ = true;
  std::deque<StepOutput> unread_;

  void advance(Row& row) {
    require(row.position < target_, "a step past the cache");
    const auto here = static_cast<std::size_t>(row.position);
    row.cache[here] = row.token;
    const Ids fed(row.cache.begin(), row.cache.begin() + row.position + 1);
    row.logits = logits_after(row.source, fed, engine_.eos_weight);
    for (std::size_t id = 0; row.words != nullptr && id < kVocabulary; ++id) {
      if (!std::binary_search(row.words->begin(), row.words->end(), static_cast<std::int64_t>(id)))
        row.logits[id] = -std::numeric_limits<float>::infinity();
    }
    const std::int64_t token = row.finished ? kTokens.pad : best(row.logits);
    row.finished = row.finished || token == kTokens.eos || row.position + 1 >= row.limit;
    if (!row.finished) ++row.position;
    row.token = token;
    unread_.back().token_ids.push_back(token);
  }
};

inline std::unique_ptr<DecoderState> MemoryEngine::allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                                            const Outputs& outputs) const {
  return std::make_unique<State>(*this, rows, source, target, outputs.any_logits());
}

}  // namespace memory
