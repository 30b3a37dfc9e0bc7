// Memory for what a call computes on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "fused/candidates.hpp"
#include "fused/row.hpp"
#include "system/system.hpp"

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
  std::unique_ptr<std::byte, void (*)(void*)> data_{nullptr, release};
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
  bool counts() const { return base_ == nullptr; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

// A token of a sentence that is encoded with others.
struct SourceToken {
  std::size_t sentence;
  std::size_t position;
  std::size_t start;  // of the sentence in the caches of the team, in bytes
};

// A row that is being decoded, and this thread's copy of how far it is.
struct ActiveRow {
  Row* row = nullptr;
  Progress progress;
  Columns left;  // of its own words and of this thread, those whose logits are still to be looked at in a step
};

// What one thread alone reads and writes. Widths are padded.
struct OwnBuffers {
  float* x = nullptr;                // [rows, d] the residual stream
  float* normed = nullptr;           // [rows, d] what LayerNorm makes of it; with post-norm x itself
  float* features = nullptr;         // [rows, numbers of a vector], of a model that reads vectors
  float* heads = nullptr;            // [rows, 3 * all heads] queries, keys and values
  float* delta = nullptr;            // [rows, d] what attention adds to x, if each thread makes it for itself
  float* scores = nullptr;           // [kQueries, heads, positions]
  std::uint8_t* bytes = nullptr;     // [kQueries, heads, positions or the width of a head] attention's int8 numbers
  float* attention_scale = nullptr;  // [kQueries, heads] of these
  float* zeros = nullptr;            // [positions or the width of a head], and ones
  float* ones = nullptr;
  std::uint8_t* quantised = nullptr;  // [rows, the widest inputs] a product's inputs
  float* scale = nullptr;             // [rows] of each of them
  float* logits = nullptr;            // [rows, kLogits]
  float* norm = nullptr;              // [rows] of the decoder's output and 1
  float* bounds = nullptr;            // [rows, panels of the projection] what no logit of a panel exceeds
  SourceToken* tokens = nullptr;      // [rows]
  ActiveRow* active = nullptr;        // [rows]
};

// What the threads of a team write for each other, each its own columns, heads or rows: a barrier comes before others
// read them, and another before they are written again.
struct TeamBuffers {
  float* mixed = nullptr;       // [2, rows, all heads] what self-attention and cross-attention give
  float* delta = nullptr;       // [rows, d] what a sublayer adds to x
  float* hidden = nullptr;      // [rows, ffn]
  float* gate = nullptr;        // [rows, ffn], where layers are gated
  Best* best = nullptr;         // [threads, best_stride] of each thread's columns
  std::size_t best_stride = 0;  // rows, and the rest of a cache line
  ChunkSum* sums = nullptr;     // [rows, chunks] of kLogits logits each
  std::size_t chunks = 0;
  Best* candidates = nullptr;  // [threads, rows, top_stride] the best few of each thread's columns
  std::size_t top_stride = 0;
  float* listed = nullptr;  // [rows, listed_stride] the logits of a row's words, where it has words of its own
  std::size_t listed_stride = 0;
  std::byte* caches = nullptr;  // of the sentences that are being encoded
};

// How much a call needs. With data parallelism each thread is a team of its own.
struct WorkspaceSize {
  std::size_t threads = 1;
  bool data_parallel = false;
  std::size_t rows = 0;       // of a thread
  std::size_t team_rows = 0;  // of a team
  std::size_t positions = 0;  // of a sentence, at most
  std::size_t cache_bytes = 0;
  std::size_t top = 0;    // candidates of a row
  std::size_t words = 0;  // of a row that has words of its own, at most
};

// The buffers of all threads of a call.
class Workspace {
 public:
  // Throws std::bad_alloc.
  void reserve(const Model& model, const WorkspaceSize& size);
  const OwnBuffers& own(std::size_t thread) const { return own_[thread]; }
  const TeamBuffers& team(std::size_t index) const { return teams_[index]; }

 private:
  std::vector<Block> blocks_;
  std::vector<OwnBuffers> own_;
  std::vector<TeamBuffers> teams_;
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
