#include "search/continuations.hpp"

#include <algorithm>
#include <numeric>

namespace txport::core {

Continuations::Continuations(std::size_t rows) : order_(rows) { std::iota(order_.begin(), order_.end(), 0U); }

void Continuations::set(std::size_t row, std::int64_t token, bool finished) {
  rows_.push_back(row);
  tokens_.push_back(token);
  finished_.push_back(finished);
}

void Continuations::apply(DecoderState& state) const {
  bool moves = false;
  for (std::size_t row = 0; row < order_.size(); ++row) moves = moves || order_[row] != row;
  if (moves) state.reorder(order_);
  if (!rows_.empty()) state.override_tokens(rows_, tokens_, finished_);
}

}  // namespace txport::core
