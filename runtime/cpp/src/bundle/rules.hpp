// Constraints between the fields of a manifest, beyond their types; the same as txport.runtime.bundle.rules.
#pragma once

#include <string>

#include "bundle/manifest.hpp"

namespace txport::core {

// Throws BundleError with the first contradiction, the most basic first; `file` is the manifest's name in messages.
void check_rules(const Manifest& manifest, const std::string& file);

// Whether these are 64 lower-case hexadecimal digits.
bool is_hash(const std::string& text);

}  // namespace txport::core
