// Summaries of the logits of a row: the best, sums, and the best few.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace txport::core::fused {

// A logit and its id: the largest of a row, or one of the largest.
struct Best {
  float value = -std::numeric_limits<float>::infinity();
  std::int32_t index = 0;
};

// Consecutive logits: the largest, and the sum of e^(x - largest).
struct ChunkSum {
  float largest = -std::numeric_limits<float>::infinity();
  double sum = 0;
};

// Order by descending logit. Equal logits are ordered by ascending id.
struct Precedes {
  bool operator()(const Best& a, const Best& b) const {
    return a.value > b.value || (a.value == b.value && a.index < b.index);
  }
};

// The first `size` of all offered logits, sorted by Precedes, in memory of the caller. The list is short and few offers
// enter it, so shifting the others is faster than a heap.
class Candidates {
 public:
  Candidates(Best* best, std::size_t size) : best_(best), size_(size) {}

  void clear() const { std::fill_n(best_, size_, Best{Best{}.value, std::numeric_limits<std::int32_t>::max()}); }
  // Return the logit below which offers do not enter the list.
  float least() const { return best_[size_ - 1].value; }
  // Offer a logit. NaN counts as -infinity, so that there is an order.
  void offer(const Best& one) const {
    const Best next{one.value > Best{}.value ? one.value : Best{}.value, one.index};
    Best* const last = best_ + size_ - 1;
    if (!Precedes()(next, *last)) return;
    Best* const at = std::upper_bound(best_, last, next, Precedes());
    std::move_backward(at, last, last + 1);
    *at = next;
  }
  // Offer all logits of another list.
  void offer(const Candidates& others) const {
    std::for_each(others.best_, others.best_ + others.size_, [this](const Best& one) { offer(one); });
  }

 private:
  Best* best_;
  std::size_t size_;
};

}  // namespace txport::core::fused
