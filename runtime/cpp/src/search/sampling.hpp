// Sampling of tokens. A seed gives the same samples in any batch, in Python and in C++.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "search/settings.hpp"

namespace txport::core {

// The position of a token for which a random number is drawn: `key` is the index of the sentence, `sample` the index of
// its sample, and `position` the number of tokens before it.
struct DrawPlace {
  std::uint64_t key = 0;
  std::uint64_t sample = 0;
  std::uint64_t position = 0;
};

// Sample a token according to logits `[vocabulary]`, which are -inf for banned tokens.
std::int64_t draw(const std::vector<float>& logits, const Sampling& sampling, const DrawPlace& place);

// Return the probabilities `[vocabulary]` before normalization, 0 for excluded tokens. Temperature, top_k, top_p and
// min_p are applied in the order of Hugging Face's warpers.
std::vector<double> probabilities(const std::vector<float>& logits, const Sampling& sampling);

// Return a random number in [0, 1): the upper 53 bits of the first word of Philox with the key (seed, key) and the
// counter (position + 1, sample, 0, 0). NumPy increments the counter before the first use, hence the 1.
double uniform(std::uint64_t seed, const DrawPlace& place);

// Philox 4x64-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).
std::array<std::uint64_t, 4> philox(std::array<std::uint64_t, 4> counter, std::array<std::uint64_t, 2> key);

}  // namespace txport::core
