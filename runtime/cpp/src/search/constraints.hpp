// Constraints on the next token of an answer: a forced prefix, and a minimum length.
#pragma once

#include <optional>
#include <vector>

#include "search/requests.hpp"

namespace txport::core {

// Whether the next token must be chosen on the host, before the one after it is made.
bool has_constraint(const Slot& slot);
// Whether the device's choice may be forbidden at some step, so that the next best is needed.
bool may_forbid(const Request& request);
// The only id that may come next, or nothing.
std::optional<std::int64_t> forced_token(const Slot& slot);
// Ids that must not come next, where none is forced.
Ids forbidden_tokens(const Slot& slot, const SpecialTokens& tokens);
// The best id of these logits besides some; the first of equals, as with ArgMax.
std::int64_t best_but(std::vector<float> logits, const Ids& forbidden);

}  // namespace txport::core
