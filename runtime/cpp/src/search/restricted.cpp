#include "search/restricted.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace txport::core {

namespace {

struct Row {
  std::shared_ptr<const Ids> words;  // none: all
  std::int64_t limit = 0;
  std::int64_t made = 0;
  bool finished = true;
};

// A state whose logits outside a row's words are -infinity.
class RestrictedState : public DecoderState {
 public:
  RestrictedState(std::unique_ptr<DecoderState> state, std::vector<Row> rows, const SpecialTokens& tokens)
      : state_(std::move(state)), rows_(std::move(rows)), tokens_(tokens) {}

  std::size_t rows() const override { return state_->rows(); }
  std::int64_t source() const override { return state_->source(); }
  std::int64_t target() const override { return state_->target(); }

  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override {
    state_->place(rows, memory, memory_rows, target_limits);
    for (std::size_t i = 0; i < rows.size(); ++i) rows_.at(rows[i]) = {nullptr, target_limits[i], 0, false};
  }

  void restrict_rows(const std::vector<std::size_t>& rows,
                     const std::vector<std::shared_ptr<const Ids>>& words) override {
    for (std::size_t i = 0; i < rows.size(); ++i) rows_.at(rows[i]).words = words[i];
  }

  void step(std::int64_t count) override {
    unread_ = {};
    for (std::int64_t i = 0; i < count; ++i) {
      const Ids made = step_once();
      unread_.token_ids.insert(unread_.token_ids.end(), made.begin(), made.end());
    }
    for (const Row& row : rows_) unread_.finished.push_back(row.finished);
  }

  StepOutput read() override { return std::exchange(unread_, {}); }

  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override {
    state_->override_tokens(rows, token_ids, finished);
    for (std::size_t i = 0; i < rows.size(); ++i) rows_.at(rows[i]).finished = finished[i];
  }

  std::vector<float> logits(std::size_t row) override {
    std::vector<float> all = state_->logits(row);
    const Row& of = rows_.at(row);
    if (of.words == nullptr) return all;
    std::vector<float> masked(all.size(), -std::numeric_limits<float>::infinity());
    for (const std::int64_t id : *of.words) masked[static_cast<std::size_t>(id)] = all[static_cast<std::size_t>(id)];
    return masked;
  }

  void reorder(const std::vector<std::size_t>& rows) override {
    state_->reorder(rows);
    rows_ = taken(rows);
  }

  std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) override {
    return std::make_unique<RestrictedState>(state_->resized(rows, target), taken(rows), tokens_);
  }

 private:
  std::unique_ptr<DecoderState> state_;
  std::vector<Row> rows_;
  const SpecialTokens tokens_;
  StepOutput unread_;

  std::vector<Row> taken(const std::vector<std::size_t>& rows) const {
    std::vector<Row> result;
    for (const std::size_t row : rows) result.push_back(rows_.at(row));
    return result;
  }

  Ids step_once() {
    if (std::all_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.finished; })) {
      return Ids(rows_.size(), tokens_.pad);
    }
    state_->step(1);
    Ids token_ids = state_->read().token_ids;
    std::vector<std::size_t> changed;
    Ids changed_ids;
    std::vector<bool> flags;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      Row& row = rows_[i];
      if (row.finished) continue;
      const std::int64_t token = row.words != nullptr ? best_of(i) : token_ids[i];
      ++row.made;  // even after an end: a row that must not end yet continues with another token instead
      row.finished = token == tokens_.eos || row.made >= row.limit;
      if (token == token_ids[i]) continue;
      token_ids[i] = token;
      changed.push_back(i);
      changed_ids.push_back(token);
      flags.push_back(row.finished);
    }
    if (!changed.empty()) state_->override_tokens(changed, changed_ids, flags);
    return token_ids;
  }

  // The word with the largest logit; of equals the first.
  std::int64_t best_of(std::size_t row) {
    const std::vector<float> all = state_->logits(row);
    const Ids& words = *rows_[row].words;
    return *std::max_element(words.begin(), words.end(), [&](std::int64_t one, std::int64_t other) {
      return all[static_cast<std::size_t>(one)] < all[static_cast<std::size_t>(other)];
    });
  }
};

class RestrictedEngine : public Engine {
 public:
  explicit RestrictedEngine(const Engine& engine) : engine_(engine) {}

  const std::string& name() const override { return engine_.name(); }
  const Limits& limits() const override { return engine_.limits(); }
  const SpecialTokens& tokens() const override { return engine_.tokens(); }
  std::int64_t vocabulary() const override { return engine_.vocabulary(); }
  std::int64_t poll() const override { return 1; }
  bool restricts() const override { return true; }
  bool ragged() const override { return engine_.ragged(); }
  std::int64_t first_target(std::int64_t source) const override { return engine_.first_target(source); }
  void synchronize() const override { engine_.synchronize(); }

  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    return engine_.encode(input_ids, source_lengths);
  }

  std::shared_ptr<const Memory> encode_features(const std::vector<float>& features,
                                                const Ids& source_lengths) const override {
    return engine_.encode_features(features, source_lengths);
  }

  std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                         const Outputs& outputs) const override {
    return std::make_unique<RestrictedState>(engine_.allocate(rows, source, target, {true, 0, outputs.beams}),
                                             std::vector<Row>(rows), engine_.tokens());
  }

 private:
  const Engine& engine_;
};

}  // namespace

EngineOf::EngineOf(const Engine& engine, const Search& search)
    : engine_(engine),
      over_(search.shortlist && !engine.restricts() ? std::make_unique<RestrictedEngine>(engine) : nullptr) {}

}  // namespace txport::core
