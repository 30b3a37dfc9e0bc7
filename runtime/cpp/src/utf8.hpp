// Validation of UTF-8, and access to the characters of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace txport::core {

// Return the offset of the first byte that is not UTF-8 (RFC 3629), if any. Python's decoder reports the same byte.
std::optional<std::size_t> utf8_fault(std::string_view bytes);

// Throw InputError if bytes are not UTF-8. `what` is their name in the message; `advice` continues the message.
void check_utf8(std::string_view bytes, const std::string& what, const std::string& advice = "");

// Replace each truncated character and each other invalid byte with U+FFFD, as Unicode recommends (chapter 3.9) and as
// Python's errors="replace" does.
std::string replace_faults(std::string_view bytes);

// Remove invalid bytes, as Python's errors="ignore" does.
std::string without_faults(std::string_view bytes);

// Return a text with escapes such as \x1b instead of control characters, except line ends and tabs, of controls of the
// direction of text, and of invalid bytes. Names in a message may come from a stranger's file.
std::string printable(std::string_view bytes);

// Return whether valid UTF-8 is empty or contains only white space, as defined by Python's str.isspace.
bool is_blank(std::string_view text);

// Return whether a code point has Unicode's property White_Space.
bool is_white_space(std::uint32_t code);

// Return whether a code point is white space, as defined by Python's str.isspace.
bool is_space(std::uint32_t code);

// Decode valid UTF-8 to characters, and encode characters as UTF-8.
std::u32string characters_of(std::string_view text);
std::string utf8_of(std::u32string_view characters);

// A character of a text: its length in bytes, its code point, and whether it is white space, as defined by Python's
// str.isspace.
struct Character {
  std::size_t length = 0;
  std::uint32_t code = 0;
  bool is_space = false;
};

// Return the character at `start`, which must be inside the text. An invalid byte is returned as U+FFFD.
Character character_at(std::string_view text, std::size_t start);

// Return the start of the character that ends at `end`, which must not be 0.
std::size_t character_before(std::string_view text, std::size_t end);

// Return the start of the character that contains the byte at `position`, and the end of the character that contains
// the byte before `position`. Positions 0 and text.size() are returned unchanged.
std::size_t character_begin(std::string_view text, std::size_t position);
std::size_t character_end(std::string_view text, std::size_t position);

// Return the start of the white space that ends at `end`, and the end of the white space that begins at `start`.
// Without white space there, `end` and `start` are returned unchanged.
std::size_t before_space(std::string_view text, std::size_t end);
std::size_t after_space(std::string_view text, std::size_t start);

// Return the number of characters of valid UTF-8.
std::size_t count_characters(std::string_view text);

// Return the length without replacement characters (U+FFFD) at the end, which may stand for incomplete characters.
std::size_t certain_length(std::string_view text);

}  // namespace txport::core
