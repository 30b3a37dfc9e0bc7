// SHA-256, as 64 lower-case hexadecimal digits.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace txport::core {

// That of some bytes.
std::string sha256(std::string_view data);

// That of a file, which is streamed, never held in memory. Throws std::system_error.
std::string sha256_of(const std::filesystem::path& path);

}  // namespace txport::core
