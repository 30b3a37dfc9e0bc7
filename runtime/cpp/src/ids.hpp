// Token ids, matrices, and the sizes and special ids of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace txport::core {

using Ids = std::vector<std::int64_t>;

// A matrix `[rows, columns]` in row-major order.
struct FloatMatrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<float> values;
};

// Maximum number of rows of a batch, source tokens and target tokens (both including eos).
struct Limits {
  std::int64_t batch = 0;
  std::int64_t source = 0;
  std::int64_t target = 0;
};

// Ids of padding, unknown token, decoder start (bos) and end of sequence (eos).
struct SpecialTokens {
  std::int64_t pad = 0;
  std::int64_t unk = 0;
  std::int64_t bos = 0;
  std::int64_t eos = 0;
};

}  // namespace txport::core
