#include "search/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace txport::core {

namespace {

struct Product {
  std::uint64_t high;
  std::uint64_t low;
};

// Return all 128 bits of a product, computed from products of the halves.
Product product(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kHalf = 0xFFFFFFFF;
  const std::uint64_t lows = (a & kHalf) * (b & kHalf);
  const std::uint64_t first = (a >> 32) * (b & kHalf) + (lows >> 32);
  const std::uint64_t second = (a & kHalf) * (b >> 32) + (first & kHalf);
  return {(a >> 32) * (b >> 32) + (first >> 32) + (second >> 32), a * b};
}

// Keep the `count` largest scores and those equal to the smallest of them. Set the others to -inf.
void keep_best(std::vector<double>& scores, std::size_t count) {
  if (count == 0 || count >= scores.size()) return;
  std::vector<double> ordered = scores;
  const auto nth = ordered.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(ordered.begin(), nth, ordered.end(), std::greater<>());
  for (double& score : scores) {
    if (score < *nth) score = -std::numeric_limits<double>::infinity();
  }
}

// Set the smallest weights, up to a sum of `mass`, to 0, but never the largest weight.
void remove_tail(std::vector<double>& weights, double mass) {
  // Weights below half of an equal share of `mass` sum to less than `mass`. They are removed without sorting; in a
  // large vocabulary these are nearly all weights.
  const double small = mass / (2 * static_cast<double>(weights.size()));
  std::vector<std::size_t> ascending;
  double sum = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] < small) {
      sum += weights[id];
      weights[id] = 0;
    } else {
      ascending.push_back(id);
    }
  }
  std::stable_sort(ascending.begin(), ascending.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] < weights[b]; });
  ascending.pop_back();
  for (const std::size_t id : ascending) {
    sum += weights[id];
    if (sum > mass) break;
    weights[id] = 0;
  }
}

}  // namespace

std::int64_t draw(const std::vector<float>& logits, const Sampling& sampling, const DrawPlace& place) {
  std::vector<double> cumulated = probabilities(logits, sampling);
  std::partial_sum(cumulated.begin(), cumulated.end(), cumulated.begin());
  const double point = uniform(sampling.seed, place) * cumulated.back();
  return std::upper_bound(cumulated.begin(), cumulated.end(), point) - cumulated.begin();
}

std::vector<double> probabilities(const std::vector<float>& logits, const Sampling& sampling) {
  std::vector<double> weights(logits.begin(), logits.end());
  for (double& weight : weights) weight /= sampling.temperature;
  keep_best(weights, static_cast<std::size_t>(sampling.top_k));
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - largest);
  if (sampling.top_p < 1) {
    remove_tail(weights, (1 - sampling.top_p) * std::accumulate(weights.begin(), weights.end(), 0.0));
  }
  for (double& weight : weights) {
    if (weight < sampling.min_p) weight = 0;  // the largest weight is 1
  }
  return weights;
}

double uniform(std::uint64_t seed, const DrawPlace& place) {
  const std::uint64_t word = philox({place.position + 1, place.sample, 0, 0}, {seed, place.key})[0];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

std::array<std::uint64_t, 4> philox(std::array<std::uint64_t, 4> counter, std::array<std::uint64_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const Product first = product(0xD2E7470EE14C6C93, counter[0]);
    const Product second = product(0xCA5A826395121157, counter[2]);
    counter = {second.high ^ counter[1] ^ key[0], second.low, first.high ^ counter[3] ^ key[1], first.low};
    key = {key[0] + 0x9E3779B97F4A7C15, key[1] + 0xBB67AE8584CAA73B};
  }
  return counter;
}

}  // namespace txport::core
