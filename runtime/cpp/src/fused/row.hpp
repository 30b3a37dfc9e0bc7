// A row of a decoder state: the progress of its sentence, and its memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "errors.hpp"

namespace txport::core::fused {

// Progress of a sentence. Caches are indexed by `position`, and tables by `token`, so no transition exceeds the limit,
// in whatever order callers call. Each thread that steps a row has a copy.
class Progress {
 public:
  // Return the input of the next step.
  std::size_t token() const { return token_; }
  // Return the position of this input, which is the number of generated tokens.
  std::size_t position() const { return position_; }
  bool finished() const { return finished_; }

  // Begin a sentence of at most `limit` tokens.
  void place(std::size_t bos, std::size_t limit) {
    token_ = bos;
    position_ = 0;
    limit_ = limit;
    finished_ = limit == 0;
  }

  // Append the token that a step generated.
  void advance(std::size_t token, std::size_t eos) {
    token_ = token;
    ++position_;
    finished_ = token == eos || position_ >= limit_;
  }

  // Replace the last generated token and the flag. A row with `limit` tokens stays finished.
  void override_token(std::size_t token, bool finished) {
    token_ = token;
    finished_ = finished || position_ >= limit_;
  }

  // Return the maximum number of tokens after this number of steps.
  std::size_t after(std::size_t steps) const { return std::min(position_ + steps, limit_); }

  // Throws InputError: this number of steps would pass the end of a cache of `target` positions.
  void check(std::size_t steps, std::size_t target) const {
    if (!finished_ && after(steps) > target) {
      throw InputError("a row would pass the end of its cache of " + std::to_string(target) +
                       " tokens: move the rows to longer ones first");
    }
  }

 private:
  std::size_t token_ = 0;
  std::size_t position_ = 0;  // below the limit unless finished
  std::size_t limit_ = 0;     // maximum number of tokens; 0 for a row that was never placed
  bool finished_ = true;
};

// Keys and values of self-attention: kPanel positions of all heads of all layers. Rows that were copied from one row
// share its pages. A page that several rows share is not written.
using Page = std::shared_ptr<std::byte>;

// Token ids, ascending.
using Words = std::shared_ptr<const std::vector<std::int32_t>>;

// Columns of a projection, ascending. An empty range means all columns.
struct Columns {
  const std::int32_t* begin = nullptr;
  const std::int32_t* end = nullptr;

  bool all() const { return begin == end; }
  std::size_t size() const { return static_cast<std::size_t>(end - begin); }
  // Return the columns from `first` up to, but not including, `last`. An empty result here means no columns.
  Columns between(std::size_t first, std::size_t last) const {
    const auto at = [this](std::size_t column) {
      return std::lower_bound(begin, end, static_cast<std::int32_t>(column));
    };
    return {at(first), at(last)};
  }
};

struct Row {
  Progress progress;
  std::size_t source = 0;            // number of source tokens
  std::shared_ptr<std::byte> cross;  // keys and values of cross-attention, for `source` positions
  std::vector<Page> pages;           // pages with positions that were written
  Words words;                       // shortlist; null if all words are allowed
  Columns columns;                   // columns of the shortlist in the projection of the last step
  std::size_t logits = 0;            // index of this row in the logits
};

}  // namespace txport::core::fused
