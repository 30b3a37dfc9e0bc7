// Constraints between the fields of a manifest, beyond their types. The Python twin is txport.runtime.bundle.rules.
#pragma once

#include <string>

#include "bundle/manifest.hpp"

namespace txport::core {

// Throw BundleError with the first contradiction. Basic rules are checked first. `file` is the manifest's name in
// messages.
void check_rules(const Manifest& manifest, const std::string& file);

// Return whether a text consists of 64 lower-case hexadecimal digits.
bool is_hash(const std::string& text);

}  // namespace txport::core
