#include "fused/workspace.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "fused/model.hpp"
#include "system/system.hpp"

namespace txport::core::fused {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMaxIdle = 16;  // workspaces that are kept

void lay_out(OwnBuffers& own, const Model& model, const WorkspaceSize& size, Cursor& cursor) {
  const std::size_t rows = size.rows;
  cursor.take(own.x, rows * model.width);
  own.normed = own.x;
  if (model.norm_first) cursor.take(own.normed, rows * model.width);
  const std::size_t features = padded(model.features);
  cursor.take(own.features, rows * features);
  const std::size_t heads = std::max(model.encoder_heads.count, model.heads.count);
  const std::size_t all = std::max(model.encoder_all, model.all);
  cursor.take(own.heads, rows * 3 * all);
  cursor.take(own.delta, rows * model.width);
  const std::size_t most = std::max({padded(size.positions), model.encoder_heads.width(), model.heads.width()});
  cursor.take(own.scores, kQueries * heads * most);
  cursor.take(own.bytes, kQueries * heads * most);
  cursor.take(own.attention_scale, kQueries * heads);
  cursor.take(own.zeros, most);
  cursor.take(own.ones, most);
  cursor.take(own.quantised, rows * std::max({model.width, all, model.ffn, features}));
  cursor.take(own.scale, rows);
  cursor.take(own.logits, rows * kLogits);
  cursor.take(own.norm, rows);
  cursor.take(own.bounds, rows * model.bounds.copy.panels);
  cursor.take(own.tokens, rows);
  cursor.take(own.active, rows);
  if (!cursor.counts()) {
    std::fill_n(own.zeros, most, 0.0F);
    std::fill_n(own.ones, most, 1.0F);
  }
}

void lay_out(TeamBuffers& team, const Model& model, const WorkspaceSize& size, Cursor& cursor) {
  constexpr std::size_t kLine = Cursor::kAlignment / sizeof(Best);
  cursor.take(team.mixed, size.team_rows * std::max(2 * model.all, model.encoder_all));
  cursor.take(team.delta, size.team_rows * model.width);
  cursor.take(team.hidden, size.team_rows * model.ffn);
  cursor.take(team.gate, model.gated ? size.team_rows * model.ffn : 0);
  team.best_stride = (size.team_rows + kLine - 1) / kLine * kLine;
  const std::size_t threads = size.data_parallel ? 1 : size.threads;
  cursor.take(team.best, threads * team.best_stride);
  team.chunks = (model.projection.outputs() + kLogits - 1) / kLogits;
  cursor.take(team.sums, size.top > 0 ? size.team_rows * team.chunks : 0);
  team.top_stride = (size.top + kLine - 1) / kLine * kLine;
  cursor.take(team.candidates, threads * size.team_rows * team.top_stride);
  team.listed_stride = size.top > 0 ? padded(size.words) : 0;
  cursor.take(team.listed, size.team_rows * team.listed_stride);
  cursor.take(team.caches, size.cache_bytes);
}

}  // namespace

Block::Block(std::size_t bytes, bool zero) : bytes_(bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : Cursor::kAlignment;
  const std::size_t size = std::max<std::size_t>((bytes + alignment - 1) / alignment, 1) * alignment;
  data_.reset(static_cast<std::byte*>(allocate(alignment, size)));
  if (data_ == nullptr) throw std::bad_alloc();
  if (zero) std::memset(data_.get(), 0, bytes);
}

void Workspace::reserve(const Model& model, const WorkspaceSize& size) {
  const std::size_t teams = size.data_parallel ? size.threads : 1;
  if (blocks_.size() < size.threads) blocks_.resize(size.threads);
  own_.resize(size.threads);
  teams_.resize(teams);
  for (std::size_t i = 0; i < size.threads; ++i) {
    const auto lay_out_all = [&](Cursor cursor) {
      lay_out(own_[i], model, size, cursor);
      if (i < teams) lay_out(teams_[i], model, size, cursor);
      return cursor.bytes();
    };
    const std::size_t bytes = lay_out_all(Cursor(nullptr));
    if (blocks_[i].bytes() < bytes) blocks_[i] = Block(bytes);
    lay_out_all(Cursor(blocks_[i].data()));
  }
}

std::shared_ptr<Workspace> Workspaces::take() {
  auto workspace = std::make_unique<Workspace>();
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock() && !idle_.empty()) {
    workspace = std::move(idle_.back());
    idle_.pop_back();
  }
  return {workspace.release(), [this](Workspace* used) {
            std::unique_ptr<Workspace> back(used);
            const std::unique_lock lock(mutex_, std::try_to_lock);
            if (lock.owns_lock() && idle_.size() < kMaxIdle) idle_.push_back(std::move(back));
          }};
}

}  // namespace txport::core::fused
