// What the projection keeps of a row's logits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace txport::core::fused {

// A row's largest logit and its id, or one of its largest.
struct Best {
  float value = -std::numeric_limits<float>::infinity();
  std::int32_t index = 0;
};

// Logits that follow each other: their largest, and the sum of e^(x - largest).
struct ChunkSum {
  float largest = -std::numeric_limits<float>::infinity();
  double sum = 0;
};

// By descending logit, equal ones by ascending id.
struct Precedes {
  bool operator()(const Best& a, const Best& b) const {
    return a.value > b.value || (a.value == b.value && a.index < b.index);
  }
};

// The first `size` of all logits that are offered, in memory of the caller's: a heap, whose root is the last of them.
class Candidates {
 public:
  Candidates(Best* best, std::size_t size) : best_(best), size_(size) {}

  void clear() const { std::fill_n(best_, size_, Best{Best{}.value, std::numeric_limits<std::int32_t>::max()}); }
  // A logit below it would be refused.
  float least() const { return best_->value; }
  // What is not a number counts as -infinity, so that there is an order.
  void offer(const Best& one) const {
    const Best next{one.value > Best{}.value ? one.value : Best{}.value, one.index};
    if (!Precedes()(next, *best_)) return;
    std::pop_heap(best_, best_ + size_, Precedes());
    best_[size_ - 1] = next;
    std::push_heap(best_, best_ + size_, Precedes());
  }
  // All of others'.
  void offer(const Candidates& others) const {
    std::for_each(others.best_, others.best_ + others.size_, [this](const Best& one) { offer(one); });
  }
  // Ends the heap.
  void sort() const { std::sort_heap(best_, best_ + size_, Precedes()); }

 private:
  Best* best_;
  std::size_t size_;
};

}  // namespace txport::core::fused
