// UTF-8: whether bytes are, and the characters of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace txport::core {

// Where the first sequence that is not UTF-8 (RFC 3629) begins, or nothing. The same byte that Python's decoder names.
std::optional<std::size_t> utf8_fault(std::string_view bytes);

// Throws InputError if bytes are not UTF-8; `what` names them, and `advice` may continue the sentence.
void check_utf8(std::string_view bytes, const std::string& what, const std::string& advice = "");

// The bytes with U+FFFD for each longest beginning of a character that is cut, and for each other byte that is wrong:
// as Unicode recommends (chapter 3.9) and Python's errors="replace" has it.
std::string replace_faults(std::string_view bytes);

// The bytes without invalid ones, as Python's errors="ignore" returns them.
std::string without_faults(std::string_view bytes);

// Whether valid UTF-8 is empty or white space only, as Python's str.isspace has it.
bool is_blank(std::string_view text);

// Whether a code point has Unicode's property White_Space.
bool is_white_space(std::uint32_t code);

// Whether a code point is white space, as Python's str.isspace has it.
bool is_space(std::uint32_t code);

// The characters of valid UTF-8, and the UTF-8 of characters.
std::u32string characters_of(std::string_view text);
std::string utf8_of(std::u32string_view characters);

// A character of a text: its bytes, its code point, and whether it is white space, as Python's str.isspace has it.
struct Character {
  std::size_t length = 0;
  std::uint32_t code = 0;
  bool is_space = false;
};

// The one that begins at `start`, inside the text; a byte that begins none is taken for U+FFFD.
Character character_at(std::string_view text, std::size_t start);

// Where the character begins that ends at `end`, which is after the beginning.
std::size_t character_before(std::string_view text, std::size_t end);

// Where the character of the byte at `place` begins, and where that of the byte before `place` ends; both ends of the
// text do not change.
std::size_t character_begin(std::string_view text, std::size_t place);
std::size_t character_end(std::string_view text, std::size_t place);

// Where the white space begins that ends at `end`, and where that ends which begins at `start`; there if there is none.
std::size_t before_space(std::string_view text, std::size_t end);
std::size_t after_space(std::string_view text, std::size_t start);

// How many characters valid UTF-8 has.
std::size_t count_characters(std::string_view text);

// The length without replacement characters (U+FFFD) at the end, which may be the first bytes of a character.
std::size_t certain_length(std::string_view text);

}  // namespace txport::core
