// Memory for what a call computes on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "fused/row.hpp"

namespace txport::core::fused {

struct Model;

inline constexpr std::size_t kLogits = 256;  // of a row that are made before the largest is looked for
inline constexpr std::size_t kQueries = 8;   // of a head that attention takes at once, at most

// Aligned memory; from 2 MiB on in huge pages where the system has them, since caches are read across.
class Block {
 public:
  Block() = default;
  // Not zeroed, unless `zero`. Throws std::bad_alloc.
  explicit Block(std::size_t bytes, bool zero = false);
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> data_{nullptr, std::free};
  std::size_t bytes_ = 0;
};

// Hands out the arrays of a block, or, without one, counts what they need.
class Cursor {
 public:
  static constexpr std::size_t kAlignment = 128;  // of an array: neighbours of two threads share no cache line

  explicit Cursor(std::byte* base) : base_(base) {}
  template <typename T>
  void take(T*& array, std::size_t count) {
    if (base_ != nullptr) array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

// A row's largest logit and its id.
struct Best {
  float value = -std::numeric_limits<float>::infinity();
  std::int32_t index = 0;
};

// A token of a sentence that is encoded with others.
struct Place {
  std::size_t sentence;
  std::size_t position;
  std::size_t start;  // of the sentence in the group's caches, in bytes
};

// A row that is being decoded, and this thread's copy of how far it is.
struct ActiveRow {
  Row* row;
  Progress progress;
};

// Buffers of one thread, for `rows` rows and up to `positions` positions. Widths are padded.
struct Buffers {
  float* x = nullptr;             // [rows, d] the residual stream
  float* normed = nullptr;        // [rows, d] what LayerNorm makes of it; with post-norm x itself
  float* heads = nullptr;         // [rows, 3 * all heads] queries, keys and values
  float* mixed = nullptr;         // [rows, all heads] what attention gives
  float* delta = nullptr;         // [rows, d] what a sublayer adds to x
  float* hidden = nullptr;        // [rows, ffn]
  float* scores = nullptr;        // [kQueries, heads, positions]
  std::uint8_t* bytes = nullptr;  // [kQueries, heads, positions or the width of a head] attention's int8 numbers
  float* unit = nullptr;          // [kQueries, heads] of these
  float* zeros = nullptr;         // [positions or the width of a head], and ones
  float* ones = nullptr;
  std::uint8_t* quantised = nullptr;  // [rows, the widest of these] a product's inputs
  float* scale = nullptr;             // [rows] of each of them
  float* logits = nullptr;            // [rows, kLogits]
  float* norm = nullptr;              // [rows] of the decoder's output and 1
  float* bounds = nullptr;            // [rows, panels of the projection] what no logit of a panel exceeds
  Best* choice = nullptr;             // [rows]
  Place* places = nullptr;            // [rows]
  ActiveRow* active = nullptr;        // [rows]
  std::byte* caches = nullptr;        // of the sentences that are being encoded
};

// The buffers of all threads of a call.
class Workspace {
 public:
  // Throws std::bad_alloc.
  void reserve(const Model& model, std::size_t threads, std::size_t rows, std::size_t positions,
               std::size_t cache_bytes = 0);
  const Buffers& of(std::size_t rank) const { return buffers_[rank]; }

 private:
  std::vector<Block> blocks_;
  std::vector<Buffers> buffers_;
};

// Workspaces from one call to the next. Threads may share it.
class Workspaces {
 public:
  // One for a call, which comes back when it is let go.
  std::shared_ptr<Workspace> take();

 private:
  std::mutex mutex_;  // only tried, so that a fork while it is held does no harm
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace txport::core::fused
