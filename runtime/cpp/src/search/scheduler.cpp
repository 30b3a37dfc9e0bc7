#include "search/scheduler.hpp"

#include <algorithm>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "errors.hpp"

namespace txport::core {

// One decoder state and the slots of its rows.
class Batch {
 public:
  Batch(Scheduler& scheduler, const Scheduler::BatchSizes& sizes)
      : scheduler_(scheduler),
        engine_(scheduler.engine_),
        policy_(scheduler.policy_),
        rows_per_sentence_(policy_.rows_per_sentence()),
        source_length_(sizes.source),
        has_logits_(sizes.logits),
        slots_(sizes.sentences),
        state_(allocate(sizes)) {}

  // Run a group of steps and return the slots that took part. Finished slots have already left the batch. Empty if no
  // sentence is left for this batch.
  Slots step() {
    if (in_flight_ == 0) {
      free_cancelled();
      add_rows();
      refill();
    }
    nothing_waits_ = count_waiting(1) == 0;
    Slots active;
    std::copy_if(slots_.begin(), slots_.end(), std::back_inserter(active), [](const auto& slot) { return slot; });
    if (active.empty()) return active;
    grow_or_shrink(active);
    advance(active);
    for (auto& slot : slots_) {
      if (slot && slot->done) slot.reset();
    }
    return active;
  }

  // Cancel a request if it is in this batch.
  void cancel(std::size_t index) {
    const auto same = [index](const EncodedSentence& each) { return each.entry.index == index; };
    encoded_sentences_.erase(std::remove_if(encoded_sentences_.begin(), encoded_sentences_.end(), same),
                             encoded_sentences_.end());
    for (const auto& slot : slots_) {
      if (slot && slot->index == index) slot->cancelled = true;
    }
  }

 private:
  // A sentence of this batch that the encoder has read, before it gets a slot.
  struct EncodedSentence {
    Scheduler::Entry entry;
    std::shared_ptr<const Memory> memory;
    std::size_t row;  // in `memory`
  };

  Scheduler& scheduler_;
  const Engine& engine_;
  const Policy& policy_;
  const std::size_t rows_per_sentence_;  // Policy::rows_per_sentence
  const std::int64_t source_length_;     // longest source at the beginning of the batch
  const bool has_logits_;
  Slots slots_;
  std::unique_ptr<DecoderState> state_;
  std::deque<EncodedSentence> encoded_sentences_;
  std::int64_t in_flight_ = 0;  // steps that were launched on the device but not read yet
  bool nothing_waits_ = false;  // no sentence waits for this batch at this step; more may arrive later

  // Return the number of sentences that could be placed in this batch now: encoded ones, and up to `max_count` of the
  // queue.
  std::size_t count_waiting(std::size_t max_count) {
    return encoded_sentences_.size() + scheduler_.count_waiting(*state_, has_logits_, max_count);
  }

  std::size_t count_active() const {
    return static_cast<std::size_t>(
        std::count_if(slots_.begin(), slots_.end(), [](const auto& slot) { return slot != nullptr; }));
  }

  void free_cancelled() {
    std::vector<std::size_t> cancelled;
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      if (slots_[index] && slots_[index]->cancelled) cancelled.push_back(index);
    }
    if (cancelled.empty()) return;
    end_rows(rows_of(cancelled));
    for (const std::size_t index : cancelled) slots_[index].reset();
  }

  void end_rows(const std::vector<std::size_t>& rows) {
    state_->override_tokens(rows, Ids(rows.size(), engine_.tokens().pad), std::vector<bool>(rows.size(), true));
  }

