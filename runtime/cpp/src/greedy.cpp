#include "greedy.hpp"

#include <algorithm>
#include <deque>
#include <future>
#include <limits>
#include <numeric>

#include "errors.hpp"

namespace txport::core {

namespace {

void check(const Engine& engine, const Request& request) {
  const auto count = static_cast<std::int64_t>(request.source_ids.size());
  const std::int64_t most = engine.limits().source;
  if (count < 1 || count > most) {
    throw InputError("a source of " + std::to_string(count) + " tokens does not fit: give 1 to " +
                     std::to_string(most) + " tokens, eos included");
  }
  if (request.max_length && *request.max_length < 1) {
    throw InputError("a maximum length of " + std::to_string(*request.max_length) + " makes nothing: give 1 or more");
  }
}

std::int64_t length(const Ids& ids) { return static_cast<std::int64_t>(ids.size()); }

// A request that waits, and its place in the call.
struct Waiting {
  std::size_t index;
  const Request* request;
};

// A row that works on a request.
struct Slot {
  std::size_t index;
  const Request* request;
  std::int64_t limit;
  Ids ids;
  std::vector<double> scores;
  bool done = false;

  // Whether the host must see the next token before the one after it is made.
  bool constrained() const { return length(ids) < std::max(length(request->prefix), request->min_length); }
};

// The best id but one; the first of equals, as ArgMax has it.
std::int64_t best_but(std::vector<float> logits, std::int64_t excluded) {
  logits[static_cast<std::size_t>(excluded)] = -std::numeric_limits<float>::infinity();
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// One decoder state, and the request of each of its rows; a null pointer for a free row.
class Batch {
 public:
  using Working = std::vector<std::shared_ptr<Slot>>;

  Batch(const Engine& engine, std::deque<Waiting>& waiting, std::size_t rows, std::int64_t source, bool logits,
        bool scores, std::int64_t poll)
      : engine_(engine), waiting_(waiting), scores_(scores), poll_(poll), slots_(rows) {
    std::int64_t longest = 1;
    for (const Waiting& item : waiting) longest = std::max(longest, limit(*item.request));
    state_ = engine.allocate(rows, source, std::min(engine.first_target(source), longest), logits);
  }

  // Step, and return the slots that worked; those that are done have left the batch already. Nothing if no sentence is
  // left that this batch should take.
  Working step() {
    refill();
    Working working;
    for (const auto& slot : slots_) {
      if (slot) working.push_back(slot);
    }
    if (working.empty()) return working;
    make_room(working);
    advance(working);
    for (auto& slot : slots_) {
      if (slot && slot->done) slot.reset();
    }
    return working;
  }

 private:
  struct Encoded {
    Waiting item;
    std::shared_ptr<const Memory> memory;
    std::size_t row;
  };

  const Engine& engine_;
  std::deque<Waiting>& waiting_;
  bool scores_;
  std::int64_t poll_;       // the most steps that the host has not seen
  std::int64_t begun_ = 0;  // steps of the group that is under way, which the device began while the host looked
  std::deque<Encoded> encoded_;
  std::vector<std::shared_ptr<Slot>> slots_;
  bool closed_ = false;  // sentences still wait, but for the next batch
  std::unique_ptr<DecoderState> state_;

  std::int64_t limit(const Request& request) const {
    return std::min(request.max_length.value_or(engine_.limits().target), engine_.limits().target);
  }

  // Place waiting sentences in the free rows, a group from one encoder run at a time.
  void refill() {
    std::deque<std::size_t> free;
    for (std::size_t row = 0; row < slots_.size(); ++row) {
      if (!slots_[row]) free.push_back(row);
    }
    while (!free.empty() && (!encoded_.empty() || encode_group())) {
      const std::shared_ptr<const Memory> memory = encoded_.front().memory;
      std::vector<std::size_t> rows;
      std::vector<std::size_t> memory_rows;
      Ids limits;
      while (!free.empty() && !encoded_.empty() && encoded_.front().memory == memory) {
        const Encoded next = encoded_.front();
        encoded_.pop_front();
        const std::int64_t most = limit(*next.item.request);
        slots_[free.front()] = std::make_shared<Slot>(Slot{next.item.index, next.item.request, most, {}, {}});
        rows.push_back(free.front());
        memory_rows.push_back(next.row);
        limits.push_back(most);
        free.pop_front();
      }
      state_->place(rows, *memory, memory_rows, limits);
    }
  }

  // Encode as many sentences as there are rows, ahead of need; false if none is left for this batch.
  bool encode_group() {
    if (!takes_more()) return false;
    const std::size_t count = std::min(waiting_.size(), slots_.size());
    const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
    const std::vector<Waiting> group(waiting_.begin(), end);
    waiting_.erase(waiting_.begin(), end);
    Ids lengths;
    lengths.reserve(count);
    for (const Waiting& item : group) lengths.push_back(length(item.request->source_ids));
    const auto width = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
    Ids ids(count * width, engine_.tokens().pad);
    for (std::size_t row = 0; row < count; ++row) {
      const Ids& source = group[row].request->source_ids;
      std::copy(source.begin(), source.end(), ids.begin() + static_cast<std::ptrdiff_t>(row * width));
    }
    const auto memory = engine_.encode(ids, lengths);
    for (std::size_t row = 0; row < count; ++row) encoded_.push_back({group[row], memory, row});
    return true;
  }

  // Whether the next sentence belongs here: not if a batch can be filled with sentences of half our width.
  bool takes_more() {
    if (waiting_.empty()) return false;
    const bool narrow = 2 * length(waiting_.front().request->source_ids) <= state_->source();
    closed_ = closed_ || (narrow && waiting_.size() >= slots_.size());
    return !closed_;
  }

  // Whether no sentence will be placed any more.
  bool over() const { return encoded_.empty() && (closed_ || waiting_.empty()); }

  bool half_free(std::size_t working) const { return over() && 2 * working <= slots_.size(); }

  // Move to longer caches if a row has filled them, and to fewer rows if half of them are free for good.
  void make_room(const Working& working) {
    const std::int64_t made = most_made(working);
    if (begun_ > 0 || (made < state_->target() && !half_free(working.size()))) return;
    const std::vector<std::size_t> keep = over() ? closed_ranks() : all_rows();
    std::int64_t longest = 0;
    for (const auto& slot : working) longest = std::max(longest, slot->limit);
    std::int64_t target = state_->target();
    while (target <= made) target = std::min(2 * target, longest);
    state_ = state_->moved(keep, target);
    std::vector<std::shared_ptr<Slot>> kept;
    kept.reserve(keep.size());
    for (const std::size_t row : keep) kept.push_back(slots_[row]);
    slots_ = std::move(kept);
  }

  // The rows that work, those at the end in the gaps of those at the front, so that few have to move.
  std::vector<std::size_t> closed_ranks() const {
    std::vector<std::size_t> rows;
    std::deque<std::size_t> behind;
    const auto count = static_cast<std::size_t>(
        std::count_if(slots_.begin(), slots_.end(), [](const auto& slot) { return slot != nullptr; }));
    for (std::size_t row = count; row < slots_.size(); ++row) {
      if (slots_[row]) behind.push_back(row);
    }
    for (std::size_t row = 0; row < count; ++row) {
      if (slots_[row]) {
        rows.push_back(row);
      } else {
        rows.push_back(behind.front());
        behind.pop_front();
      }
    }
    return rows;
  }

  std::vector<std::size_t> all_rows() const {
    std::vector<std::size_t> rows(slots_.size());
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    return rows;
  }

  static std::int64_t most_made(const Working& working) {
    std::int64_t most = 0;
    for (const auto& slot : working) most = std::max(most, length(slot->ids));
    return most;
  }

  void advance(const Working& working) {
    const bool careful =
        scores_ || std::any_of(working.begin(), working.end(), [](const auto& slot) { return slot->constrained(); });
    // If rows stay as they are, the device goes on while the host polls: with half as many steps in a group, since
    // those of two groups are lost after the last row has finished. Finished rows are inert meanwhile.
    const bool ahead = engine_.poll() > 1 && !careful && over() && !half_free(working.size());
    const std::int64_t group = careful ? 1 : ahead ? std::max<std::int64_t>(poll_ / 2, 1) : poll_;
    if (begun_ == 0) begun_ = begin(group, working);
    const std::int64_t next = ahead ? begin(group, working) : 0;
    const Ids made = state_->read().token_ids;
    begun_ = next;
    if (careful) {
      constrain(made);
    } else {
      take(made);
    }
  }

  // Begin a group of up to `count` steps, behind the one that is under way; return how many they are.
  std::int64_t begin(std::int64_t count, const Working& working) {
    const std::int64_t room = state_->target() - most_made(working) - begun_;
    std::int64_t most = 0;
    for (const auto& slot : working) most = std::max(most, slot->limit - length(slot->ids) - begun_);
    const std::int64_t steps = std::min({count, room, most});
    if (steps > 0) state_->step(steps);
    return std::max<std::int64_t>(steps, 0);
  }

  void take(const Ids& made) {
    for (std::size_t row = 0; row < slots_.size(); ++row) {
      if (!slots_[row]) continue;
      Slot& slot = *slots_[row];
      for (std::size_t i = row; i < made.size() && !slot.done; i += slots_.size()) {
        slot.ids.push_back(made[i]);
        slot.done = made[i] == engine_.tokens().eos || length(slot.ids) >= slot.limit;
      }
    }
  }

  // Take one token for each row, with its score; a prefix or the minimum length may replace it.
  void constrain(const Ids& made) {
    const std::int64_t eos = engine_.tokens().eos;
    std::vector<std::size_t> rows;
    Ids tokens;
    std::vector<bool> finished;
    for (std::size_t row = 0; row < slots_.size(); ++row) {
      if (!slots_[row]) continue;
      Slot& slot = *slots_[row];
      const std::size_t position = slot.ids.size();
      std::int64_t token = made[row];
      if (position < slot.request->prefix.size()) {
        token = slot.request->prefix[position];
      } else if (token == eos && length(slot.ids) < slot.request->min_length) {
        token = best_but(state_->logits(row), eos);
      }
      slot.ids.push_back(token);
      slot.done = token == eos || length(slot.ids) >= slot.limit;
      if (token != made[row]) {
        rows.push_back(row);
        tokens.push_back(token);
        finished.push_back(slot.done);
      }
      if (scores_) slot.scores.push_back(state_->log_probability(row, token));
    }
    if (!rows.empty()) state_->override_tokens(rows, tokens, finished);
  }
};

// Answer the waiting sentences, each at its index of the results.
void answer(const Engine& engine, std::deque<Waiting>& waiting, const SearchOptions& options,
            std::vector<Result>& results) {
  const std::int64_t rows = std::min(options.rows.value_or(engine.limits().batch), engine.limits().batch);
  while (!waiting.empty()) {
    const std::int64_t source = length(waiting.front().request->source_ids);
    const std::int64_t most = std::max<std::int64_t>(1, std::min(rows, options.batch_tokens / source));
    const bool logits = options.scores || std::any_of(waiting.begin(), waiting.end(),
                                                      [](const Waiting& item) { return item.request->min_length > 0; });
    const std::size_t count = std::min(static_cast<std::size_t>(most), waiting.size());
    Batch batch(engine, waiting, count, source, logits, options.scores, engine.poll());
    for (auto working = batch.step(); !working.empty(); working = batch.step()) {
      for (const auto& slot : working) {
        if (!slot->done) continue;
        results[slot->index] = {slot->index, std::move(slot->ids), std::nullopt};
        if (options.scores) results[slot->index].scores = std::move(slot->scores);
      }
    }
  }
}

}  // namespace

std::vector<Result> decode_all(const Engine& engine, const std::vector<Request>& requests,
                               const SearchOptions& options) {
  for (const Request& request : requests) check(engine, request);
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t first, std::size_t second) {
    return requests[first].source_ids.size() > requests[second].source_ids.size();
  });
  const auto workers = static_cast<std::size_t>(std::max<std::int64_t>(options.workers, 1));
  const std::size_t count = std::max<std::size_t>(1, std::min(workers, requests.size()));
  const auto parts = static_cast<std::int64_t>(count);
  SearchOptions each = options;
  each.rows = std::max<std::int64_t>(1, options.rows.value_or(engine.limits().batch) / parts);
  each.batch_tokens = std::max<std::int64_t>(1, options.batch_tokens / parts);
  std::vector<Result> results(requests.size());
  const auto share = [&](std::size_t first) {
    std::deque<Waiting> waiting;
    for (std::size_t i = first; i < order.size(); i += count) waiting.push_back({order[i], &requests[order[i]]});
    answer(engine, waiting, each, results);
  };
  std::vector<std::future<void>> others;
  for (std::size_t first = 1; first < count; ++first) others.push_back(std::async(std::launch::async, share, first));
  share(0);
  for (auto& other : others) other.get();
  return results;
}

// The stream's one request, which its batch refers to.
struct TokenStream::Work {
  Request request;
  std::deque<Waiting> waiting;
  std::unique_ptr<Batch> batch;
};

TokenStream::TokenStream(const Engine& engine, Request request, bool scores)
    : work_(std::make_unique<Work>()), scores_(scores) {
  check(engine, request);
  work_->request = std::move(request);
  work_->waiting.push_back({0, &work_->request});
  const bool logits = scores || work_->request.min_length > 0;
  work_->batch =
      std::make_unique<Batch>(engine, work_->waiting, 1, length(work_->request.source_ids), logits, scores, 1);
}

TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&& other) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&& other) noexcept = default;

std::optional<Token> TokenStream::next() {
  if (ended_) return std::nullopt;
  // A step of one row makes one token; there is none if the maximum length leaves no room for any.
  const auto working = work_->batch->step();
  if (working.empty()) return std::nullopt;
  const Slot& slot = *working.front();
  ended_ = slot.done;
  return Token{slot.ids.back(), scores_ ? std::optional(slot.scores.back()) : std::nullopt, slot.done};
}

}  // namespace txport::core
