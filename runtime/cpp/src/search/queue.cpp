#include "search/queue.hpp"

#include <algorithm>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "search/decoding.hpp"
#include "search/scheduler.hpp"
#include "system/system.hpp"

namespace txport::core {

namespace {

using Clock = std::chrono::steady_clock;

// Return the time point after `seconds`; no value if there is no limit, or if it is too far for the clock.
std::optional<Clock::time_point> deadline_of(std::optional<double> seconds) {
  constexpr double kMaxSeconds = 1e9;
  if (!seconds || !(*seconds < kMaxSeconds)) return std::nullopt;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*seconds));
}

}  // namespace

// The queue of one process. Its public methods are documented in Queue.
class ProcessQueue {
 public:
  ProcessQueue(const Engine& engine, const SearchOptions& options, std::size_t max_waiting, bool closed)
      : engine_(engine), options_(options), max_waiting_(max_waiting), closing_(closed) {}
  ~ProcessQueue();
  ProcessQueue(const ProcessQueue&) = delete;
  ProcessQueue& operator=(const ProcessQueue&) = delete;

  std::shared_ptr<Ticket> submit(Request request, Listener<Result, Token> listener, std::optional<double> seconds);
  std::size_t unanswered() const;
  std::size_t searches() const;
  void close(bool drain);
  bool is_own_thread() const;

  const unsigned forked = forks();  // value of forks() at construction

 private:
  struct Lane;

  const Engine& engine_;
  const SearchOptions options_;
  const std::size_t max_waiting_;
  mutable std::mutex mutex_;         // guards the members below
  std::condition_variable changed_;  // a lane was added, the queue is closing, or its thread has ended
  std::list<Lane> lanes_;
  std::size_t unanswered_ = 0;
  bool closing_;
  bool is_running_ = false;
  std::thread thread_;  // starts with the first request

  Lane& lane_of(const Search& search);
  void run();
  void work();
  void drop_overdue(Lane& lane);
  bool step(Lane& lane);
  void serve(Lane& lane, Slot& slot);
  void lose_batch(Lane& lane, const std::exception_ptr& error);
  void end(Lane& lane);
  std::shared_ptr<Ticket> find(const Lane& lane, std::size_t index) const;
  bool mark_finished(Lane& lane, const Ticket& ticket);
  void fail(Lane& lane, Ticket& ticket, const std::exception_ptr& error);
};

// The requests of one search and their batches. A lane exists until none of its requests waits.
struct ProcessQueue::Lane {
  Search search;
  std::unique_ptr<const Policy> policy;
  Scheduler scheduler;
  Worker worker;
  std::map<std::size_t, std::shared_ptr<Ticket>> tickets;  // by their index in the scheduler

  Lane(const Engine& engine, const Search& lane_search, const SearchOptions& options)
      : search(lane_search),
        policy(policy_of(engine, search)),
        scheduler(engine, *policy, options),
        worker(scheduler) {}
};

std::exception_ptr Ticket::overdue(Time now) const {
  if (cancelled_) return std::make_exception_ptr(Cancelled("the request was cancelled"));
  if (!deadline_ || now < *deadline_) return nullptr;
  return std::make_exception_ptr(DeadlineExceeded("the request was not finished at its deadline"));
}

void Ticket::answer(Result result) {
  const auto listener = std::exchange(listener_, {});
  try {
    listener.answer(std::move(result));
  } catch (...) {
    listener.failure(std::current_exception());
  }
}

void Ticket::fail(const std::exception_ptr& error) { std::exchange(listener_, {}).failure(error); }

ProcessQueue::~ProcessQueue() {
  close(false);
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Ticket> ProcessQueue::submit(Request request, Listener<Result, Token> listener,
                                             std::optional<double> seconds) {
  request.check(engine_.limits());
  auto ticket = std::make_shared<Ticket>();
  ticket->deadline_ = deadline_of(seconds);
  ticket->listener_ = std::move(listener);
  const std::lock_guard lock(mutex_);
  if (closing_) throw InputError("the queue was closed: open the bundle again");
  if (unanswered_ >= max_waiting_) {
    throw ResourceError(std::to_string(unanswered_) +
                        " requests are unanswered, which is the maximum: try again later");
  }
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
    is_running_ = true;
  }
  Lane& lane = lane_of(request.search);
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  ticket->index_ = lane.scheduler.submit(std::move(requests));
  lane.tickets.emplace(ticket->index_, ticket);
  ++unanswered_;
  changed_.notify_all();
  return ticket;
}

std::size_t ProcessQueue::unanswered() const {
  const std::lock_guard lock(mutex_);
  return unanswered_;
}

std::size_t ProcessQueue::searches() const {
  const std::lock_guard lock(mutex_);
  return lanes_.size();
}

bool ProcessQueue::is_own_thread() const {
  const std::lock_guard lock(mutex_);
  return thread_.get_id() == std::this_thread::get_id();
}

void ProcessQueue::close(bool drain) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  if (!drain) {
    for (const Lane& lane : lanes_) {
      for (const auto& [index, ticket] : lane.tickets) ticket->cancel();
    }
  }
  changed_.notify_all();
  if (thread_.get_id() != std::this_thread::get_id()) changed_.wait(lock, [this] { return !is_running_; });
}

ProcessQueue::Lane& ProcessQueue::lane_of(const Search& search) {
  const auto same = [&search](const Lane& lane) { return lane.search == search; };
  const auto found = std::find_if(lanes_.begin(), lanes_.end(), same);
  return found != lanes_.end() ? *found : lanes_.emplace_back(engine_, search, options_);
}

