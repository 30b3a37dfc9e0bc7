#include "fused/state.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "errors.hpp"

namespace txport::core::fused {

namespace {

// Data parallelism, where threads step rows of their own, needs no barrier, but each thread reads all weights: that
// pays from so many rows a thread on, and up to so many bytes of weights a row. Else threads share every row.
constexpr std::size_t kLeastRows = 2;
constexpr std::size_t kMostBytes = std::size_t{512} << 10;

class FusedState : public DecoderState {
 public:
  FusedState(std::shared_ptr<Shared> shared, std::size_t rows, std::int64_t source, std::int64_t target,
             const Outputs& outputs)
      : shared_(std::move(shared)),
        shape_(cache_shape(shared_->model, static_cast<std::size_t>(target))),
        source_(source),
        target_(target),
        outputs_(outputs),
        rows_(rows),
        candidates_(rows * outputs.top),
        normalisers_(outputs.top > 0 ? rows : 0) {
    const auto caches = std::make_shared<Block>(rows * shape_.bytes());
    for (std::size_t i = 0; i < rows; ++i) rows_[i].self = {caches, caches->data() + i * shape_.bytes()};
    if (outputs.logits) logits_.emplace(rows * shared_->model.projection.outputs() * sizeof(float), true);
  }

  std::size_t rows() const override { return rows_.size(); }
  std::int64_t source() const override { return source_; }
  std::int64_t target() const override { return target_; }

  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override {
    const auto& encoded = dynamic_cast<const FusedMemory&>(memory);
    const auto bos = static_cast<std::size_t>(shared_->tokens.bos);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const FusedMemory::Sentence& sentence = encoded.sentences.at(memory_rows[i]);
      Row& row = rows_.at(rows[i]);
      row.progress.place(bos, static_cast<std::size_t>(target_limits[i]));
      row.source = sentence.length;
      row.cross = sentence.cross;
    }
  }

  void step(std::int64_t count) override {
    std::vector<Row*> active;
    std::size_t source = 1;
    const auto steps = static_cast<std::size_t>(count);
    const auto target = static_cast<std::size_t>(target_);
    for (Row& row : rows_) {
      row.progress.check(steps, target);
      if (row.progress.finished()) continue;
      active.push_back(&row);
      source = std::max(source, row.source);
    }
    StepOutput output{Ids(steps * rows_.size(), shared_->tokens.pad), {}};
    if (!active.empty()) step_rows(active, steps, std::max(source, target), output.token_ids.data());
    for (const Row& row : rows_) output.finished.push_back(row.progress.finished());
    unread_.push_back(std::move(output));
  }