  // If more sentences wait than slots are free, grow the batch to at least twice its size, up to its maximum.
  void add_rows() {
    const std::size_t count = slots_.size();
    const std::size_t max_count = scheduler_.max_sentences(source_length_);
    if (count >= max_count) return;
    const std::size_t slot_count = count_active() + count_waiting(max_count);
    if (count >= slot_count) return;
    const std::size_t total = std::min(max_count, std::max(2 * count, slot_count));
    // DecoderState::resized cannot create empty rows, so copy the rows of the first slot and mark the copies as
    // finished.
    std::vector<std::size_t> rows = rows_of(all_slots());
    while (rows.size() < total * rows_per_sentence_) rows.push_back(rows.size() % rows_per_sentence_);
    state_ = state_->resized(rows, target(slots_));
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count * rows_per_sentence_));
    end_rows(rows);
    slots_.resize(total);
  }

  // Place waiting sentences in free slots. Sentences of one encoder run are placed together.
  void refill() {
    std::deque<std::size_t> free_slots;
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      if (!slots_[index]) free_slots.push_back(index);
    }
    while (!free_slots.empty() && (!encoded_sentences_.empty() || encode_group())) {
      const std::shared_ptr<const Memory> memory = encoded_sentences_.front().memory;
      std::vector<std::size_t> rows;
      std::vector<std::size_t> memory_rows;
      Ids limits;
      std::vector<std::size_t> restricted;
      std::vector<std::shared_ptr<const Ids>> words;
      while (!free_slots.empty() && !encoded_sentences_.empty() && encoded_sentences_.front().memory == memory) {
        EncodedSentence next = std::move(encoded_sentences_.front());
        encoded_sentences_.pop_front();
        const std::int64_t limit = next.entry.request.limit(engine_.limits());
        if (next.entry.request.words != nullptr) {
          restricted.push_back(free_slots.front() * rows_per_sentence_);
          words.push_back(next.entry.request.words);
        }
        slots_[free_slots.front()] = policy_.slot(next.entry.index, std::move(next.entry.request), limit);
        rows.push_back(free_slots.front() * rows_per_sentence_);
        memory_rows.push_back(next.row);
        limits.push_back(limit);
        free_slots.pop_front();
      }
      state_->place(rows, *memory, memory_rows, limits);
      if (!restricted.empty()) state_->restrict_rows(restricted, words);
    }
  }

  // Encode up to as many waiting sentences as the batch has slots, so that later refills need no encoder run. Return
  // false if no sentence is left for this batch.
  bool encode_group() {
    std::vector<Scheduler::Entry> group = scheduler_.take_group(*state_, has_logits_);
    if (group.empty()) return false;
    Ids lengths;
    lengths.reserve(group.size());
    for (const Scheduler::Entry& entry : group) lengths.push_back(entry.request.source_length());
    const auto memory = encode(group, lengths);
    for (std::size_t row = 0; row < group.size(); ++row)
      encoded_sentences_.push_back({std::move(group[row]), memory, row});
    return true;
  }

  // Run the encoder on the padded sources of a group.
  std::shared_ptr<const Memory> encode(const std::vector<Scheduler::Entry>& group, const Ids& lengths) const {
    const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
    const auto& first = group.front().request.vectors;
    if (first != nullptr) {
      std::vector<float> features(group.size() * longest * first->columns);
      for (std::size_t row = 0; row < group.size(); ++row) {
        const std::vector<float>& source = group[row].request.vectors->values;
        const auto at = static_cast<std::ptrdiff_t>(row * longest * first->columns);
        std::copy(source.begin(), source.end(), features.begin() + at);
      }
      return engine_.encode_features(features, lengths);
    }
    Ids ids(group.size() * longest, engine_.tokens().pad);
    for (std::size_t row = 0; row < group.size(); ++row) {
      const Ids& source = group[row].request.source_ids;
      std::copy(source.begin(), source.end(), ids.begin() + static_cast<std::ptrdiff_t>(row * longest));
    }
    return engine_.encode(ids, lengths);
  }

  // Return a new state. If memory does not suffice for several rows per sentence, the error names a smaller size that
  // fits, found by halving.
  std::unique_ptr<DecoderState> allocate(const Scheduler::BatchSizes& sizes) const {
    const std::int64_t source = engine_.ragged() ? engine_.limits().source : sizes.source;
    const auto try_to_allocate = [&](std::size_t sentences, std::size_t rows) {
      return engine_.allocate(sentences * rows, source, sizes.target, {has_logits_, policy_.top(), rows});
    };
    const auto fits = [&](std::size_t sentences, std::size_t rows) {
      try {
        return try_to_allocate(sentences, rows) != nullptr;
      } catch (const std::bad_alloc&) {
      } catch (const ResourceError&) {
      }
      return false;
    };
    const auto smaller = [&]() -> std::string {
      for (std::size_t count = sizes.sentences / 2; count > 0 && rows_per_sentence_ > 1; count /= 2) {
        if (fits(count, rows_per_sentence_)) return "batch " + std::to_string(count);
      }
      for (std::size_t rows = rows_per_sentence_ / 2; rows > 0; rows /= 2) {
        if (fits(1, rows)) return "beam or n_best " + std::to_string(rows);
      }
      return "";
    };
    // Called by the handlers below. `throw` without a value throws the exception again that they have caught.
    const auto fail = [&] {
      const std::string fitting = smaller();
      if (fitting.empty()) throw;
      throw ResourceError("there is not enough memory for " + std::to_string(sizes.sentences) + " sentences of " +
                          std::to_string(rows_per_sentence_) + " rows each: " + fitting + " fits");
    };
    try {
      return try_to_allocate(sizes.sentences, rows_per_sentence_);
    } catch (const std::bad_alloc&) {
      fail();
    } catch (const ResourceError&) {
      fail();
    }
    return nullptr;
  }

  bool should_shrink(const Slots& active) const { return nothing_waits_ && 2 * active.size() <= slots_.size(); }

  // Move the rows to longer caches if a row has filled them, or to a smaller batch if at least half of the rows are
  // free and no sentence waits. Whenever rows move and no sentence waits, free rows are dropped.
  void grow_or_shrink(const Slots& active) {
    if (in_flight_ > 0 || (longest(active) < state_->target() && !should_shrink(active))) return;
    const std::vector<std::size_t> order = nothing_waits_ ? compacted_slots() : all_slots();
    state_ = state_->resized(rows_of(order), target(active));
    Slots slots;
    slots.reserve(order.size());
    for (const std::size_t index : order) slots.push_back(slots_[index]);
    slots_ = std::move(slots);
  }

  // Return a cache length with room for one more token in every active row.
  std::int64_t target(const Slots& slots) const {
    std::int64_t limit = 0;
    for (const auto& slot : slots) limit = slot ? std::max(limit, slot->limit) : limit;
    std::int64_t target = state_->target();
    while (target <= longest(slots)) target = std::min(2 * target, limit);
    return target;
  }

  // Return the active slots. Those at the end fill the gaps at the front, so that few rows move.
  std::vector<std::size_t> compacted_slots() const {
    const std::size_t count = count_active();
    std::vector<std::size_t> order;
    std::deque<std::size_t> last_slots;
    for (std::size_t index = count; index < slots_.size(); ++index) {
      if (slots_[index]) last_slots.push_back(index);
    }
    for (std::size_t index = 0; index < count; ++index) {
      if (slots_[index]) {
        order.push_back(index);
      } else {
        order.push_back(last_slots.front());
        last_slots.pop_front();
      }
    }
    return order;
  }

  std::vector<std::size_t> all_slots() const {
    std::vector<std::size_t> all(slots_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }

  std::vector<std::size_t> rows_of(const std::vector<std::size_t>& slots) const {
    std::vector<std::size_t> rows;
    for (const std::size_t index : slots) {
      for (std::size_t row = 0; row < rows_per_sentence_; ++row) rows.push_back(index * rows_per_sentence_ + row);
    }
    return rows;
  }

  static std::int64_t longest(const Slots& slots) {
    std::int64_t length = 0;
    for (const auto& slot : slots) length = slot ? std::max(length, slot->length) : length;
    return length;
  }

  void advance(const Slots& active) {
    const bool one_by_one = policy_.steps_one_by_one(active);
    // If no rows change, launch the next group of steps before reading this one, so that the device does not wait for
    // the host. Groups are then half as long, because up to two groups of steps are wasted after the last row has
    // finished. Finished rows stay unchanged.
    const bool cancelled = std::any_of(active.begin(), active.end(), [](const auto& slot) { return slot->cancelled; });
    const bool ahead = engine_.poll() > 1 && !one_by_one && !cancelled && nothing_waits_ && !should_shrink(active);
    const std::int64_t max_steps = scheduler_.max_steps_ahead_;
    const std::int64_t group = one_by_one ? 1 : ahead ? std::max<std::int64_t>(max_steps / 2, 1) : max_steps;
    if (in_flight_ == 0) in_flight_ = launch(group, active);
    const std::int64_t next = ahead ? launch(group, active) : 0;
    const Ids token_ids = state_->read().token_ids;
    in_flight_ = next;
    policy_.choose(*state_, slots_, token_ids, one_by_one);
  }

  // Launch a group of up to `count` steps after the group in flight, and return the number of steps.
  std::int64_t launch(std::int64_t count, const Slots& active) {
    const std::int64_t room = state_->target() - longest(active) - in_flight_;
    std::int64_t remaining = 0;
    for (const auto& slot : active) remaining = std::max(remaining, slot->limit - slot->length - in_flight_);
    const std::int64_t steps = std::max<std::int64_t>(std::min({count, room, remaining}), 0);
    if (steps > 0) state_->step(steps);
    return steps;
  }
};

