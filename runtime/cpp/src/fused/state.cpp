#include "fused/state.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "errors.hpp"

namespace txport::core::fused {

namespace {

// Threads that step rows of their own need no barrier, but each reads all weights: that pays for so many rows a thread,
// and so many bytes of weights a row. Else threads share every row.
constexpr std::size_t kRowsApart = 2;
constexpr std::size_t kBytesApart = std::size_t{512} << 10;

}  // namespace

FusedState::FusedState(std::shared_ptr<Shared> shared, std::size_t rows, std::int64_t source, std::int64_t target,
                       bool logits)
    : shared_(std::move(shared)), source_(source), target_(target), rows_(rows) {
  const std::size_t bytes = cache_shape(shared_->model, static_cast<std::size_t>(target)).bytes();
  const auto caches = std::make_shared<Block>(rows * bytes);
  for (std::size_t i = 0; i < rows; ++i) rows_[i].self = {caches, caches->data() + i * bytes};
  if (logits) logits_.emplace(rows * shared_->model.projection.outputs() * sizeof(float), true);
}

void FusedState::place(const std::vector<std::size_t>& rows, const Memory& memory,
                       const std::vector<std::size_t>& memory_rows, const Ids& target_limits) {
  const auto& encoded = dynamic_cast<const FusedMemory&>(memory);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FusedMemory::Sentence& sentence = encoded.sentences.at(memory_rows[i]);
    Row& row = rows_.at(rows[i]);
    row.token = static_cast<std::size_t>(shared_->tokens.bos);
    row.position = 0;
    row.limit = static_cast<std::size_t>(target_limits[i]);
    row.finished = false;
    row.source = sentence.length;
    row.cross = sentence.cross;
  }
}

void FusedState::step(std::int64_t count) {
  std::vector<Row*> live;
  std::size_t source = 1;
  const auto steps = static_cast<std::size_t>(count);
  const auto target = static_cast<std::size_t>(target_);
  for (Row& row : rows_) {
    if (row.finished) continue;
    if (std::min(row.position + steps, row.limit) > target) {
      throw InputError("a row would pass the end of its cache of " + std::to_string(target_) +
                       " tokens: move the rows to longer ones first");
    }
    live.push_back(&row);
    source = std::max(source, row.source);
  }
  StepOutput output{Ids(steps * rows_.size(), shared_->tokens.pad), {}};
  if (!live.empty()) {
    const auto start = std::chrono::steady_clock::now();
    const auto workspace = shared_->workspaces.take();
    Team::Lease lease(shared_->team, shared_->step_tuner.choose(live.size()));
    const std::size_t threads = lease.size();
    const bool apart = live.size() >= kRowsApart * threads && live.size() * kBytesApart >= shared_->model.step_bytes;
    const std::size_t most = apart ? (live.size() + threads - 1) / threads : live.size();
    workspace->reserve(shared_->model, threads, most, std::max(source, target));
    lease.run([&](const Member& member) {
      const Member::Range mine = apart ? member.share(live.size()) : Member::Range{0, live.size()};
      fused::step(
          {shared_->model, live.data() + mine.begin, mine.end - mine.begin, mine.begin, target,
           static_cast<std::size_t>(shared_->tokens.eos), steps, output.token_ids.data(), rows_.data(), rows_.size(),
           logits_ ? reinterpret_cast<float*>(logits_->data()) : nullptr, *workspace, apart ? member.rank : 0},
          apart ? Member{} : member);
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    shared_->step_tuner.took(live.size(), threads, time.count() / static_cast<double>(steps * live.size()));
  }
  for (const Row& row : rows_) output.finished.push_back(row.finished);
  unread_.push_back(std::move(output));
}

StepOutput FusedState::read() {
  if (unread_.empty()) throw InputError("there is nothing to read: step first");
  StepOutput output = std::move(unread_.front());
  unread_.pop_front();
  return output;
}

void FusedState::override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                                 const std::vector<bool>& finished) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows_.at(rows[i]);
    if (row.finished && !finished[i]) ++row.position;
    row.token = static_cast<std::size_t>(token_ids[i]);
    row.finished = finished[i];
  }
}

const float* FusedState::logits_of(std::size_t row) const {
  if (!logits_) throw InputError("logits were not asked for when the state was allocated");
  return reinterpret_cast<const float*>(logits_->data()) + rows_.at(row).logits * shared_->model.projection.outputs();
}

std::vector<float> FusedState::logits(std::size_t row) {
  const float* first = logits_of(row);
  return {first, first + shared_->model.vocabulary};
}

double FusedState::log_probability(std::size_t row, std::int64_t token) {
  const float* first = logits_of(row);
  return static_cast<double>(first[token]) - log_sum_exp(first, shared_->model.projection.outputs());
}

// Rows keep their caches if these have the right length; copies of a row get new ones.
std::unique_ptr<DecoderState> FusedState::moved(const std::vector<std::size_t>& rows, std::int64_t target) {
  auto next = std::make_unique<FusedState>(shared_, rows.size(), source_, target, logits_.has_value());
  std::vector<bool> taken(rows_.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row row = rows_.at(rows[i]);
    if (target != target_ || taken[rows[i]]) {
      copy_cache(row, *next, next->rows_[i].self.get());
      row.self = next->rows_[i].self;
    }
    taken[rows[i]] = true;
    row.logits = i;
    next->rows_[i] = std::move(row);
  }
  return next;
}

// The used part of a row's cache to one of another state, which may have another length.
void FusedState::copy_cache(const Row& row, const FusedState& next, std::byte* to) const {
  const CacheShape old_shape = cache_shape(shared_->model, static_cast<std::size_t>(target_));
  const CacheShape new_shape = cache_shape(shared_->model, static_cast<std::size_t>(next.target_));
  const std::size_t used = std::min({padded(row.position + 1), old_shape.positions, new_shape.positions});
  const std::byte* at = row.self.get();
  for (std::size_t head = 0; head < new_shape.layers * new_shape.heads; ++head) {
    for (const std::size_t bytes : new_shape.position_bytes()) {
      std::memcpy(to, at, used * bytes);
      to += new_shape.positions * bytes;
      at += old_shape.positions * bytes;
    }
  }
}

}  // namespace txport::core::fused
