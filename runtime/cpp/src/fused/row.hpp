// A row of a decoder state: where its sentence stands, and the memory that belongs to it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "errors.hpp"

namespace txport::core::fused {

// How far a sentence is. Caches are written and read at `position`, and tables at `token`, so no transition leads
// beyond the limit: callers may call in any order. Each thread that steps a row keeps a copy.
class Progress {
 public:
  std::size_t token() const { return token_; }        // the next step feeds it at `position`
  std::size_t position() const { return position_; }  // tokens made so far
  bool finished() const { return finished_; }

  // Begins a sentence of at most `limit` tokens.
  void place(std::size_t bos, std::size_t limit) {
    token_ = bos;
    position_ = 0;
    limit_ = limit;
    finished_ = limit == 0;
  }

  // Takes the token that a step made.
  void advance(std::size_t token, std::size_t eos) {
    token_ = token;
    ++position_;
    finished_ = token == eos || position_ >= limit_;
  }

  // Replaces the last token that was made, and the flag; who has made all tokens stays finished.
  void override_token(std::size_t token, bool finished) {
    token_ = token;
    finished_ = finished || position_ >= limit_;
  }

  // Maximum number of tokens after this number of steps.
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
  std::size_t limit_ = 0;     // of tokens to make; of a row that was never placed 0
  bool finished_ = true;
};

// Self-attention's keys and values of kPanel positions, of all heads of all layers. Rows that came from one share those
// that they had until then; no page is written that more than one row has.
using Page = std::shared_ptr<std::byte>;

// Token ids, ascending.
using Words = std::shared_ptr<const std::vector<std::int32_t>>;

// Columns of a projection, ascending; none stands for all of them.
struct Columns {
  const std::int32_t* begin = nullptr;
  const std::int32_t* end = nullptr;

  bool all() const { return begin == end; }
  std::size_t size() const { return static_cast<std::size_t>(end - begin); }
  // Those from `first` up to `last`, which may be none.
  Columns between(std::size_t first, std::size_t last) const {
    const auto at = [this](std::size_t column) {
      return std::lower_bound(begin, end, static_cast<std::int32_t>(column));
    };
    return {at(first), at(last)};
  }
};

struct Row {
  Progress progress;
  std::size_t source = 0;            // tokens
  std::shared_ptr<std::byte> cross;  // cross-attention's keys and values, of `source` positions
  std::vector<Page> pages;           // as many as have positions that were written
  Words words;                       // among which it chooses; none: all
  Columns columns;                   // of the projection in the last step, which are its words
  std::size_t logits = 0;            // which row of the logits is this one's
};

}  // namespace txport::core::fused