namespace {

// Return the maximum number of sentences that the engine can run together.
std::int64_t max_sentences_of(const Engine& engine, const Policy& policy) {
  const std::int64_t batch = engine.limits().batch;
  const auto rows = static_cast<std::int64_t>(policy.rows_per_sentence());
  if (batch >= rows) return batch / rows;
  throw InputError("a sentence needs " + std::to_string(rows) + " rows, but this bundle supports at most " +
                   std::to_string(batch));
}

}  // namespace

Scheduler::Scheduler(const Engine& engine, const Policy& policy, const SearchOptions& options,
                     std::optional<std::int64_t> max_steps_ahead)
    : engine_(engine),
      policy_(policy),
      max_steps_ahead_(max_steps_ahead.value_or(engine.poll())),
      workers_(std::max<std::int64_t>(options.workers, 1)),
      max_sentences_(std::max<std::int64_t>(
          1, std::min(options.rows.value_or(max_sentences_of(engine, policy)), max_sentences_of(engine, policy)) /
                 workers_)),
      batch_tokens_(std::max<std::int64_t>(1, options.batch_tokens / workers_)) {}

std::size_t Scheduler::submit(std::vector<Request> requests) {
  for (const Request& request : requests) request.check(engine_.limits());
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t first, std::size_t second) {
    return requests[first].source_length() > requests[second].source_length();
  });
  const std::lock_guard lock(mutex_);
  const std::size_t first = submissions_;
  submissions_ += requests.size();
  for (const std::size_t i : order) queue_.push_back({first + i, std::move(requests[i])});
  return first;
}

