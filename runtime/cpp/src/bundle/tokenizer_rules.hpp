// Constraints on the field `tokenizer` of a manifest, beyond types. The Python twin is
// txport.runtime.bundle.tokenizer_rules.
#pragma once

#include <string>

#include "bundle/manifest.hpp"

namespace txport::core {

// Return a message about the first contradiction; empty if there is none.
std::string tokenizer_fault(const Manifest& manifest);

}  // namespace txport::core
