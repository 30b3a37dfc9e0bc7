#include "fused/state.hpp"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "errors.hpp"

namespace txport::core::fused {

namespace {

// With data parallelism, threads divide rows between them. This needs no barrier, but each thread reads all weights. It
// pays if a thread has at least kMinRows rows and there are at most kMaxBytes bytes of weights for each row. Otherwise
// all threads step every row together.
constexpr std::size_t kMinRows = 2;
constexpr std::size_t kMaxBytes = std::size_t{512} << 10;
// Minimum size of a projection, in bytes, for which other threads are woken to project a single row.
constexpr std::size_t kMinBytes = std::size_t{1} << 20;

std::size_t pages_of(std::size_t positions) { return padded(positions) / kPanel; }

// Memory of pages (as in Kwon et al., "Efficient Memory Management for Large Language Model Serving with
// PagedAttention", 2023). A page becomes free when no row has it.
class Pages : public std::enable_shared_from_this<Pages> {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {}

  // Increase the total number of pages to `count`. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    if (count <= count_) return;
    free_.reserve(count);
    const Block& block = blocks_.emplace_back((count - count_) * bytes_);
    for (; count_ < count; ++count_) free_.push_back(block.data() + (count - count_ - 1) * bytes_);
  }
  // Return a free page. There must be one: callers reserve pages first.
  Page take() {
    if (free_.empty()) throw std::logic_error("no page is free");
    std::byte* page = free_.back();
    free_.pop_back();
    return {page, [all = shared_from_this()](std::byte* back) { all->free_.push_back(back); }};
  }

 private:
  const std::size_t bytes_;
  std::size_t count_ = 0;
  std::deque<Block> blocks_;
  std::vector<std::byte*> free_;  // free pages; `take` returns the last
};

// A shared page, and the private copy of it for one row.
struct PageCopy {
  const std::byte* from;
  std::byte* to;
};

class FusedState : public DecoderState {
 public:
  // `pages`: pages of the state whose rows this state continues, or null.
  FusedState(std::shared_ptr<Shared> shared, std::size_t rows, std::int64_t source, std::int64_t target,
             const Outputs& outputs, std::shared_ptr<Pages> pages = nullptr)
      : shared_(std::move(shared)),
        shape_(cache_shape(shared_->model, kPanel)),
        pages_(pages != nullptr ? std::move(pages) : std::make_shared<Pages>(shape_.bytes())),
        source_(source),
        target_(target),
        outputs_(outputs),
        rows_(rows),
        candidates_(rows * outputs.top),
        normalisers_(outputs.top > 0 ? rows : 0),
        hidden_(rows * shared_->model.width * sizeof(float), true) {
    pages_->reserve(rows * pages_of(static_cast<std::size_t>(target)));
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
      row.pages.clear();
      row.words.reset();
      row.columns = {};
    }
  }

