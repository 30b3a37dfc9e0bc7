// Sampling of a token, so that one seed gives one answer in any batch, in Python and in C++.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "search/settings.hpp"

namespace txport::core {

// What a draw is for: tokens before it, the number of the answer, and the number of the sentence.
struct DrawPlace {
  std::uint64_t key = 0;
  std::uint64_t sample = 0;
  std::uint64_t position = 0;
};

// Draw a token by its logits `[vocabulary]`; -inf for tokens that must not come.
std::int64_t draw(const std::vector<float>& logits, const Sampling& sampling, const DrawPlace& place);

// `[vocabulary]`, not normalised, 0 for excluded tokens; in the order of Hugging Face's warpers.
std::vector<double> probabilities(const std::vector<float>& logits, const Sampling& sampling);

// A number of [0, 1): the upper 53 bits of the first word of Philox. Its key is (seed, key); its counter, which NumPy
// increases by 1 before it is used, (position, sample, 0, 0).
double uniform(std::uint64_t seed, const DrawPlace& place);

// Philox 4x64-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).
std::array<std::uint64_t, 4> philox(std::array<std::uint64_t, 4> counter, std::array<std::uint64_t, 2> key);

}  // namespace txport::core
