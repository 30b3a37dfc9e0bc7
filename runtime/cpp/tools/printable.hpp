// Messages without characters that control a terminal.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace txport::tools {

// Return a text of UTF-8 with escapes such as \x1b instead of control characters, except line ends and tabs, and of
// controls of the direction of text, as Python's `printable`: names in a message may come from a stranger's file.
inline std::string printable(std::string_view text) {
  std::string result;
  char escape[8];
  const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const unsigned first = byte(i);
    const unsigned second = byte(i + 1);
    const unsigned third = byte(i + 2);
    if (first == '\r') {
      std::snprintf(escape, sizeof escape, "\\r");
    } else if ((first < 0x20 && first != '\n' && first != '\t') || first == 0x7F) {
      std::snprintf(escape, sizeof escape, "\\x%02x", first);
    } else if (first == 0xC2 && second >= 0x80 && second < 0xA0) {  // U+0080 to U+009F
      std::snprintf(escape, sizeof escape, "\\x%02x", second);
      i += 1;
    } else if (first == 0xE2 && ((second == 0x80 && third >= 0xAA && third <= 0xAE) ||
                                 (second == 0x81 && third >= 0xA6 && third <= 0xA9))) {  // U+202A on, U+2066 on
      std::snprintf(escape, sizeof escape, "\\u%04x", 0x2000 + ((second & 0x3F) << 6) + (third & 0x3F));
      i += 2;
    } else {
      result += text[i];
      continue;
    }
    result += escape;
  }
  return result;
}

}  // namespace txport::tools
