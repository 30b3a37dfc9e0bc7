#include "utf8.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "errors.hpp"

namespace txport::core {

namespace {

unsigned byte_at(std::string_view bytes, std::size_t index) { return static_cast<unsigned char>(bytes[index]); }

bool between(unsigned value, unsigned low, unsigned high) { return low <= value && value <= high; }

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Return how many valid bytes of the character at `start` are available, and its full length; 0 and 0 if no character
// begins there (Unicode 15, table 3-7).
std::pair<std::size_t, std::size_t> character(std::string_view bytes, std::size_t start) {
  const unsigned first = byte_at(bytes, start);
  if (first < 0x80) return {1, 1};
  const std::size_t length = between(first, 0xC2, 0xDF)   ? 2
                             : between(first, 0xE0, 0xEF) ? 3
                             : between(first, 0xF0, 0xF4) ? 4
                                                          : 0;
  if (length == 0) return {0, 0};
  // The second byte excludes overlong forms, surrogates and code points above U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    const bool second = i == 1;
    if (start + i >= bytes.size()) return {i, length};
    if (!between(byte_at(bytes, start + i), second ? low : 0x80, second ? high : 0xBF)) return {i, length};
  }
  return {length, length};
}

// Return the length of the character at `start`, or 0 if it is invalid or truncated.
std::size_t character_length(std::string_view bytes, std::size_t start) {
  const auto [available, length] = character(bytes, start);
  return available == length ? length : 0;
}

std::uint32_t code_point(std::string_view text, std::size_t start, std::size_t length) {
  const unsigned first = byte_at(text, start);
  std::uint32_t result = length == 1 ? first : first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) result = (result << 6) | (byte_at(text, start + i) & 0x3FU);
  return result;
}

// Return whether a byte is a continuation byte.
bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

}  // namespace

std::optional<std::size_t> utf8_fault(std::string_view bytes) {
  for (std::size_t start = 0; start < bytes.size();) {
    const std::size_t length = character_length(bytes, start);
    if (length == 0) return start;
    start += length;
  }
  return std::nullopt;
}

void check_utf8(std::string_view bytes, const std::string& what, const std::string& advice) {
  const auto fault = utf8_fault(bytes);
  if (!fault) return;
  const unsigned byte = byte_at(bytes, *fault);
  const std::string digits = {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  throw InputError(what + " is not UTF-8 (byte " + std::to_string(*fault + 1) + " is 0x" + digits +
                   "): convert the text, for example with iconv -t utf-8" + advice);
}

std::string replace_faults(std::string_view bytes) {
  std::string text;
  for (std::size_t start = 0; start < bytes.size();) {
    const auto [available, length] = character(bytes, start);
    const bool is_complete = length > 0 && available == length;
    text += is_complete ? bytes.substr(start, length) : kReplacement;
    start += available > 0 ? available : 1;
  }
  return text;
}

std::string without_faults(std::string_view bytes) {
  std::string text;
  for (std::size_t start = 0; start < bytes.size();) {
    const std::size_t length = character_length(bytes, start);
    text += bytes.substr(start, length);
    start += std::max<std::size_t>(1, length);
  }
  return text;
}

std::string printable(std::string_view bytes) {
  std::string result;
  std::array<char, 8> escape{};
  for (std::size_t at = 0; at < bytes.size();) {
    const Character character = character_at(bytes, at);
    const std::string_view part = bytes.substr(at, character.length);
    const std::uint32_t code = character.code;
    const bool is_invalid = code == 0xFFFD && character.length == 1;
    const bool is_control = code != '\n' && code != '\t' && (code < 0x20 || (0x7F <= code && code < 0xA0));
    const bool is_direction = (0x202A <= code && code <= 0x202E) || (0x2066 <= code && code <= 0x2069);
    at += character.length;
    if (code == '\r') {
      result += "\\r";
    } else if (is_invalid || is_control || is_direction) {
      const std::uint32_t shown = is_invalid ? static_cast<unsigned char>(part.front()) : code;
      std::snprintf(escape.data(), escape.size(), is_direction ? "\\u%04x" : "\\x%02x", shown);
      result += escape.data();
    } else {
      result += part;
    }
  }
  return result;
}

bool is_blank(std::string_view text) {
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t length = character_length(text, start);
    if (length == 0 || !is_space(code_point(text, start, length))) return false;
    start += length;
  }
  return true;
}

bool is_white_space(std::uint32_t code) {
  return between(code, 0x09, 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         between(code, 0x2000, 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

// Python's str.isspace accepts White_Space and the bidirectional classes B and S.
bool is_space(std::uint32_t code) { return is_white_space(code) || between(code, 0x1C, 0x1F); }

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (std::size_t start = 0; start < text.size();) {
    const Character next = character_at(text, start);
    characters += static_cast<char32_t>(next.code);
    start += next.length;
  }
  return characters;
}

std::string utf8_of(std::u32string_view characters) {
  std::string text;
  text.reserve(characters.size());
  const auto add = [&text](char32_t bits) { text += static_cast<char>(bits); };
  for (const char32_t code : characters) {
    if (code < 0x80) {
      add(code);
      continue;
    }
    if (code < 0x800) {
      add(0xC0 | code >> 6);
    } else if (code < 0x10000) {
      add(0xE0 | code >> 12);
      add(0x80 | (code >> 6 & 0x3F));
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3F));
      add(0x80 | (code >> 6 & 0x3F));
    }
    add(0x80 | (code & 0x3F));
  }
  return text;
}

Character character_at(std::string_view text, std::size_t start) {
  const std::size_t length = character_length(text, start);
  if (length == 0) return {1, 0xFFFD, false};
  const std::uint32_t code = code_point(text, start, length);
  return {length, code, is_space(code)};
}

std::size_t character_before(std::string_view text, std::size_t end) { return character_begin(text, end - 1); }

std::size_t character_begin(std::string_view text, std::size_t position) {
  while (position > 0 && position < text.size() && continues(text[position])) --position;
  return position;
}

std::size_t character_end(std::string_view text, std::size_t position) {
  while (position < text.size() && continues(text[position])) ++position;
  return position;
}

std::size_t before_space(std::string_view text, std::size_t end) {
  while (end > 0) {
    const std::size_t start = character_before(text, end);
    if (!is_white_space(character_at(text, start).code)) break;
    end = start;
  }
  return end;
}

std::size_t after_space(std::string_view text, std::size_t start) {
  while (start < text.size()) {
    const Character character = character_at(text, start);
    if (!is_white_space(character.code)) break;
    start += character.length;
  }
  return start;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char byte) { return !continues(byte); }));
}

std::size_t certain_length(std::string_view text) {
  while (text.size() >= kReplacement.size() && text.substr(text.size() - kReplacement.size()) == kReplacement) {
    text.remove_suffix(kReplacement.size());
  }
  return text.size();
}

}  // namespace txport::core
