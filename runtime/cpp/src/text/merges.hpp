// Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909): rules that make one symbol of two neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace txport::core {

// A symbol of a word: its id, and how many bytes of the text it stands for.
struct Symbol {
  std::uint32_t id = 0;
  std::size_t length = 0;
};

class Merges {
 public:
  // The next rule: `left` and `right` become `merged`. One that is given again takes its later place.
  void add(std::uint32_t left, std::uint32_t right, std::uint32_t merged);

  // Apply the earliest rule to the leftmost of its pairs until no rule applies; n log n for n symbols.
  void apply(std::vector<Symbol>& word) const;

 private:
  struct Rule {
    std::size_t rank;
    std::uint32_t merged;
  };
  std::unordered_map<std::uint64_t, Rule> rules_;
  std::size_t count_ = 0;

  const Rule* find(std::uint32_t left, std::uint32_t right) const;
};

}  // namespace txport::core
