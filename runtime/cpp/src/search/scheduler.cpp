#include "search/scheduler.hpp"

#include <algorithm>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "errors.hpp"

namespace txport::core {

// One decoder state, and the slot of each of its rows.
class Batch {
 public:
  Batch(Scheduler& scheduler, const Scheduler::BatchSizes& sizes)
      : scheduler_(scheduler),
        engine_(scheduler.engine_),
        policy_(scheduler.policy_),
        width_(policy_.rows()),
        source_(sizes.source),
        logits_(sizes.logits),
        slots_(sizes.rows),
        state_(allocated(sizes)) {}

  // Run a step and return its slots. Finished ones have already left the batch. Empty if no sentence is
  // left for this batch.
  Slots step() {
    if (in_flight_ == 0) {
      free_cancelled();
      add_rows();
      refill();
    }
    drained_ = waiting(1) == 0;
    Slots working;
    std::copy_if(slots_.begin(), slots_.end(), std::back_inserter(working), [](const auto& slot) { return slot; });
    if (working.empty()) return working;
    grow_or_shrink(working);
    advance(working);
    for (auto& slot : slots_) {
      if (slot && slot->done) slot.reset();
    }
    return working;
  }

  // Give up a request, if it is here.
  void cancel(std::size_t index) {
    const auto same = [index](const Encoded& each) { return each.entry.index == index; };
    encoded_.erase(std::remove_if(encoded_.begin(), encoded_.end(), same), encoded_.end());
    for (const auto& slot : slots_) {
      if (slot && slot->index == index) slot->cancelled = true;
    }
  }

 private:
  struct Encoded {
    Scheduler::Entry entry;
    std::shared_ptr<const Memory> memory;
    std::size_t row;
  };

  Scheduler& scheduler_;
  const Engine& engine_;
  const Policy& policy_;
  const std::size_t width_;    // rows of a slot
  const std::int64_t source_;  // the width that it began with
  const bool logits_;
  Slots slots_;
  std::unique_ptr<DecoderState> state_;
  std::deque<Encoded> encoded_;
  std::int64_t in_flight_ = 0;  // steps of the group that the device began while the host read another
  bool drained_ = false;        // at this step no sentence waits for this batch; others may come

  // How many sentences may still be placed, as far as is known now, and as far as `most`.
  std::size_t waiting(std::size_t most) { return encoded_.size() + scheduler_.waiting(*state_, logits_, most); }

  std::size_t count_working() const {
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

  // Take at least twice as many rows if more sentences wait than rows are free.
  void add_rows() {
    const std::size_t count = slots_.size();
    const std::size_t most = scheduler_.most_rows(source_);
    if (count >= most) return;
    const std::size_t needed = count_working() + waiting(most);
    if (count >= needed) return;
    const std::size_t total = std::min(most, std::max(2 * count, needed));
    // The protocol makes no free rows: copies of the first slot's become free by ending them.
    std::vector<std::size_t> rows = rows_of(all_slots());
    while (rows.size() < total * width_) rows.push_back(rows.size() % width_);
    state_ = state_->resized(rows, target(slots_));
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count * width_));
    end_rows(rows);
    slots_.resize(total);
  }

