// Requests of many threads, which join the batch that runs.
//
// A request takes the next free row of the running batch. Requests of one search share a batch; batches of several
// searches take turns, step by step, in the queue's thread. A forked process has none of its parent's threads: its
// queue starts one of its own, and requests of the parent stay the parent's.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "engine.hpp"
#include "search/requests.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// Default of the maximum number of waiting requests.
inline constexpr std::size_t kMaxWaiting = 1024;

// What becomes of a request: some parts, then either an answer or a failure, once. All are called in the thread that
// decodes, so they must return at once.
template <typename Answer, typename Part>
struct Listener {
  std::function<void(Answer)> answer;               // what it throws is the failure
  std::function<void(std::exception_ptr)> failure;  // must not throw
  std::function<void(const Part&)> part;            // may be empty; what it throws ends the request, as its failure
};

// The queue of one process.
class ProcessQueue;

// A request in a queue, which it may outlive.
class Ticket {
 public:
  // Give up the request: its row is free after the step that is under way, and its failure is a Cancelled. If it has
  // been answered, nothing happens.
  void cancel() { cancelled_ = true; }

 private:
  friend class ProcessQueue;
  using Time = std::chrono::steady_clock::time_point;
  std::atomic<bool> cancelled_{false};
  std::size_t index_ = 0;  // in its scheduler
  std::size_t given_ = 0;  // tokens that the listener has taken
  std::optional<Time> deadline_;
  Listener<Result, Token> listener_;

  // Why there will be no answer; null while there may be one.
  std::exception_ptr overdue(Time now) const;
  // Call the listener for the last time, and drop it.
  void answer(Result result);
  void fail(const std::exception_ptr& error);
};

// Answers to requests, by a thread of its own. Threads may share one.
class Queue {
 public:
  // The engine must outlive it. `options`: rows and tokens of each batch; it has one worker.
  Queue(const Engine& engine, const SearchOptions& options, std::size_t most_waiting = kMaxWaiting);
  // Cancels what has no answer yet. Not in the queue's own thread.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Queue a request; any thread may do so at any time, that of a listener too. `seconds`: the time to its deadline,
  // after which its failure is a DeadlineExceeded. Parts are the tokens of a search that has one answer (see
  // check_streams).
  // Throws InputError: the request cannot be answered, or the queue was closed. ResourceError: as many requests wait as
  // may. The listener hears nothing then.
  std::shared_ptr<Ticket> submit(Request request, Listener<Result, Token> listener,
                                 std::optional<double> seconds = std::nullopt);

  // Requests that have no answer yet.
  std::size_t unanswered() const;
  // Searches whose batches run.
  std::size_t searches() const;

  // Refuse further requests, answer or cancel the present ones, and return when that is done (at once if a
  // listener closes it).
  void close(bool drain);

  // Whether this is the thread that decodes.
  bool is_own_thread() const;

 private:
  const Engine& engine_;
  const SearchOptions options_;
  const std::size_t most_waiting_;
  std::atomic<bool> closed_{false};
  mutable std::atomic<ProcessQueue*> own_;

  ProcessQueue& own() const;
};

}  // namespace txport::core
