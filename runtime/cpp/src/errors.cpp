#include "errors.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <regex>

namespace txport::core {

namespace {
constexpr std::size_t kMost = 200;
}

bool is_out_of_memory(const std::string& message) {
  static const std::regex words("out[ _]?of[ _]?memory|bad[_ ]alloc|failed to allocate|could not be allocated",
                                std::regex::icase);
  return std::regex_search(message, words);
}

void throw_io_failure(const std::string& what, int code) {
  constexpr std::array kExhausted{ENOSPC, EDQUOT, ENOMEM, EMFILE, ENFILE, EIO};
  if (std::find(kExhausted.begin(), kExhausted.end(), code) != kExhausted.end()) throw ResourceError(what);
  throw InputError(what);
}

std::string quote(const std::string& text) {
  std::string result = "'";
  for (const char character : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7F) {
      result += "\\x";
      result += "0123456789abcdef"[byte >> 4];
      result += "0123456789abcdef"[byte & 15];
    } else {
      result += character;
    }
  }
  return result + (text.size() > kMost ? "...'" : "'");
}

}  // namespace txport::core