  // Place waiting sentences in the free rows, a group from one encoder run at a time.
  void refill() {
    std::deque<std::size_t> free;
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      if (!slots_[index]) free.push_back(index);
    }
    while (!free.empty() && (!encoded_.empty() || encode_group())) {
      const std::shared_ptr<const Memory> memory = encoded_.front().memory;
      std::vector<std::size_t> rows;
      std::vector<std::size_t> memory_rows;
      Ids limits;
      std::vector<std::size_t> restricted;
      std::vector<std::shared_ptr<const Ids>> words;
      while (!free.empty() && !encoded_.empty() && encoded_.front().memory == memory) {
        Encoded next = std::move(encoded_.front());
        encoded_.pop_front();
        const std::int64_t limit = next.entry.request.limit(engine_.limits());
        if (next.entry.request.words != nullptr) {
          restricted.push_back(free.front() * width_);
          words.push_back(next.entry.request.words);
        }
        slots_[free.front()] = policy_.slot(next.entry.index, std::move(next.entry.request), limit);
        rows.push_back(free.front() * width_);
        memory_rows.push_back(next.row);
        limits.push_back(limit);
        free.pop_front();
      }
      state_->place(rows, *memory, memory_rows, limits);
      if (!restricted.empty()) state_->restrict_rows(restricted, words);
    }
  }

  // Encode as many sentences as there are rows, ahead of need; false if none is left for this batch.
  bool encode_group() {
    std::vector<Scheduler::Entry> group = scheduler_.take(*state_, logits_);
    if (group.empty()) return false;
    Ids lengths;
    lengths.reserve(group.size());
    for (const Scheduler::Entry& entry : group) lengths.push_back(entry.request.width());
    const auto memory = encoded(group, lengths);
    for (std::size_t row = 0; row < group.size(); ++row) encoded_.push_back({std::move(group[row]), memory, row});
    return true;
  }

  std::shared_ptr<const Memory> encoded(const std::vector<Scheduler::Entry>& group, const Ids& lengths) const {
    const auto width = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
    const auto& first = group.front().request.vectors;
    if (first != nullptr) {
      std::vector<float> features(group.size() * width * first->columns);
      for (std::size_t row = 0; row < group.size(); ++row) {
        const std::vector<float>& source = group[row].request.vectors->values;
        const auto at = static_cast<std::ptrdiff_t>(row * width * first->columns);
        std::copy(source.begin(), source.end(), features.begin() + at);
      }
      return engine_.encode_features(features, lengths);
    }
    Ids ids(group.size() * width, engine_.tokens().pad);
    for (std::size_t row = 0; row < group.size(); ++row) {
      const Ids& source = group[row].request.source_ids;
      std::copy(source.begin(), source.end(), ids.begin() + static_cast<std::ptrdiff_t>(row * width));
    }
    return engine_.encode(ids, lengths);
  }

  // The state of this number of sentences. If memory does not suffice, the error contains the number that fits.
  std::unique_ptr<DecoderState> allocated(const Scheduler::BatchSizes& sizes) const {
    const std::int64_t source = engine_.ragged() ? engine_.limits().source : sizes.source;
    const auto state = [&](std::size_t rows, std::size_t width) {
      return engine_.allocate(rows * width, source, sizes.target, {logits_, policy_.top(), width});
    };
    const auto fits = [&](std::size_t rows, std::size_t width) {
      try {
        return state(rows, width) != nullptr;
      } catch (const std::bad_alloc&) {
      } catch (const ResourceError&) {
      }
      return false;
    };
    const auto way = [&]() -> std::string {
      for (std::size_t rows = sizes.rows / 2; rows > 0 && width_ > 1; rows /= 2) {
        if (fits(rows, width_)) return "batch " + std::to_string(rows);
      }
      for (std::size_t width = width_ / 2; width > 0; width /= 2) {
        if (fits(1, width)) return "beam or n_best " + std::to_string(width);
      }
      return "";
    };
    const auto fail = [&] {
      const std::string fitting = way();
      if (fitting.empty()) throw;
      throw ResourceError("there is no memory for " + std::to_string(sizes.rows) + " sentences of " +
                          std::to_string(width_) + " rows each: " + fitting + " fits");
    };
    try {
      return state(sizes.rows, width_);
    } catch (const std::bad_alloc&) {
      fail();
    } catch (const ResourceError&) {
      fail();
    }
    return nullptr;
  }

  bool half_free(const Slots& working) const { return drained_ && 2 * working.size() <= slots_.size(); }

  // Move to longer caches if a row has filled them, and to fewer rows if half are free and none waits.
  void grow_or_shrink(const Slots& working) {
    if (in_flight_ > 0 || (longest(working) < state_->target() && !half_free(working))) return;
    const std::vector<std::size_t> kept = drained_ ? compacted_slots() : all_slots();
    state_ = state_->resized(rows_of(kept), target(working));
    Slots slots;
    slots.reserve(kept.size());
    for (const std::size_t index : kept) slots.push_back(slots_[index]);
    slots_ = std::move(slots);
  }

  // A length of caches that leaves each row that works room for a token.
  std::int64_t target(const Slots& slots) const {
    std::int64_t limit = 0;
    for (const auto& slot : slots) limit = slot ? std::max(limit, slot->limit) : limit;
    std::int64_t target = state_->target();
    while (target <= longest(slots)) target = std::min(2 * target, limit);
    return target;
  }

  // The slots that work; those at the end fill the gaps at the front, so that few rows have to move.
  std::vector<std::size_t> compacted_slots() const {
    const std::size_t count = count_working();
    std::vector<std::size_t> kept;
    std::deque<std::size_t> behind;
    for (std::size_t index = count; index < slots_.size(); ++index) {
      if (slots_[index]) behind.push_back(index);
    }
    for (std::size_t index = 0; index < count; ++index) {
      if (slots_[index]) {
        kept.push_back(index);
      } else {
        kept.push_back(behind.front());
        behind.pop_front();
      }
    }
    return kept;
  }

  std::vector<std::size_t> all_slots() const {
    std::vector<std::size_t> all(slots_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }

  std::vector<std::size_t> rows_of(const std::vector<std::size_t>& slots) const {
    std::vector<std::size_t> rows;
    for (const std::size_t index : slots) {
      for (std::size_t row = 0; row < width_; ++row) rows.push_back(index * width_ + row);
    }
    return rows;
  }

  static std::int64_t longest(const Slots& slots) {
    std::int64_t most = 0;
    for (const auto& slot : slots) most = slot ? std::max(most, slot->length) : most;
    return most;
  }

  void advance(const Slots& working) {
    const bool one_by_one = policy_.steps_one_by_one(working);
    // If rows do not change, a device continues while the host reads: with half as many steps in a group, since
    // those of two groups are lost after the last row has finished. Finished rows are inert meanwhile.
    const bool given_up = std::any_of(working.begin(), working.end(), [](const auto& slot) { return slot->cancelled; });
    const bool ahead = engine_.poll() > 1 && !one_by_one && !given_up && drained_ && !half_free(working);
    const std::int64_t poll = scheduler_.poll_;
    const std::int64_t group = one_by_one ? 1 : ahead ? std::max<std::int64_t>(poll / 2, 1) : poll;
    if (in_flight_ == 0) in_flight_ = begin(group, working);
    const std::int64_t following = ahead ? begin(group, working) : 0;
    const Ids token_ids = state_->read().token_ids;
    in_flight_ = following;
    policy_.choose(*state_, slots_, token_ids, one_by_one);
  }

  // Begin a group of up to `count` steps, behind the one that is in flight; return how many they are.
  std::int64_t begin(std::int64_t count, const Slots& working) {
    const std::int64_t room = state_->target() - longest(working) - in_flight_;
    std::int64_t most = 0;
    for (const auto& slot : working) most = std::max(most, slot->limit - slot->length - in_flight_);
    const std::int64_t steps = std::max<std::int64_t>(std::min({count, room, most}), 0);
    if (steps > 0) state_->step(steps);
    return steps;
  }
};

