// Constraints on the field `tokenizer` of a manifest, beyond types; the same as
// txport.runtime.bundle.tokenizer_rules.
#pragma once

#include <string>

#include "bundle/manifest.hpp"

namespace txport::core {

// The first contradiction, or an empty text.
std::string tokenizer_fault(const Manifest& manifest);

}  // namespace txport::core
