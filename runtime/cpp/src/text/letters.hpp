// Unicode classes of characters.
#pragma once

#include <cstdint>

namespace txport::core {

enum class Kind { other, letter, number, space };

// Return the kind of a character, according to Unicode's general categories L and N and the property White_Space.
Kind kind_of(std::uint32_t code);

// Return whether a character matches \\w of the `tokenizers` library: letters, marks, decimal digits, connectors and
// joiners.
bool is_word(std::uint32_t code);

// Return whether a character has Unicode's property Lowercase.
bool is_lower(std::uint32_t code);

}  // namespace txport::core