namespace {

// Maximum number of sentences that run together.
std::int64_t most_sentences(const Engine& engine, const Policy& policy) {
  const std::int64_t batch = engine.limits().batch;
  const auto rows = static_cast<std::int64_t>(policy.rows());
  if (batch >= rows) return batch / rows;
  throw InputError(std::to_string(rows) + " rows for a sentence are too many: this bundle runs " +
                   std::to_string(batch));
}

}  // namespace

Scheduler::Scheduler(const Engine& engine, const Policy& policy, const SearchOptions& options,
                     std::optional<std::int64_t> poll)
    : engine_(engine),
      policy_(policy),
      poll_(poll.value_or(engine.poll())),
      workers_(std::max<std::int64_t>(options.workers, 1)),
      rows_(std::max<std::int64_t>(
          1,
          std::min(options.rows.value_or(most_sentences(engine, policy)), most_sentences(engine, policy)) / workers_)),
      batch_tokens_(std::max<std::int64_t>(1, options.batch_tokens / workers_)) {}

std::size_t Scheduler::submit(std::vector<Request> requests) {
  for (const Request& request : requests) request.check(engine_.limits());
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t first, std::size_t second) {
    return requests[first].width() > requests[second].width();
  });
  const std::lock_guard lock(mutex_);
  const std::size_t first = submissions_;
  submissions_ += requests.size();
  for (const std::size_t i : order) queue_.push_back({first + i, std::move(requests[i])});
  return first;
}

