#include "fused/workspace.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "fused/model.hpp"

namespace txport::core::fused {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMostIdle = 16;  // workspaces that are kept

std::size_t lay_out(Buffers& buffers, const Model& model, std::size_t rows, std::size_t positions,
                    std::size_t cache_bytes, std::byte* base) {
  Cursor cursor(base);
  cursor.take(buffers.x, rows * model.width);
  buffers.normed = buffers.x;
  if (model.norm_first) cursor.take(buffers.normed, rows * model.width);
  cursor.take(buffers.heads, rows * 3 * model.all);
  cursor.take(buffers.mixed, rows * model.all);
  cursor.take(buffers.delta, rows * model.width);
  cursor.take(buffers.hidden, rows * model.ffn);
  const std::size_t most = std::max(padded(positions), model.heads.width());
  cursor.take(buffers.scores, kQueries * model.heads.count * most);
  cursor.take(buffers.bytes, kQueries * model.heads.count * most);
  cursor.take(buffers.unit, kQueries * model.heads.count);
  cursor.take(buffers.zeros, most);
  cursor.take(buffers.ones, most);
  cursor.take(buffers.quantised, rows * std::max({model.width, model.all, model.ffn}));
  cursor.take(buffers.scale, rows);
  cursor.take(buffers.logits, rows * kLogits);
  cursor.take(buffers.norm, rows);
  cursor.take(buffers.bounds, rows * model.bounds.copy.panels);
  cursor.take(buffers.choice, rows);
  cursor.take(buffers.places, rows);
  cursor.take(buffers.active, rows);
  cursor.take(buffers.caches, cache_bytes);
  if (base != nullptr) {
    std::fill_n(buffers.zeros, most, 0.0F);
    std::fill_n(buffers.ones, most, 1.0F);
  }
  return cursor.bytes();
}

}  // namespace

Block::Block(std::size_t bytes, bool zero) : bytes_(bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : Cursor::kAlignment;
  const std::size_t size = std::max<std::size_t>((bytes + alignment - 1) / alignment, 1) * alignment;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, size)));
  if (data_ == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(data_.get(), size, MADV_HUGEPAGE);
  if (zero) std::memset(data_.get(), 0, bytes);
}

void Workspace::reserve(const Model& model, std::size_t threads, std::size_t rows, std::size_t positions,
                        std::size_t cache_bytes) {
  if (blocks_.size() < threads) blocks_.resize(threads);
  if (buffers_.size() < threads) buffers_.resize(threads);
  for (std::size_t rank = 0; rank < threads; ++rank) {
    const std::size_t bytes = lay_out(buffers_[rank], model, rows, positions, cache_bytes, nullptr);
    if (blocks_[rank].bytes() < bytes) blocks_[rank] = Block(bytes);
    lay_out(buffers_[rank], model, rows, positions, cache_bytes, blocks_[rank].data());
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
            if (lock.owns_lock() && idle_.size() < kMostIdle) idle_.push_back(std::move(back));
          }};
}

}  // namespace txport::core::fused
