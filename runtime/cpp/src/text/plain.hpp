// Files that are not lines of text, recognised by their names and first bytes. The Python runtime recognises the same.
#pragma once

#include <string>
#include <string_view>

namespace txport::core {

// Number of first bytes to look at.
constexpr std::size_t kPeek = std::size_t{1} << 13;

// Check that the ending of a file is not that of another format, in any letter case. Throws InputError: it is.
void check_name(const std::string& path);

// Check that the first bytes of a file may be those of a text. Throws InputError: they are those of another format.
void check_content(const std::string& path, std::string_view first);

}  // namespace txport::core
