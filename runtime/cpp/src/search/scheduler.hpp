// Continuous batching over any engine: groups of steps, refills and moves of rows. A policy chooses the tokens.
//
// Rows are independent: a finished row gets the next waiting sentence while the others continue, so a batch never waits
// for its longest sentence. Sentences may be submitted while batches run. A batch grows when more sentences wait than
// it has free rows. When no sentence waits and at least half of the rows are free, the others move together into a
// smaller batch. Caches start short and double, so that short translations do not pay for the longest cache. When rows
// move to longer caches and no sentence waits, free rows are dropped as well.
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
  // Maximum batch size in sentences; no value: as many as Limits::batch rows hold.
  std::optional<std::int64_t> rows;
  std::int64_t batch_tokens = kBatchTokens;  // maximum batch size in source tokens, including padding
  // Number of threads that decode in parallel. Each runs a batch with a share of `rows` and `batch_tokens`. The engine
  // must support this, as engines on the CPU do.
  std::int64_t workers = 1;
};

// The slots of a batch, one for each sentence; null for free ones.
using Slots = std::vector<std::shared_ptr<Slot>>;

// Choice of tokens. Threads may share a policy.
class Policy {
 public:
  explicit Policy(std::size_t rows_per_sentence = 1, std::size_t top = 0)
      : rows_per_sentence_(rows_per_sentence), top_(top) {}
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // Number of rows that a sentence takes in a batch. It is placed in the first of these rows; the others are finished
  // until the policy reorders the rows.
  std::size_t rows_per_sentence() const { return rows_per_sentence_; }
  // Largest k that the policy passes to DecoderState::top.
  std::size_t top() const { return top_; }

  // Return a new slot for a request. `limit` is the maximum number of target tokens.
  virtual std::shared_ptr<Slot> slot(std::size_t index, Request request, std::int64_t limit) const {
    return std::make_shared<Slot>(index, std::move(request), limit);
  }
  // Return whether this request needs a state that was allocated with logits.
  virtual bool needs_logits(const Request& request) const = 0;
  // Return whether `choose` must process the next step of these slots before another step begins. No slot is null.
  virtual bool steps_one_by_one(const Slots& slots) const = 0;
  // Append tokens to the slots. `token_ids` `[steps, rows]` contains the tokens that the device chose; a policy may
  // choose others from the logits or candidates of `state`. If `one_by_one`, there is one step, and no further step has
  // started.
  virtual void choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool one_by_one) const = 0;

 private:
  const std::size_t rows_per_sentence_;
  const std::size_t top_;
};

class Batch;

// A queue of requests, which workers decode. Threads may share a scheduler.
class Scheduler {
 public:
  // Engine and policy must outlive it. `max_steps_ahead`: maximum number of steps that the device may be ahead of the
  // host; no value: Engine::poll. Throws InputError: a sentence needs more rows than the bundle supports.
  Scheduler(const Engine& engine, const Policy& policy, const SearchOptions& options,
            std::optional<std::int64_t> max_steps_ahead = std::nullopt);

  // Append requests to the queue, sorted by descending source length. Any thread may call this at any time. Return the
  // Result::index of the first request; the others follow in order. Throws InputError: see Request::check.
  std::size_t submit(std::vector<Request> requests);
  // Run batches until the queue is empty, and call `give` with each result. Several threads may drain one queue.
  void drain(const std::function<void(Result)>& give);
  // Stop every draining thread after its current step. Unfinished requests are lost.
  void stop() { stopped_ = true; }
  // Return the indices of the waiting requests.
  std::set<std::size_t> waiting();
  // Remove a waiting request from the queue. Return false if it is not in the queue.
  bool drop(std::size_t index);
  // Remove the requests at the head of the queue, as many as a batch may have. For a batch that failed before it took
  // any request: its requests are among these.
  void drop_head();

 private:
  friend class Worker;
  friend class Batch;

  struct Entry {
    std::size_t index;
    Request request;
  };
  struct BatchSizes {
    std::size_t sentences;
    std::int64_t source;
    std::int64_t target;
    bool logits;
  };

  const Engine& engine_;
  const Policy& policy_;
  const std::int64_t max_steps_ahead_;
  const std::int64_t workers_;
  const std::int64_t max_sentences_;  // per batch
  const std::int64_t batch_tokens_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;  // guards the members below
  std::deque<Entry> queue_;
  std::size_t submissions_ = 0;
  std::int64_t batches_ = 0;

  std::optional<BatchSizes> begin_batch();
  void end_batch();
  std::size_t max_sentences(std::int64_t source_length) const;
  std::vector<Entry> take_group(const DecoderState& state, bool logits);
  std::size_t count_waiting(const DecoderState& state, bool logits, std::size_t max_count);
  std::int64_t head_source_length() const;
  std::size_t share(std::int64_t workers) const;
  std::size_t count_admissible(const DecoderState& state, bool logits, std::size_t max_count) const;
};

// The batches of one thread, which run one after the other. The scheduler must outlive it.
class Worker {
 public:
  explicit Worker(Scheduler& scheduler);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Run a group of steps and return the slots that took part; empty if no request waits. After an exception, the caller
  // must `abandon` the batch.
  Slots step();
  // Cancel a request: it leaves the queue or, at the next step, its rows, and has no result. Finished requests are not
  // affected.
  void cancel(std::size_t index);
  // Discard the batch; its requests are lost. The next step begins another batch.
  void abandon();

 private:
  Scheduler& scheduler_;
  std::unique_ptr<Batch> batch_;
};

}  // namespace txport::core
