// UTF-8: whether bytes are, and whether a text has anything but white space.
#pragma once

#include <optional>
#include <string_view>

namespace txport::core {

// Where the first sequence that is not UTF-8 (RFC 3629) begins, or nothing. The same byte that Python's decoder names.
std::optional<std::size_t> utf8_fault(std::string_view bytes);

// Whether valid UTF-8 is empty or white space only, as Python's str.isspace has it.
bool is_blank(std::string_view text);

// The length without replacement characters (U+FFFD) at the end, which may be the first bytes of a character.
std::size_t certain_length(std::string_view text);

}  // namespace txport::core
