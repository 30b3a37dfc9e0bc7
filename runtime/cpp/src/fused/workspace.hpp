// Memory for intermediate results of a call.
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

inline constexpr std::size_t kLogits = 256;  // number of logits of a row that are computed before their maximum
inline constexpr std::size_t kQueries = 8;   // maximum number of queries of a head that attention processes together

// Aligned memory. Blocks of 2 MiB and more use huge pages if the system has them, since caches are read with large
// strides.
class Block {
 public:
  Block() = default;
  // Allocate memory, and zero it if `zero`. Throws std::bad_alloc.
  explicit Block(std::size_t bytes, bool zero = false);
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> data_{nullptr, release};
  std::size_t bytes_ = 0;
};

// Assigns the memory of a block to arrays, or, without a block, computes the size of the arrays.
class Cursor {
 public:
  static constexpr std::size_t kAlignment = 128;  // bytes; arrays of different threads never share a cache line

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
  std::size_t start;  // offset of the sentence in the caches of the team, in bytes
};

// A row that is being decoded, with this thread's copy of its progress.
struct ActiveRow {
  Row* row = nullptr;
  Progress progress;
  Columns left;  // columns of the row's shortlist and of this thread whose logits have not been compared in this step
};

// Buffers that a single thread reads and writes. Widths are padded.
struct OwnBuffers {
  float* x = nullptr;                 // [rows, d] the residual stream
  float* normed = nullptr;            // [rows, d] the normalised residual stream; with post-norm, x itself
  float* features = nullptr;          // [rows, size of a vector] feature vectors
  float* heads = nullptr;             // [rows, 3 * all heads] queries, keys and values
  float* delta = nullptr;             // [rows, d] output of attention, if each thread computes it for itself
  float* scores = nullptr;            // [kQueries, heads, positions]
  std::uint8_t* bytes = nullptr;      // [kQueries, heads, positions or the width of a head] int8 inputs of attention
  float* attention_scale = nullptr;   // [kQueries, heads] scales of `bytes`
  float* zeros = nullptr;             // [positions or the width of a head]
  float* ones = nullptr;              // as zeros
  std::uint8_t* quantised = nullptr;  // [rows, the widest inputs] int8 inputs of a product
  float* scale = nullptr;             // [rows] scales of `quantised`
  float* logits = nullptr;            // [rows, kLogits]
  float* norm = nullptr;          // [rows] Euclidean norm of the decoder's output with a 1 appended, see UpperBounds
  float* bounds = nullptr;        // [rows, panels of the projection] upper bounds of the logits of each panel
  SourceToken* tokens = nullptr;  // [rows]
  ActiveRow* active = nullptr;    // [rows]
};

// Buffers that the threads of a team write for each other. Each thread writes only its columns, heads or rows. A
// barrier separates writing from reading by other threads, and another one separates reading from the next writing.
struct TeamBuffers {
  float* mixed = nullptr;       // [2, rows, all heads] outputs of self-attention and cross-attention
  float* delta = nullptr;       // [rows, d] output of a sublayer, which is added to x
  float* hidden = nullptr;      // [rows, ffn]
  float* gate = nullptr;        // [rows, ffn] in gated layers
  Best* best = nullptr;         // [threads, best_stride] the best logit of each row among each thread's columns
  std::size_t best_stride = 0;  // number of rows, rounded up to a complete cache line
  ChunkSum* sums = nullptr;     // [rows, chunks] sums over kLogits logits each
  std::size_t chunks = 0;
  Best* candidates = nullptr;  // [threads, rows, top_stride] the best few logits among each thread's columns
  std::size_t top_stride = 0;
  float* listed = nullptr;  // [rows, listed_stride] logits of a row's shortlist, if it has one
  std::size_t listed_stride = 0;
  std::byte* caches = nullptr;  // keys and values of the sentences that are being encoded
};

// Sizes of the buffers for a call. With data parallelism, each thread is a separate team.
struct WorkspaceSize {
  std::size_t threads = 1;
  bool data_parallel = false;
  std::size_t rows = 0;         // number of rows of a thread
  std::size_t team_rows = 0;    // number of rows of a team
  std::size_t positions = 0;    // maximum number of positions of a sentence
  std::size_t cache_bytes = 0;  // size of TeamBuffers::caches
  std::size_t top = 0;          // number of candidates of a row
  std::size_t words = 0;        // maximum number of words of a shortlist
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

// A pool of workspaces, which later calls reuse. Threads may share it.
class Workspaces {
 public:
  // Return a workspace for a call. It returns to the pool when the pointer is destroyed.
  std::shared_ptr<Workspace> take();

 private:
  // Only try_lock is used: after a fork in which it was held, waiting for it would never end.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace txport::core::fused