void Scheduler::drain(const std::function<void(Result)>& give) {
  Worker worker(*this);
  for (Slots working = worker.step(); !working.empty(); working = worker.step()) {
    for (const auto& slot : working) {
      if (slot->done) give(slot->result());
    }
  }
}

// Sizes of a batch for the head of the queue; nothing if nothing waits.
std::optional<Scheduler::BatchSizes> Scheduler::open() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return std::nullopt;
  const std::int64_t source = head_width();
  std::int64_t longest = 1;
  bool logits = false;
  for (const Entry& entry : queue_) {
    longest = std::max(longest, entry.request.limit(engine_.limits()));
    logits = logits || policy_.needs_logits(entry.request);
  }
  const std::size_t rows = std::min(most_rows(source), share(workers_ - batches_));
  ++batches_;
  return BatchSizes{rows, source, std::min(engine_.first_target(source), longest), logits};
}

void Scheduler::close() {
  const std::lock_guard lock(mutex_);
  --batches_;
}

// Maximum number of sentences of a batch of sources of this width.
std::size_t Scheduler::most_rows(std::int64_t source) const {
  return static_cast<std::size_t>(std::max<std::int64_t>(1, std::min(rows_, batch_tokens_ / source)));
}

// The next group for a running batch, at most as many as it has slots; empty if there is none for it.
std::vector<Scheduler::Entry> Scheduler::take(const DecoderState& state, bool logits) {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> group;
  for (std::size_t count = ready(state, logits, state.rows() / policy_.rows()); count > 0; --count) {
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return group;
}

// The number of waiting requests that a running batch may take now, up to `most`.
std::size_t Scheduler::waiting(const DecoderState& state, bool logits, std::size_t most) {
  const std::lock_guard lock(mutex_);
  return ready(state, logits, most);
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
  const auto count = std::min(queue_.size(), static_cast<std::size_t>(rows_));
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(count));
}

// The widest of those from whom a batch gets its width.
std::int64_t Scheduler::head_width() const {
  std::int64_t width = 0;
  const std::size_t count = std::min(queue_.size(), static_cast<std::size_t>(rows_));
  for (std::size_t i = 0; i < count; ++i) width = std::max(width, queue_[i].request.width());
  return width;
}

// The share of the waiting entries for one of this number of workers.
std::size_t Scheduler::share(std::int64_t workers) const {
  const auto parts = static_cast<std::size_t>(std::max<std::int64_t>(workers, 1));
  return (queue_.size() + parts - 1) / parts;
}

// How many at the head of the queue belong in a running batch.
//
// One that is too wide, for an engine that pads, or needs logits lets the batch drain, so that it begins the next one.
// That is rare where many wait, since the longest come first. Sentences of half the width get a batch of their own if
// they can fill it, so that they do not pay for the padding.
std::size_t Scheduler::ready(const DecoderState& state, bool logits, std::size_t most) const {
  if (queue_.empty()) return 0;
  const bool narrow = !engine_.ragged() && 2 * head_width() <= state.source();
  if (narrow && queue_.size() * policy_.rows() >= state.rows()) return 0;
  std::size_t count = 0;
  for (most = std::min(most, share(workers_)); count < most; ++count) {
    const Request& request = queue_[count].request;
    if (request.width() > state.source() || (policy_.needs_logits(request) && !logits)) break;
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
  scheduler_.close();
}

Slots Worker::step() {
  while (!scheduler_.stopped_) {
    if (!batch_) {
      const auto sizes = scheduler_.open();
      if (!sizes) break;
      try {
        batch_ = std::make_unique<Batch>(scheduler_, *sizes);
      } catch (...) {
        scheduler_.close();
        throw;
      }
    }
    Slots working = batch_->step();
    if (!working.empty()) return working;
    abandon();
  }
  return {};
}

}  // namespace txport::core
