// What a character is: a letter, a number, white space or another one.
#pragma once

#include <cstdint>

namespace txport::core {

enum class Kind { other, letter, number, space };

// By Unicode's general categories L and N, and its property White_Space.
Kind kind_of(std::uint32_t code);

// Whether a character is of a word: letters, marks, decimal digits, connectors and joiners (\\w of the library
// `tokenizers`).
bool is_word(std::uint32_t code);

// Whether a character is in lower case: by Unicode's property Lowercase.
bool is_lower(std::uint32_t code);

}  // namespace txport::core
