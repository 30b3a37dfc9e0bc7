// Continuations of the rows of a state after a step, if they differ from the choice of the device.
#pragma once

#include <cstddef>
#include <vector>

#include "engine.hpp"

namespace txport::core {

class Continuations {
 public:
  explicit Continuations(std::size_t rows);

  // Row `row` continues what row `from` was.
  void fork(std::size_t row, std::size_t from) { order_[row] = from; }
  // Row `row`, which may have been another, has made `token`, and has finished or not.
  void set(std::size_t row, std::int64_t token, bool finished);
  // Change the state accordingly. All of its steps must have been read.
  void apply(DecoderState& state) const;

 private:
  std::vector<std::size_t> order_;
  std::vector<std::size_t> rows_;
  Ids tokens_;
  std::vector<bool> finished_;
};

}  // namespace txport::core