  void restrict_rows(const std::vector<std::size_t>& rows,
                     const std::vector<std::shared_ptr<const Ids>>& words) override {
    for (const std::size_t row : rows) {
      if (rows_.at(row).progress.position() == 0) continue;
      throw InputError("row " + std::to_string(row) + " was stepped since it was placed: restrict rows before a step");
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Row& row = rows_[rows[i]];
      row.words = std::make_shared<const std::vector<std::int32_t>>(words[i]->begin(), words[i]->end());
      row.columns = {};  // they may be left from a step that failed, with other words
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
    Block computed;
    const float* first = logits_of(row, computed);
    if (rows_[row].words == nullptr) return {first, first + shared_->model.vocabulary};
    const Block listed = listed_logits(row, first);
    std::vector<float> all(shared_->model.vocabulary, -std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < rows_[row].words->size(); ++i) {
      all[static_cast<std::size_t>((*rows_[row].words)[i])] = floats(listed)[i];
    }
    return all;
  }

  std::vector<float> some_logits(std::size_t row, const Ids& token_ids) override {
    if (selection_ != nullptr) return DecoderState::some_logits(row, token_ids);
    std::vector<float> some;
    some.reserve(token_ids.size());
    if (logits_) {
      const float* stored = floats(*logits_) + rows_.at(row).logits * outputs();
      for (const std::int64_t id : token_ids) some.push_back(stored[id]);
      return some;
    }
    const Block panel(kPanel * sizeof(float));
    const auto workspace = shared_->workspaces.take();
    workspace->reserve(shared_->model, size_of_row());
    std::size_t last = projection().panels;  // the panel that was computed
    for (const std::int64_t id : token_ids) {
      const auto column = static_cast<std::size_t>(id);
      if (const std::size_t p = column / kPanel; p != last) {
        instruction_set().project(projection(), hidden_of(row), workspace->own(0), {p, p + 1}, floats(panel));
        last = p;
      }
      some.push_back(floats(panel)[column % kPanel]);
    }
    return some;
  }

  double log_probability(std::size_t row, std::int64_t token) override {
    Block computed;
    const float* first = logits_of(row, computed);
    const Words& words = rows_[row].words;
    if (words == nullptr) return static_cast<double>(first[token]) - instruction_set().log_sum_exp(first, outputs());
    const auto at = std::lower_bound(words->begin(), words->end(), token);
    if (at == words->end() || *at != token) return -std::numeric_limits<double>::infinity();
    const Block listed = listed_logits(row, first);
    return static_cast<double>(floats(listed)[at - words->begin()]) -
           instruction_set().log_sum_exp(floats(listed), padded(words->size()));
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

  // Rows share their present pages; pages that they continue to write are copied by the next step.
  void reorder(const std::vector<std::size_t>& rows) override { rows_ = gather(rows, target_); }

  std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) override {
    auto next = std::make_unique<FusedState>(shared_, rows.size(), source_, target, outputs_, pages_);
    next->rows_ = gather(rows, target);
    next->selection_ = selection_;
    return next;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const CacheShape shape_;  // shape of a page
  // Pages for `target_` positions of all rows, which is the maximum.
  const std::shared_ptr<Pages> pages_;
  const std::int64_t source_;
  const std::int64_t target_;
  const Outputs outputs_;
  std::vector<Row> rows_;
  std::vector<Best> candidates_;     // [rows, outputs_.top]
  std::vector<double> normalisers_;  // [rows]
  Block hidden_;                     // [rows, width] inputs of the projection in the last step
  std::optional<Block> logits_;      // [rows, padded vocabulary] logits of the last step, if they are stored
  std::deque<StepOutput> unread_;
  std::shared_ptr<const Selection> selection_;  // projection of the last step; null for that of the model

  // Return copies of these rows. The last copy of a row is a move, so a row that occurs once keeps its pages private.
  // Pages beyond the target are dropped.
  std::vector<Row> gather(const std::vector<std::size_t>& rows, std::int64_t target) {
    std::vector<std::size_t> left(rows_.size());
    for (const std::size_t row : rows) ++left.at(row);
    std::vector<Row> next;
    next.reserve(rows.size());
    for (const std::size_t row : rows) {
      next.push_back(--left[row] == 0 ? std::move(rows_[row]) : rows_[row]);
      next.back().logits = next.size() - 1;
      std::vector<Page>& pages = next.back().pages;
      pages.resize(std::min(pages.size(), pages_of(static_cast<std::size_t>(target))));
    }
    return next;
  }

  // Give each row private pages for the positions that it will write, and return the pages that must be copied.
  std::vector<PageCopy> own_pages(const std::vector<Row*>& active, std::size_t steps) {
    std::vector<PageCopy> copies;
    for (Row* row : active) {
      row->pages.resize(pages_of(row->progress.after(steps)));
      for (std::size_t i = row->progress.position() / kPanel; i < row->pages.size(); ++i) {
        Page& page = row->pages[i];
        if (page.use_count() == 1) continue;
        Page own = pages_->take();
        if (page != nullptr) copies.push_back({page.get(), own.get()});
        page = std::move(own);
      }
    }
    return copies;
  }

  // Copy pages. Each thread copies the heads that it has in a step.
  void copy_pages(const std::vector<PageCopy>& copies, const Member& member) const {
    const Member::Range heads = member.share(shape_.heads);
    const std::size_t bytes = (heads.end - heads.begin) * shape_.head_bytes();
    for (const auto& [from, to] : copies) {
      for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
        const std::size_t at = (layer * shape_.heads + heads.begin) * shape_.head_bytes();
        std::memcpy(to + at, from + at, bytes);
      }
    }
    if (!copies.empty()) member.wait();  // others may step the row, or another one that has the page
  }

  void step_rows(const std::vector<Row*>& active, std::size_t steps, std::size_t positions, std::int64_t* made) {
    const auto start = std::chrono::steady_clock::now();
    const bool gathers = select(active);
    const auto workspace = shared_->workspaces.take();
    Team::Lease lease(shared_->team, shared_->step_tuner.choose(active.size()));
    const std::size_t threads = lease.size();
    WorkspaceSize size;
    size.threads = threads;
    size.data_parallel = active.size() >= kMinRows * threads && active.size() * kMaxBytes >= step_bytes();
    size.rows = size.data_parallel ? (active.size() + threads - 1) / threads : active.size();
    size.team_rows = size.rows;
    size.positions = positions;
    size.top = outputs_.top;
    for (const Row* row : active) size.words = std::max(size.words, row->columns.size());
    workspace->reserve(shared_->model, size);
    const std::vector<PageCopy> copies = own_pages(active, steps);
    const UpperBounds* bounds = selection_ != nullptr ? &selection_->bounds() : &shared_->model.bounds;
    if (bounds->copy.panels == 0) bounds = nullptr;
    // The products of more than one row take longer than reading the weights.
    const bool by_copy = bounds != nullptr && projection().int8();
    if (by_copy && (active.size() > 1 || !shared_->bounds_tuner.choose())) bounds = nullptr;
    std::atomic<std::size_t> read{0};
    lease.run([&](const Member& member) {
      copy_pages(copies, member);
      if (gathers) {
        selection_->gather(member);
        member.wait();
      }
      const Member team = size.data_parallel ? Member{} : member;
      const Member::Range mine = size.data_parallel ? member.share(active.size()) : Member::Range{0, active.size()};
      StepJob job{shared_->model, *workspace};
      job.team = member.rank - team.rank;
      job.rows = active.data() + mine.begin;
      job.count = mine.end - mine.begin;
      job.first = mine.begin;
      job.eos = static_cast<std::size_t>(shared_->tokens.eos);
      job.steps = steps;
      job.made = made;
      job.base = rows_.data();
      job.stride = rows_.size();
      job.projection = &projection();
      job.bounds = bounds;
      job.read = by_copy ? &read : nullptr;
      if (selection_ != nullptr && !selection_->ids().empty()) {
        job.ids = selection_->ids().data();
        job.id_count = selection_->ids().size();
      }
      job.hidden = floats(hidden_);
      job.logits = logits_ ? reinterpret_cast<float*>(logits_->data()) : nullptr;
      job.top = outputs_.top;
      job.candidates = candidates_.data();
      job.normalisers = normalisers_.data();
      instruction_set().step(job, team);
    });
    for (Row* row : active) row->pages.resize(pages_of(row->progress.position()));
    if (by_copy && bounds != nullptr) shared_->bounds_tuner.record(read / steps, projection().panels);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    shared_->step_tuner.record(active.size(), threads, time.count() / static_cast<double>(steps * active.size()));
  }

  static float* floats(const Block& block) { return reinterpret_cast<float*>(block.data()); }
  const float* hidden_of(std::size_t row) const {
    return floats(hidden_) + rows_.at(row).logits * shared_->model.width;
  }

  // Return the logits of a row in the last step. If they are not stored, compute the same values into `computed`.
  const float* logits_of(std::size_t row, Block& computed) const {
    if (logits_) return floats(*logits_) + rows_.at(row).logits * outputs();
    computed = Block(shared_->model.projection.outputs() * sizeof(float), true);  // a row may have changed its words
    const Matrix& matrix = projection();
    const auto workspace = shared_->workspaces.take();
    Team::Lease lease(shared_->team, matrix.panels * matrix.stride < kMinBytes ? 1 : kMaxThreads);
    workspace->reserve(shared_->model, size_of_row(lease.size()));
    lease.run([&](const Member& member) {
      const Member::Range mine = member.share(matrix.panels);
      float* logits = floats(computed) + mine.begin * kPanel;
      instruction_set().project(matrix, hidden_of(row), workspace->own(member.rank), mine, logits);
    });
    return floats(computed);
  }

  // Return the workspace for projecting one row.
  static WorkspaceSize size_of_row(std::size_t threads = 1) {
    WorkspaceSize size;
    size.threads = threads;
    size.data_parallel = true;
    size.rows = 1;
    return size;
  }

  // Return the logits of the shortlist of a row, in its order, padded with -infinity. `first`: the first logit of the
  // row.
  Block listed_logits(std::size_t row, const float* first) const {
    const std::size_t count = rows_[row].words->size();
    const Columns& columns = rows_[row].columns;
    Block listed(padded(count) * sizeof(float));
    std::fill_n(floats(listed), padded(count), -std::numeric_limits<float>::infinity());
    if (columns.all()) {
      std::copy_n(first, count, floats(listed));
    } else {
      assert(columns.size() == count);
      const auto logit = [first](std::int32_t column) { return first[column]; };
      std::transform(columns.begin, columns.begin + std::min(columns.size(), count), floats(listed), logit);
    }
    return listed;
  }

  // Return the projection of the last step.
  const Matrix& projection() const {
    return selection_ != nullptr ? selection_->projection() : shared_->model.projection;
  }
  std::size_t outputs() const { return projection().outputs(); }
  // Return the number of bytes of weights that a step reads.
  std::size_t step_bytes() const {
    const Matrix& complete = shared_->model.projection;
    const std::size_t unread = complete.int8() ? (complete.panels - projection().panels) * complete.stride : 0;
    return shared_->model.step_bytes - unread;
  }

  // Ensure that the projection has the words of these rows, and set their columns. Return true if there is a new
  // selection, whose weights must be gathered.
  bool select(const std::vector<Row*>& active) {
    const bool any = std::any_of(active.begin(), active.end(), [](const Row* row) { return row->words != nullptr; });
    const auto is_there = [this](const Row* row) { return selection_->has(row->words); };
    const bool is_new = any && (selection_ == nullptr || !std::all_of(active.begin(), active.end(), is_there));
    if (is_new || !any) {
      for (Row& row : rows_) row.columns = {};
      selection_ = is_new ? std::make_shared<const Selection>(shared_->model, lists_of(active)) : nullptr;
    }
    for (Row* row : active) row->columns = any ? selection_->columns(row->words) : Columns{};
    return is_new;
  }

  static std::vector<Words> lists_of(const std::vector<Row*>& rows) {
    std::vector<Words> lists;
    for (const Row* row : rows) lists.push_back(row->words);
    return lists;
  }
};

}  // namespace

std::unique_ptr<DecoderState> allocate_rows(std::shared_ptr<Shared> shared, std::size_t rows, std::int64_t source,
                                            std::int64_t target, const Outputs& outputs) {
  return std::make_unique<FusedState>(std::move(shared), rows, source, target, outputs);
}

}  // namespace txport::core::fused
