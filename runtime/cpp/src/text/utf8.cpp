#include "text/utf8.hpp"

#include <cstdint>

namespace txport::core {

namespace {

unsigned byte_at(std::string_view bytes, std::size_t index) { return static_cast<unsigned char>(bytes[index]); }

bool between(unsigned value, unsigned low, unsigned high) { return low <= value && value <= high; }

// The length of the character that begins at `start`, or 0 if none does (Unicode 15, table 3-7).
std::size_t character_length(std::string_view bytes, std::size_t start) {
  const unsigned first = byte_at(bytes, start);
  if (first < 0x80) return 1;
  const std::size_t length = between(first, 0xC2, 0xDF)   ? 2
                             : between(first, 0xE0, 0xEF) ? 3
                             : between(first, 0xF0, 0xF4) ? 4
                                                          : 0;
  if (length == 0 || bytes.size() - start < length) return 0;
  // The second byte excludes overlong forms, surrogates and what is beyond U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (!between(byte_at(bytes, start + 1), low, high)) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (!between(byte_at(bytes, start + i), 0x80, 0xBF)) return 0;
  }
  return length;
}

std::uint32_t code_point(std::string_view text, std::size_t start, std::size_t length) {
  const unsigned first = byte_at(text, start);
  std::uint32_t result = length == 1 ? first : first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) result = (result << 6) | (byte_at(text, start + i) & 0x3FU);
  return result;
}

// Category Zs, or bidirectional class WS, B or S: what Python's str.isspace accepts.
bool is_space(std::uint32_t code) {
  return between(code, 0x09, 0x0D) || between(code, 0x1C, 0x20) || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         between(code, 0x2000, 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

}  // namespace

std::optional<std::size_t> utf8_fault(std::string_view bytes) {
  for (std::size_t start = 0; start < bytes.size();) {
    const std::size_t length = character_length(bytes, start);
    if (length == 0) return start;
    start += length;
  }
  return std::nullopt;
}

bool is_blank(std::string_view text) {
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t length = character_length(text, start);
    if (length == 0 || !is_space(code_point(text, start, length))) return false;
    start += length;
  }
  return true;
}

std::size_t certain_length(std::string_view text) {
  constexpr std::string_view replacement = "\xEF\xBF\xBD";
  while (text.size() >= replacement.size() && text.substr(text.size() - replacement.size()) == replacement) {
    text.remove_suffix(replacement.size());
  }
  return text.size();
}

}  // namespace txport::core
