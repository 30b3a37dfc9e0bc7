#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace txport::core {

namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();

double log_sum_exp(const std::vector<float>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

}  // namespace

double DecoderState::log_probability(std::size_t row, std::int64_t token) {
  const std::vector<float> all = logits(row);
  return static_cast<double>(all[static_cast<std::size_t>(token)]) - log_sum_exp(all);
}

Top DecoderState::top(std::size_t k) {
  Top result;
  for (std::size_t row = 0; row < rows(); ++row) {
    const std::vector<float> all = logits(row);
    // What is no number, of a row that was never placed, has no place in an order.
    const auto logit = [&](std::int64_t id) { return std::fmax(all[static_cast<std::size_t>(id)], kLeast); };
    Ids ids(all.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(
        ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(),
        [&](std::int64_t a, std::int64_t b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); });
    ids.resize(k);
    for (const std::int64_t id : ids) result.logits.push_back(logit(id));
    result.token_ids.insert(result.token_ids.end(), ids.begin(), ids.end());
    result.normaliser.push_back(log_sum_exp(all));
  }
  return result;
}

}  // namespace txport::core
