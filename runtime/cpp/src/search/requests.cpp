#include "search/requests.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "errors.hpp"

namespace txport::core {

void Request::check(const Limits& limits) const {
  if (width() < 1 || width() > limits.source) {
    throw InputError("a source of " + std::to_string(width()) + " tokens does not fit: give 1 to " +
                     std::to_string(limits.source) + " tokens, eos included");
  }
  if (max_length && *max_length < 1) {
    throw InputError("a maximum length of " + std::to_string(*max_length) + " makes nothing: give 1 or more");
  }
}

std::int64_t Request::limit(const Limits& limits) const {
  return std::min(max_length.value_or(limits.target), limits.target);
}

void Slot::add(std::int64_t token, std::int64_t eos) {
  ids.push_back(token);
  done = token == eos || length() >= limit;
}

Result Slot::result() {
  Result result{index, std::move(ids), std::nullopt};
  if (request.scores) result.scores = std::move(scores);
  return result;
}

}  // namespace txport::core
