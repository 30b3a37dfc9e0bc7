#include "fused/state.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "errors.hpp"

namespace txport::core::fused {

namespace {

// Fewer rows for each thread do not pay for reading all weights in each; then threads share every row.
constexpr std::size_t kRowsApart = 2;

}  // namespace

Shared::Shared(const std::filesystem::path& directory, const Manifest& manifest, std::size_t threads,
               std::size_t team_size)
    : team(team_size),
      model(directory, manifest, team),
      tokens(manifest.tokens),
      limits(manifest.limits()),
      step_pace(threads),
      encode_pace(threads) {}

FusedState::FusedState(std::shared_ptr<Shared> shared, std::size_t rows, std::int64_t source, std::int64_t target,
                       bool logits)
    : shared_(std::move(shared)), source_(source), target_(target), rows_(rows), cross_(rows) {
  caches_ = std::make_shared<Block>(rows * cache_bytes());
  for (std::size_t i = 0; i < rows; ++i) rows_[i].self = caches_->data() + i * cache_bytes();
  if (logits) logits_.emplace(rows * shared_->model.projection.outputs() * sizeof(float), true);
}

std::size_t FusedState::cache_bytes() const {
  return cache_shape(shared_->model, static_cast<std::size_t>(target_)).bytes();
}

void FusedState::place(const std::vector<std::size_t>& rows, const Memory& memory,
                       const std::vector<std::size_t>& memory_rows, const Ids& target_limits) {
  const auto& encoded = dynamic_cast<const FusedMemory&>(memory);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FusedMemory::Sentence& sentence = encoded.sentence(memory_rows[i]);
    Row& row = rows_.at(rows[i]);
    row.token = static_cast<std::size_t>(shared_->tokens.bos);
    row.position = 0;
    row.limit = static_cast<std::size_t>(target_limits[i]);
    row.finished = false;
    row.source = sentence.length;
    row.cross = sentence.cross.get();
    cross_[rows[i]] = sentence.cross;
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
    const Borrowed workspace(shared_->workspaces);
    Team::Lease lease = shared_->team.lease(shared_->step_pace.choose(live.size()));
    const std::size_t threads = lease.size();
    const bool apart = live.size() >= kRowsApart * threads;
    (*workspace)
        .reserve(shared_->model, threads, apart ? (live.size() + threads - 1) / threads : live.size(),
                 std::max(source, target));
    lease.run(threads, [&](const Member& member) {
      const Member::Range mine = apart ? member.share(live.size()) : Member::Range{0, live.size()};
      const StepJob job{shared_->model,
                        live.data() + mine.begin,
                        mine.end - mine.begin,
                        mine.begin,
                        target,
                        static_cast<std::size_t>(shared_->tokens.eos),
                        steps,
                        output.token_ids.data(),
                        rows_.data(),
                        rows_.size(),
                        logits_ ? reinterpret_cast<float*>(logits_->data()) : nullptr,
                        *workspace,
                        apart ? member.rank : 0};
      fused::step(job, apart ? Member{} : member);
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    shared_->step_pace.took(live.size(), threads, time.count() / static_cast<double>(steps * live.size()));
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

// Rows that are taken once keep their caches if these have the right length; copies get new ones.
std::unique_ptr<DecoderState> FusedState::moved(const std::vector<std::size_t>& rows, std::int64_t target) {
  const bool has_logits = logits_.has_value();
  std::vector<bool> taken(rows_.size());
  bool keeps = target == target_;
  for (const std::size_t row : rows) {
    keeps = keeps && !taken.at(row);
    taken[row] = true;
  }
  auto next = std::make_unique<FusedState>(shared_, keeps ? 0 : rows.size(), source_, target, false);
  if (keeps) {
    next->rows_.resize(rows.size());
    next->cross_.resize(rows.size());
    next->caches_ = caches_;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& from = rows_[rows[i]];
    std::byte* to = keeps ? from.self : next->rows_[i].self;
    if (!keeps) next->copy_cache(*this, from, to);
    next->rows_[i] = from;
    next->rows_[i].self = to;
    next->cross_[i] = cross_[rows[i]];
  }
  if (has_logits) next->logits_.emplace(rows.size() * shared_->model.projection.outputs() * sizeof(float), true);
  for (std::size_t i = 0; i < rows.size(); ++i) next->rows_[i].logits = i;
  return next;
}

// The used part of another state's row, whose caches may have another length.
void FusedState::copy_cache(const FusedState& from, const Row& row, std::byte* to) const {
  const Model& model = shared_->model;
  const CacheShape old_shape = cache_shape(model, static_cast<std::size_t>(from.target_));
  const CacheShape new_shape = cache_shape(model, static_cast<std::size_t>(target_));
  const std::size_t used = std::min({padded(row.position + 1), old_shape.positions, new_shape.positions});
  const std::byte* at = row.self;
  for (std::size_t head = 0; head < new_shape.layers * new_shape.heads; ++head) {
    for (const std::size_t bytes : new_shape.position_bytes()) {
      std::memcpy(to, at, used * bytes);
      to += new_shape.positions * bytes;
      at += old_shape.positions * bytes;
    }
  }
}

}  // namespace txport::core::fused