void Scheduler::drain(const std::function<void(Result)>& give) {
  Worker worker(*this);
  for (Slots active = worker.step(); !active.empty(); active = worker.step()) {
    for (const auto& slot : active) {
      if (slot->done) give(slot->result());
    }
  }
}

// Return the sizes of a new batch for the head of the queue; no value if the queue is empty.
std::optional<Scheduler::BatchSizes> Scheduler::begin_batch() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return std::nullopt;
  const std::int64_t source = head_source_length();
  std::int64_t longest = 1;
  bool logits = false;
  for (const Entry& entry : queue_) {
    longest = std::max(longest, entry.request.limit(engine_.limits()));
    logits = logits || policy_.needs_logits(entry.request);
  }
  const std::size_t sentences = std::min(max_sentences(source), share(workers_ - batches_));
  ++batches_;
  return BatchSizes{sentences, source, std::min(engine_.first_target(source), longest), logits};
}

void Scheduler::end_batch() {
  const std::lock_guard lock(mutex_);
  --batches_;
}

// Return the maximum number of sentences of a batch with sources up to this length.
std::size_t Scheduler::max_sentences(std::int64_t source_length) const {
  return static_cast<std::size_t>(std::max<std::int64_t>(1, std::min(max_sentences_, batch_tokens_ / source_length)));
}