  StepOutput read() override {
    if (unread_.empty()) throw InputError("there is nothing to read: step first");
    StepOutput output = std::move(unread_.front());
    unread_.pop_front();
    return output;
  }

  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows_.at(rows[i]).progress.override_token(static_cast<std::size_t>(token_ids[i]), finished[i]);
    }
  }

  std::vector<float> logits(std::size_t row) override {
    const float* first = logits_of(row);
    return {first, first + shared_->model.vocabulary};
  }

  double log_probability(std::size_t row, std::int64_t token) override {
    const float* first = logits_of(row);
    return static_cast<double>(first[token]) -
           instruction_set().log_sum_exp(first, shared_->model.projection.outputs());
  }

  Top top(std::size_t k) override {
    if (k > outputs_.top) {
      throw InputError("the state was allocated with the best " + std::to_string(outputs_.top) +
                       " candidates of each row, and " + std::to_string(k) + " are asked for");
    }
    Top result;
    result.normaliser = normalisers_;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      for (std::size_t i = 0; i < k; ++i) {
        const Best& each = candidates_[row * outputs_.top + i];
        result.token_ids.push_back(each.index);
        result.logits.push_back(each.value);
      }
    }
    return result;
  }

  // Rows keep their caches; copies of a row take those of rows that are not named.
  void reorder(const std::vector<std::size_t>& rows) override {
    std::vector<bool> named(rows_.size());
    for (const std::size_t row : rows) named.at(row) = true;
    std::vector<std::shared_ptr<std::byte>> free;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (!named[i]) free.push_back(rows_[i].self);
    }
    std::vector<bool> seen(rows_.size());
    std::vector<Row> next;
    next.reserve(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Row row = rows_[rows[i]];
      if (seen[rows[i]]) {
        copy_cache(row, shape_, free.back().get());
        row.self = free.back();
        free.pop_back();
      }
      seen[rows[i]] = true;
      row.logits = i;
      next.push_back(std::move(row));
    }
    rows_ = std::move(next);
  }

  // Rows keep their caches if these have the right length; copies of a row get new ones.
  std::unique_ptr<DecoderState> moved(const std::vector<std::size_t>& rows, std::int64_t target) override {
    auto next = std::make_unique<FusedState>(shared_, rows.size(), source_, target, outputs_);
    std::vector<bool> seen(rows_.size());  // rows that were named before
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Row row = rows_.at(rows[i]);
      if (target != target_ || seen[rows[i]]) {
        copy_cache(row, next->shape_, next->rows_[i].self.get());
        row.self = next->rows_[i].self;
      }
      seen[rows[i]] = true;
      row.logits = i;
      next->rows_[i] = std::move(row);
    }
    return next;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const CacheShape shape_;
  const std::int64_t source_;
  const std::int64_t target_;
  const Outputs outputs_;
  std::vector<Row> rows_;
  std::vector<Best> candidates_;     // [rows, outputs_.top]
  std::vector<double> normalisers_;  // [rows]
  std::optional<Block> logits_;      // [rows, padded vocabulary]
  std::deque<StepOutput> unread_;

  void step_rows(const std::vector<Row*>& active, std::size_t steps, std::size_t positions, std::int64_t* made) {
    const auto start = std::chrono::steady_clock::now();
    const auto workspace = shared_->workspaces.take();
    Team::Lease lease(shared_->team, shared_->step_tuner.choose(active.size()));
    const std::size_t threads = lease.size();
    WorkspaceSize size;
    size.threads = threads;
    size.data_parallel =
        active.size() >= kLeastRows * threads && active.size() * kMostBytes >= shared_->model.step_bytes;
    size.rows = size.data_parallel ? (active.size() + threads - 1) / threads : active.size();
    size.team_rows = size.rows;
    size.positions = positions;
    size.top = outputs_.top;
    workspace->reserve(shared_->model, size);
    lease.run([&](const Member& member) {
      const Member team = size.data_parallel ? Member{} : member;
      const Member::Range mine = size.data_parallel ? member.share(active.size()) : Member::Range{0, active.size()};
      StepJob job{shared_->model, *workspace};
      job.team = member.rank - team.rank;
      job.rows = active.data() + mine.begin;
      job.count = mine.end - mine.begin;
      job.first = mine.begin;
      job.target = static_cast<std::size_t>(target_);
      job.eos = static_cast<std::size_t>(shared_->tokens.eos);
      job.steps = steps;
      job.made = made;
      job.base = rows_.data();
      job.stride = rows_.size();
      job.logits = logits_ ? reinterpret_cast<float*>(logits_->data()) : nullptr;
      job.top = outputs_.top;
      job.candidates = candidates_.data();
      job.normalisers = normalisers_.data();
      instruction_set().step(job, team);
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    shared_->step_tuner.record(active.size(), threads, time.count() / static_cast<double>(steps * active.size()));
  }

  const float* logits_of(std::size_t row) const {
    if (!logits_) throw InputError("logits were not asked for when the state was allocated");
    return reinterpret_cast<const float*>(logits_->data()) + rows_.at(row).logits * shared_->model.projection.outputs();
  }

  // The used part of a row's cache to one of another length.
  void copy_cache(const Row& row, const CacheShape& shape, std::byte* to) const {
    const std::size_t used = std::min({padded(row.progress.position()), shape_.positions, shape.positions});
    const std::byte* at = row.self.get();
    for (std::size_t head = 0; head < shape.layers * shape.heads; ++head) {
      for (const std::size_t bytes : shape.position_bytes()) {
        std::memcpy(to, at, used * bytes);
        to += shape.positions * bytes;
        at += shape_.positions * bytes;
      }
    }
  }
};

}  // namespace

std::unique_ptr<DecoderState> allocate_rows(std::shared_ptr<Shared> shared, std::size_t rows, std::int64_t source,
                                            std::int64_t target, const Outputs& outputs) {
  return std::make_unique<FusedState>(std::move(shared), rows, source, target, outputs);
}

}  // namespace txport::core::fused
