// Continuous batching over any engine: rows, groups of steps, refills and moves; a policy chooses the tokens.
//
// Rows are independent: one that finishes is refilled with the next waiting sentence while the others continue, so a
// batch never waits for its longest sentence. Sentences may be submitted while batches run. A batch takes more rows
// when more wait than it has room for; when none waits, the rows that work move together once they are half of the
// batch. Caches start short and double, so that a short answer does not pay for the longest cache.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "search/requests.hpp"

namespace txport::core {

// The default for SearchOptions::batch_tokens.
inline constexpr std::int64_t kBatchTokens = 4096;

struct SearchOptions {
  std::optional<std::int64_t> rows;          // maximum number of sentences that run together; nothing is Limits::batch
  std::int64_t batch_tokens = kBatchTokens;  // the most source tokens, padding included, that run together
  // Threads that decode side by side, each a batch with a share of the rows and the tokens; the engine must allow it,
  // as engines on the CPU do.
  std::int64_t workers = 1;
};

// The slot of each row of a batch, or of each Policy::rows rows; null for free ones.
using Slots = std::vector<std::shared_ptr<Slot>>;

// How tokens are chosen. Threads may share one.
class Policy {
 public:
  explicit Policy(std::size_t rows = 1, std::size_t top = 0) : rows_(rows), top_(top) {}
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // Rows of a state that a request takes. Its sentence is placed in the first of them; the others wait, finished, for
  // the policy to reorder them.
  std::size_t rows() const { return rows_; }
  // Maximum number of tokens that it asks DecoderState::top for.
  std::size_t top() const { return top_; }

  // The slot of a request, and the maximum number of tokens of its answer.
  virtual std::shared_ptr<Slot> slot(std::size_t index, Request request, std::int64_t limit) const {
    return std::make_shared<Slot>(index, std::move(request), limit);
  }
  // Whether a state that answers this request must be allocated with logits.
  virtual bool needs_logits(const Request& request) const = 0;
  // Whether `choose` must see the next step of these slots, none of them null, before the one after it begins.
  virtual bool steps_one_by_one(const Slots& slots) const = 0;
  // Append the tokens `[steps, rows]` that the device chose to the answers, or others. If `one_by_one`, it is one
  // step, and all steps of the state have been read.
  virtual void choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool one_by_one) const = 0;

 private:
  const std::size_t rows_;
  const std::size_t top_;
};

class Batch;

// A queue of requests, which workers answer. Threads may share one.
class Scheduler {
 public:
  // Engine and policy must outlive it. `poll`: the most steps that the host has not seen; nothing for the engine's own.
  // Throws InputError: the bundle runs fewer rows than a sentence needs.
  Scheduler(const Engine& engine, const Policy& policy, const SearchOptions& options,
            std::optional<std::int64_t> poll = std::nullopt);

  // Append requests to the queue, the longest sources first. Any thread may call this at any time. Returns the
  // Result::index of the first; the others follow. Throws InputError: see Request::check.
  std::size_t submit(std::vector<Request> requests);
  // Run batches until nothing waits, and give each answer when it ends. Threads that drain at once share the queue.
  void drain(const std::function<void(Result)>& give);
  // Let every thread that drains end after its step; answers that have not ended are lost.
  void stop() { stopped_ = true; }
  // The requests that wait.
  std::set<std::size_t> waiting();
  // Give up a request that waits; false if it does not.
  bool drop(std::size_t index);
  // Give up those with which the next batch would begin.
  void drop_head();

 private:
  friend class Worker;
  friend class Batch;

  struct Entry {
    std::size_t index;
    Request request;
  };
  struct BatchSizes {
    std::size_t rows;  // sentences
    std::int64_t source;
    std::int64_t target;
    bool logits;
  };

  const Engine& engine_;
  const Policy& policy_;
  const std::int64_t poll_;
  const std::int64_t workers_;
  const std::int64_t rows_;  // sentences of a batch
  const std::int64_t batch_tokens_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;  // of all that follows
  std::deque<Entry> queue_;
  std::size_t submissions_ = 0;
  std::int64_t batches_ = 0;

  std::optional<BatchSizes> open();
  void close();
  std::size_t most_rows(std::int64_t source) const;
  std::vector<Entry> take(const DecoderState& state, bool logits);
  std::size_t waiting(const DecoderState& state, bool logits, std::size_t most);
  std::int64_t head_width() const;
  std::size_t share(std::int64_t workers) const;
  std::size_t ready(const DecoderState& state, bool logits, std::size_t most) const;
};

// One thread's batches, one after the other. The scheduler must outlive it.
class Worker {
 public:
  explicit Worker(Scheduler& scheduler);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Run a group of steps, and return the slots that worked; empty if nothing waits. If it throws, `abandon` the batch.
  Slots step();
  // Give up a request: it leaves the queue or, at the next step, its rows, and has no result. If it has ended, nothing
  // happens.
  void cancel(std::size_t index);
  // End the batch; the requests that it has taken are lost. The next step begins another one.
  void abandon();

 private:
  Scheduler& scheduler_;
  std::unique_ptr<Batch> batch_;
};

}  // namespace txport::core
