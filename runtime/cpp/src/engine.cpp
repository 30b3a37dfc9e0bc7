#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "errors.hpp"

namespace txport::core {

namespace {

// Replace NaN, which rows that were never placed have, with -infinity, since NaN cannot be sorted.
template <typename Number>
Number nan_to_lowest(Number logit) {
  return std::fmax(logit, -std::numeric_limits<Number>::infinity());
}

}  // namespace

std::shared_ptr<const Memory> Engine::encode_features(const std::vector<float>& /*features*/,
                                                      const Ids& /*source_lengths*/) const {
  throw EngineError(name() + " does not read feature vectors");
}

double log_sum_exp(const std::vector<float>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

template <typename Number>
Ids best_ids(const std::vector<Number>& logits, std::size_t k) {
  const auto logit = [&](std::int64_t id) { return nan_to_lowest(logits[static_cast<std::size_t>(id)]); };
  Ids ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(),
      [&](std::int64_t a, std::int64_t b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); });
  ids.resize(k);
  return ids;
}

template Ids best_ids(const std::vector<float>& logits, std::size_t k);
template Ids best_ids(const std::vector<double>& logits, std::size_t k);

void DecoderState::restrict_rows(const std::vector<std::size_t>& /*rows*/,
                                 const std::vector<std::shared_ptr<const Ids>>& /*words*/) {
  throw std::logic_error("this engine does not restrict rows");
}

std::vector<float> DecoderState::some_logits(std::size_t row, const Ids& token_ids) {
  const std::vector<float> all = logits(row);
  std::vector<float> selected;
  selected.reserve(token_ids.size());
  for (const std::int64_t id : token_ids) selected.push_back(all[static_cast<std::size_t>(id)]);
  return selected;
}

double DecoderState::log_probability(std::size_t row, std::int64_t token) {
  const std::vector<float> all = logits(row);
  return static_cast<double>(all[static_cast<std::size_t>(token)]) - log_sum_exp(all);
}

Top DecoderState::top(std::size_t k) {
  Top result;
  for (std::size_t row = 0; row < rows(); ++row) {
    const std::vector<float> all = logits(row);
    for (const std::int64_t id : best_ids(all, k)) {
      result.token_ids.push_back(id);
      result.logits.push_back(nan_to_lowest(all[static_cast<std::size_t>(id)]));
    }
    result.normaliser.push_back(log_sum_exp(all));
  }
  return result;
}

}  // namespace txport::core
