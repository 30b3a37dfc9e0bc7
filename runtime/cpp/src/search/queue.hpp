// A queue for requests of several threads, which join the running batch.
//
// A request takes the next free rows of the running batch. Requests with the same search settings share a batch.
// Batches of different searches take turns in the thread of the queue, one group of steps each: the steps that the
// device runs before the host reads their tokens. A forked process has none of its parent's threads: there, the queue
// starts a new thread, and requests of the parent remain with the parent.
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

// Default of the maximum number of unanswered requests.
inline constexpr std::size_t kMaxWaiting = 1024;

// Callbacks of a request: `part` for each part of the result, then either `answer` or `failure`, once. They run on the
// decoding thread, so they must return quickly.
template <typename Answer, typename Part>
struct Listener {
  std::function<void(Answer)> answer;               // if it throws, `failure` is called
  std::function<void(std::exception_ptr)> failure;  // must not throw
  std::function<void(const Part&)> part;            // may be empty; if it throws, the request ends with `failure`
};

// The queue of one process.
class ProcessQueue;

// A request in a queue. It may outlive the queue.
class Ticket {
 public:
  // Cancel the request: its row becomes free after the current step, and `failure` is called with Cancelled. Finished
  // requests are not affected.
  void cancel() { cancelled_ = true; }

 private:
  friend class ProcessQueue;
  using Time = std::chrono::steady_clock::time_point;
  std::atomic<bool> cancelled_{false};
  std::size_t index_ = 0;      // Result::index in its scheduler
  std::size_t delivered_ = 0;  // number of tokens passed to the listener
  std::optional<Time> deadline_;
  Listener<Result, Token> listener_;

  // Return an error if the request was cancelled or is past its deadline, otherwise null.
  std::exception_ptr overdue(Time now) const;
  // Call the listener for the last time and release it.
  void answer(Result result);
  void fail(const std::exception_ptr& error);
};

// Decodes requests in a background thread. Threads may share a queue.
class Queue {
 public:
  // The engine must outlive it. `options`: sizes of each batch; `workers` is ignored.
  Queue(const Engine& engine, const SearchOptions& options, std::size_t max_waiting = kMaxWaiting);
  // Cancel unfinished requests. Must not be called in the queue's thread.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Add a request to the queue. Any thread may call this at any time, also from a listener. `seconds`: time limit,
  // after which `failure` is called with DeadlineExceeded. Parts are the tokens of a greedy search (see check_streams).
  // Throws InputError if the request is invalid or the queue is closed, and ResourceError if `max_waiting` requests are
  // unanswered; the listener is not called then.
  std::shared_ptr<Ticket> submit(Request request, Listener<Result, Token> listener,
                                 std::optional<double> seconds = std::nullopt);

  // Return the number of unfinished requests.
  std::size_t unanswered() const;
  // Return the number of searches with running batches.
  std::size_t searches() const;

  // Refuse further requests, answer (`drain`) or cancel the accepted ones, and return when all have ended. In a
  // listener, return immediately. A queue may be closed again: false cancels, also if an earlier call drains.
  void close(bool drain);

  // Return whether the caller runs on the decoding thread.
  bool is_own_thread() const;

 private:
  const Engine& engine_;
  const SearchOptions options_;
  const std::size_t max_waiting_;
  std::atomic<bool> closed_{false};
  mutable std::atomic<ProcessQueue*> process_queue_;

  ProcessQueue& process_queue() const;
};

}  // namespace txport::core
