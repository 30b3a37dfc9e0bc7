#include "search/constraints.hpp"

#include <algorithm>
#include <limits>

namespace txport::core {

bool has_constraint(const Slot& slot) {
  return slot.length() < std::max(static_cast<std::int64_t>(slot.request.prefix.size()), slot.request.min_length);
}

bool may_forbid(const Request& request) { return request.min_length > 0; }

std::optional<std::int64_t> forced_token(const Slot& slot) {
  if (slot.ids.size() >= slot.request.prefix.size()) return std::nullopt;
  return slot.request.prefix[slot.ids.size()];
}

Ids forbidden_tokens(const Slot& slot, const SpecialTokens& tokens) {
  return slot.length() < slot.request.min_length ? Ids{tokens.eos} : Ids{};
}

std::int64_t best_but(std::vector<float> logits, const Ids& forbidden) {
  for (const std::int64_t id : forbidden) {
    logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

}  // namespace txport::core
