#include "text/merges.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace txport::core {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

std::uint64_t key(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32U | right; }

// A pair that a rule may merge: the symbol at `left` and the next remaining one.
struct Candidate {
  std::size_t rank;
  std::size_t left;
  std::uint32_t merged;

  bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
};

}  // namespace

void Merges::add(std::uint32_t left, std::uint32_t right, std::uint32_t merged) {
  rules_[key(left, right)] = {count_++, merged};
}

const Merges::Rule* Merges::find(std::uint32_t left, std::uint32_t right) const {
  const auto found = rules_.find(key(left, right));
  return found == rules_.end() ? nullptr : &found->second;
}

void Merges::apply(std::vector<Symbol>& word) const {
  const std::size_t size = word.size();
  std::vector<std::size_t> before(size);
  std::vector<std::size_t> after(size);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t left) {
    if (left == kNone || after[left] == kNone) return;
    const Rule* rule = find(word[left].id, word[after[left]].id);
    if (rule != nullptr) candidates.push({rule->rank, left, rule->merged});
  };
  for (std::size_t i = 0; i < size; ++i) {
    before[i] = i == 0 ? kNone : i - 1;
    after[i] = i + 1 == size ? kNone : i + 1;
  }
  for (std::size_t i = 0; i < size; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const std::size_t left = best.left;
    if (word[left].length == 0 || after[left] == kNone) continue;
    const std::size_t right = after[left];
    const Rule* rule = find(word[left].id, word[right].id);
    if (rule == nullptr || rule->merged != best.merged) continue;  // another merge has changed the pair
    word[left] = {best.merged, word[left].length + word[right].length};
    word[right].length = 0;
    after[left] = after[right];
    if (after[left] != kNone) before[after[left]] = left;
    consider(before[left]);
    consider(left);
  }
  word.erase(std::remove_if(word.begin(), word.end(), [](const Symbol& symbol) { return symbol.length == 0; }),
             word.end());
}

}  // namespace txport::core