// Take the next group of requests for a running batch, at most as many as it has slots; empty if none is
// admissible.
std::vector<Scheduler::Entry> Scheduler::take_group(const DecoderState& state, bool logits) {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> group;
  for (std::size_t count = count_admissible(state, logits, state.rows() / policy_.rows_per_sentence()); count > 0;
       --count) {
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return group;
}

// Return the number of waiting requests that a running batch may take now, at most `max_count`.
std::size_t Scheduler::count_waiting(const DecoderState& state, bool logits, std::size_t max_count) {
  const std::lock_guard lock(mutex_);
  return count_admissible(state, logits, max_count);
}

std::set<std::size_t> Scheduler::waiting() {
  const std::lock_guard lock(mutex_);
  std::set<std::size_t> indices;
  for (const Entry& entry : queue_) indices.insert(entry.index);
  return indices;
}

bool Scheduler::drop(std::size_t index) {
  const std::lock_guard lock(mutex_);
  const auto same = [index](const Entry& entry) { return entry.index == index; };
  const auto found = std::find_if(queue_.begin(), queue_.end(), same);
  if (found == queue_.end()) return false;
  queue_.erase(found);
  return true;
}

void Scheduler::drop_head() {
  const std::lock_guard lock(mutex_);
  const auto count = std::min(queue_.size(), static_cast<std::size_t>(max_sentences_));
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(count));
}

// Return the length of the longest source at the head of the queue, which determines the width of a new batch.
std::int64_t Scheduler::head_source_length() const {
  std::int64_t length = 0;
  const std::size_t count = std::min(queue_.size(), static_cast<std::size_t>(max_sentences_));
  for (std::size_t i = 0; i < count; ++i) length = std::max(length, queue_[i].request.source_length());
  return length;
}

// Return the number of waiting requests divided by the number of workers, rounded up.
std::size_t Scheduler::share(std::int64_t workers) const {
  const auto parts = static_cast<std::size_t>(std::max<std::int64_t>(workers, 1));
  return (queue_.size() + parts - 1) / parts;
}

// Return the number of requests at the head of the queue that a running batch may take.
//
// A request does not fit if its source is longer than the state (on engines that pad) or if it needs logits and the
// state has none. Then the running batch ends, and the request begins the next batch. This is rare when many requests
// wait, because the queue is sorted by descending length. If the waiting sources are at most half as long as the
// state and fill a batch, they get a new batch, to avoid padding.
std::size_t Scheduler::count_admissible(const DecoderState& state, bool logits, std::size_t max_count) const {
  if (queue_.empty()) return 0;
  const bool half = !engine_.ragged() && 2 * head_source_length() <= state.source();
  if (half && queue_.size() * policy_.rows_per_sentence() >= state.rows()) return 0;
  std::size_t count = 0;
  for (max_count = std::min(max_count, share(workers_)); count < max_count; ++count) {
    const Request& request = queue_[count].request;
    if (request.source_length() > state.source() || (policy_.needs_logits(request) && !logits)) break;
  }
  return count;
}

Worker::Worker(Scheduler& scheduler) : scheduler_(scheduler) {}

Worker::~Worker() { abandon(); }

void Worker::cancel(std::size_t index) {
  if (!scheduler_.drop(index) && batch_) batch_->cancel(index);
}

void Worker::abandon() {
  if (!batch_) return;
  batch_.reset();
  scheduler_.end_batch();
}

Slots Worker::step() {
  while (!scheduler_.stopped_) {
    if (!batch_) {
      const auto sizes = scheduler_.begin_batch();
      if (!sizes) break;
      try {
        batch_ = std::make_unique<Batch>(scheduler_, *sizes);
      } catch (...) {
        scheduler_.end_batch();
        throw;
      }
    }
    Slots active = batch_->step();
    if (!active.empty()) return active;
    abandon();
  }
  return {};
}

}  // namespace txport::core
