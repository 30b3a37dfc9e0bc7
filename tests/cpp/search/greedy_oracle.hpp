// Greedy search straight from its definition, over the model of memory_engine.hpp, and requests to try it on.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "memory_engine.hpp"
#include "search/requests.hpp"

namespace memory {

struct Expected {
  Ids ids;
  std::vector<double> scores;
};

// One sentence alone, straight from the definition.
inline Expected oracle(const Request& request, const Limits& limits, float eos_weight) {
  const std::int64_t limit = std::min(request.max_length.value_or(limits.target), limits.target);
  Expected expected;
  while (static_cast<std::int64_t>(expected.ids.size()) < limit) {
    Ids fed{kTokens.bos};
    fed.insert(fed.end(), expected.ids.begin(), expected.ids.end());
    std::vector<float> logits = logits_after(request.source_ids, fed, eos_weight);
    for (std::size_t id = 0; request.words != nullptr && id < logits.size(); ++id) {
      const bool here = std::binary_search(request.words->begin(), request.words->end(), id);
      if (!here) logits[id] = -std::numeric_limits<float>::infinity();
    }
    const std::size_t made = expected.ids.size();
    std::vector<float> allowed = logits;
    if (static_cast<std::int64_t>(made) < request.min_length) allowed[static_cast<std::size_t>(kTokens.eos)] = -1e9F;
    const std::int64_t token = made < request.prefix.size() ? request.prefix[made] : best(allowed);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    expected.scores.push_back(std::log(std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)])) / sum));
    expected.ids.push_back(token);
    if (token == kTokens.eos && made >= request.prefix.size()) break;  // one inside the prefix ends nothing
  }
  return expected;
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t number(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(values.size()) - 1))];
  }
  Ids ids(std::int64_t low, std::int64_t high, std::int64_t most) {
    Ids result(static_cast<std::size_t>(number(0, most)));
    for (std::int64_t& id : result) id = number(low, high);
    return result;
  }
  // With words of its own, those of the prefix among them.
  Request restricted() {
    Request request = this->request(true);
    Ids words = ids(0, 11, 11);
    words.push_back(kTokens.eos);
    words.insert(words.end(), request.prefix.begin(), request.prefix.end());
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    request.words = std::make_shared<const Ids>(std::move(words));
    request.search.shortlist = true;
    return request;
  }
  Request request(bool constrained) {
    Request request;
    request.source_ids = ids(4, 11, 11);
    request.source_ids.push_back(kTokens.eos);
    if (number(0, 1) == 1) request.max_length = number(1, 110);
    if (!constrained) return request;
    request.min_length = number(0, 1) == 1 ? number(0, 40) : 0;
    request.prefix = ids(3, 11, 5);
    request.scores = number(0, 1) == 1;
    return request;
  }

 private:
  std::mt19937_64 random_;
};

// Sources of these lengths that run to the maximum length, since nothing ends them earlier.
inline std::vector<Request> sources(const std::vector<std::size_t>& lengths, std::int64_t limit) {
  std::vector<Request> requests;
  for (const std::size_t length : lengths) {
    Request request;
    request.source_ids.assign(length, 4 + static_cast<std::int64_t>(requests.size()) % 8);
    request.source_ids.back() = kTokens.eos;
    request.max_length = limit;
    requests.push_back(request);
  }
  return requests;
}

// A result is that of its sentence alone.
inline void check_result(const Result& result, const Request& request, const Limits& limits, float eos_weight) {
  const Expected expected = oracle(request, limits, eos_weight);
  CHECK(result.ids() == expected.ids);
  REQUIRE(result.scores().has_value() == request.scores);
  for (std::size_t t = 0; request.scores && t < expected.scores.size(); ++t) {
    CHECK((*result.scores())[t] == doctest::Approx(expected.scores[t]).epsilon(1e-5));
  }
}

}  // namespace memory
