// SHA-256, as 64 lower-case hexadecimal digits.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace txport::core {

// Return the SHA-256 of some bytes.
std::string sha256(std::string_view data);

// Return the SHA-256 of a file, which is read in chunks. Throws std::system_error.
std::string sha256_of(const std::filesystem::path& path);

}  // namespace txport::core
