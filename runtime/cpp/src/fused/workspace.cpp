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
constexpr std::size_t kAlignment = 128;  // of an array: neighbours of two threads share no cache line
constexpr std::size_t kMostIdle = 16;    // workspaces that are kept

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// Counts what arrays need, or hands them out.
class Cursor {
 public:
  explicit Cursor(std::byte* base) : base_(base) {}
  template <typename T>
  void take(T*& array, std::size_t count) {
    if (base_ != nullptr) array = reinterpret_cast<T*>(base_ + at_);
    at_ += rounded(count * sizeof(T), kAlignment);
  }
  std::size_t bytes() const { return at_; }

 private:
  std::byte* base_;
  std::size_t at_ = 0;
};

std::size_t lay_out(Buffers& buffers, const Model& model, std::size_t rows, std::size_t positions,
                    std::size_t cache_bytes, std::byte* base) {
  Cursor cursor(base);
  const std::size_t all = model.heads.count * model.heads.width();
  cursor.take(buffers.x, rows * model.width);
  buffers.normed = buffers.x;
  if (model.norm_first) cursor.take(buffers.normed, rows * model.width);
  cursor.take(buffers.heads, rows * 3 * all);
  cursor.take(buffers.mixed, rows * all);
  cursor.take(buffers.delta, rows * model.width);
  cursor.take(buffers.hidden, rows * model.ffn);
  const std::size_t most = std::max(padded(positions), model.heads.width());
  cursor.take(buffers.scores, kQueries * model.heads.count * most);
  cursor.take(buffers.bytes, kQueries * model.heads.count * most);
  cursor.take(buffers.unit, kQueries * model.heads.count);
  cursor.take(buffers.zeros, most);
  cursor.take(buffers.ones, most);
  cursor.take(buffers.quantised, rows * std::max({model.width, all, model.ffn}));
  cursor.take(buffers.scale, rows);
  cursor.take(buffers.logits, rows * kLogits);
  cursor.take(buffers.choice, rows);
  cursor.take(buffers.places, rows);
  cursor.take(buffers.live, rows);
  cursor.take(buffers.caches, cache_bytes);
  if (base != nullptr) {
    std::fill_n(buffers.zeros, most, 0.0F);
    std::fill_n(buffers.ones, most, 1.0F);
  }
  return cursor.bytes();
}

}  // namespace

Block::Block(std::size_t bytes, bool zero) : bytes_(bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  const std::size_t size = rounded(std::max<std::size_t>(bytes, 1), alignment);
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, size)));
  if (data_ == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(data_.get(), size, MADV_HUGEPAGE);
  if (zero) std::memset(data_.get(), 0, bytes);
}

void Block::Free::operator()(std::byte* data) const { std::free(data); }

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

std::unique_ptr<Workspace, Workspaces::Return> Workspaces::take() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || idle_.empty()) return {new Workspace, {this}};
  std::unique_ptr<Workspace> workspace = std::move(idle_.back());
  idle_.pop_back();
  return {workspace.release(), {this}};
}

void Workspaces::give_back(std::unique_ptr<Workspace> workspace) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && idle_.size() < kMostIdle) idle_.push_back(std::move(workspace));
}

}  // namespace txport::core::fused
