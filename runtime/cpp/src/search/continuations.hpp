// Changes of rows after a step, if their continuations differ from the choice of the device.
#pragma once

#include <cstddef>
#include <vector>

#include "engine.hpp"

namespace txport::core {

class Continuations {
 public:
  explicit Continuations(std::size_t rows);

  // Make `row` a copy of the former row `parent`.
  void fork(std::size_t row, std::size_t parent) { order_[row] = parent; }
  // Set the last token of `row` (after any fork), and whether it is finished.
  void set(std::size_t row, std::int64_t token, bool finished);
  // Apply the changes to the state. All of its steps must have been read.
  void apply(DecoderState& state) const;

 private:
  std::vector<std::size_t> order_;
  std::vector<std::size_t> rows_;
  Ids tokens_;
  std::vector<bool> finished_;
};

}  // namespace txport::core
