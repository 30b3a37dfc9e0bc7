#include "search/requests.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "errors.hpp"

namespace txport::core {

void Request::check(const Limits& limits) const {
  if (source_length() < 1 || source_length() > limits.source) {
    throw InputError("a source of " + std::to_string(source_length()) + " tokens does not fit: give 1 to " +
                     std::to_string(limits.source) + " tokens, including eos");
  }
  if (max_length && *max_length < 1) {
    throw InputError("a maximum length of " + std::to_string(*max_length) + " allows no tokens: set 1 or more");
  }
}

std::int64_t Request::limit(const Limits& limits) const {
  return std::min(max_length.value_or(limits.target), limits.target);
}

Slot::Slot(std::size_t number, Request new_request, std::int64_t max_length)
    : index(number), request(std::move(new_request)), limit(max_length), ruled(request.ruled()) {
  const bool always = request.scores || request.search.rules.any();
  single_steps = always ? limit : std::max(static_cast<std::int64_t>(request.prefix.size()), request.min_length);
}

void Slot::extend(std::int64_t token, bool is_end) {
  ids.push_back(token);
  length = static_cast<std::int64_t>(ids.size());
  const bool forced = ids.size() <= request.prefix.size();  // an end id inside the prefix does not end the translation
  done = (is_end && !forced) || length >= limit;
}

Result Slot::result() { return {index, {hypothesis()}}; }

Hypothesis Slot::hypothesis() {
  Hypothesis result{std::move(ids), std::nullopt, std::nullopt};
  if (request.scores) result.scores = std::move(scores);
  return result;
}

}  // namespace txport::core
