#include "engine.hpp"

#include <algorithm>
#include <cmath>

namespace txport::core {

double DecoderState::log_probability(std::size_t row, std::int64_t token) {
  const std::vector<float> all = logits(row);
  const double largest = *std::max_element(all.begin(), all.end());
  double sum = 0;
  for (const float logit : all) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(all[static_cast<std::size_t>(token)]) - largest - std::log(sum);
}

}  // namespace txport::core
