#include "errors.hpp"

namespace txport::core {

namespace {
constexpr std::size_t kMost = 200;
}

void throw_failure(const std::string& message) {
  for (const char* words :
       {"out of memory", "OutOfMemory", "bad_alloc", "bad allocation", "Failed to allocate memory"}) {
    if (message.find(words) != std::string::npos) throw ResourceError(message);
  }
  throw EngineError(message);
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