// Run the thread. All requests get an error if it fails, so that callers never wait forever.
void ProcessQueue::run() {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  std::list<Lane> lost;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    lost.swap(lanes_);
    unanswered_ = 0;
  }
  for (const Lane& lane : lost) {
    for (const auto& [index, ticket] : lane.tickets) ticket->fail(error);
  }
  lost.clear();
  const std::lock_guard lock(mutex_);
  is_running_ = false;
  changed_.notify_all();
}

void ProcessQueue::work() {
  for (;;) {
    std::vector<Lane*> lanes;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !lanes_.empty(); });
      if (lanes_.empty()) return;
      for (Lane& lane : lanes_) lanes.push_back(&lane);  // valid, because only this thread removes lanes
    }
    for (Lane* lane : lanes) {
      drop_overdue(*lane);
      if (!step(*lane)) end(*lane);
    }
  }
}

// Remove requests that were cancelled or are past their deadline.
void ProcessQueue::drop_overdue(Lane& lane) {
  const Clock::time_point now = Clock::now();
  std::vector<std::pair<std::shared_ptr<Ticket>, std::exception_ptr>> overdue;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [index, ticket] : lane.tickets) {
      if (const std::exception_ptr error = ticket->overdue(now)) overdue.emplace_back(ticket, error);
    }
  }
  for (const auto& [ticket, error] : overdue) {
    lane.worker.cancel(ticket->index_);
    fail(lane, *ticket, error);
  }
}

// Run a group of steps of a lane's batch. Return false if no request of the lane is left.
bool ProcessQueue::step(Lane& lane) {
  Slots slots;
  try {
    slots = lane.worker.step();
  } catch (...) {
    lose_batch(lane, std::current_exception());
    return true;
  }
  for (const auto& slot : slots) serve(lane, *slot);
  return !slots.empty();
}

// Pass the new tokens of a slot to its listener, and the result if the slot is done.
void ProcessQueue::serve(Lane& lane, Slot& slot) {
  const std::shared_ptr<Ticket> ticket = find(lane, slot.index);
  if (!ticket) return;
  try {
    std::size_t& delivered = ticket->delivered_;
    for (; ticket->listener_.part && delivered < slot.ids.size(); ++delivered) {
      const bool last = slot.done && delivered + 1 == slot.ids.size();
      const auto score = slot.request.scores ? std::optional(slot.scores[delivered]) : std::nullopt;
      ticket->listener_.part({slot.ids[delivered], score, last});
    }
  } catch (...) {
    lane.worker.cancel(slot.index);
    fail(lane, *ticket, std::current_exception());
    return;
  }
  if (slot.done && mark_finished(lane, *ticket)) ticket->answer(slot.result());
}

// Handle the failure of a batch: requests that do not wait in the queue are lost.
void ProcessQueue::lose_batch(Lane& lane, const std::exception_ptr& error) {
  lane.worker.abandon();
  std::vector<std::shared_ptr<Ticket>> lost;
  while (lost.empty()) {
    const std::lock_guard lock(mutex_);
    const auto waiting = lane.scheduler.waiting();
    for (const auto& [index, ticket] : lane.tickets) {
      if (waiting.count(index) == 0) lost.push_back(ticket);
    }
    if (waiting.empty()) break;
    if (lost.empty()) lane.scheduler.drop_head();  // the batch failed before it took any requests
  }
  for (const auto& ticket : lost) fail(lane, *ticket, error);
}

// Remove a lane without batches, unless a new request has arrived.
void ProcessQueue::end(Lane& lane) {
  const std::lock_guard lock(mutex_);
  if (!lane.scheduler.waiting().empty()) return;
  lanes_.remove_if([&lane](const Lane& each) { return &each == &lane; });
}

std::shared_ptr<Ticket> ProcessQueue::find(const Lane& lane, std::size_t index) const {
  const std::lock_guard lock(mutex_);
  const auto found = lane.tickets.find(index);
  return found == lane.tickets.end() ? nullptr : found->second;
}

// Mark a request as finished. Return false if it was already finished.
bool ProcessQueue::mark_finished(Lane& lane, const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = lane.tickets.erase(ticket.index_);
  unanswered_ -= count;
  return count > 0;
}

void ProcessQueue::fail(Lane& lane, Ticket& ticket, const std::exception_ptr& error) {
  if (mark_finished(lane, ticket)) ticket.fail(error);
}

Queue::Queue(const Engine& engine, const SearchOptions& options, std::size_t max_waiting)
    : engine_(engine),
      options_{options.rows, options.batch_tokens, 1},
      max_waiting_(max_waiting),
      process_queue_(new ProcessQueue(engine_, options_, max_waiting_, false)) {}

// In a forked process, the queue of the parent is not deleted: its destructor would wait for a thread that does not
// exist here.
Queue::~Queue() {
  if (process_queue_.load()->forked == forks()) delete process_queue_.load();
}

ProcessQueue& Queue::process_queue() const {
  ProcessQueue* found = process_queue_.load();
  if (found->forked == forks()) return *found;
  auto created = std::make_unique<ProcessQueue>(engine_, options_, max_waiting_, closed_);
  return process_queue_.compare_exchange_strong(found, created.get()) ? *created.release() : *found;
}

std::shared_ptr<Ticket> Queue::submit(Request request, Listener<Result, Token> listener,
                                      std::optional<double> seconds) {
  return process_queue().submit(std::move(request), std::move(listener), seconds);
}

std::size_t Queue::unanswered() const { return process_queue().unanswered(); }

std::size_t Queue::searches() const { return process_queue().searches(); }

void Queue::close(bool drain) {
  closed_ = true;
  process_queue().close(drain);
}

bool Queue::is_own_thread() const { return process_queue().is_own_thread(); }

}  // namespace txport::core
