// Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909): rules that merge two neighbouring symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace txport::core {

// A symbol of a word: its id, and its length in bytes of text.
struct Symbol {
  std::uint32_t id = 0;
  std::size_t length = 0;
};

class Merges {
 public:
  // Add the next rule: `left` and `right` become `merged`. A repeated rule moves to its later position.
  void add(std::uint32_t left, std::uint32_t right, std::uint32_t merged);

  // Repeatedly apply the earliest rule that matches, to the leftmost matching pair, until none matches. Takes n log n
  // time for n symbols.
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
