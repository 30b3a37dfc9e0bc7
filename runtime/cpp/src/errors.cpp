#include "errors.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

namespace txport::core {

namespace {
constexpr std::size_t kMaxQuoted = 200;
}

bool is_out_of_memory(const std::string& message) {
  std::string letters;  // to match CUDA_ERROR_OUT_OF_MEMORY, "out of memory" and OutOfMemory
  for (const char character : message) {
    if (character != ' ' && character != '_') letters += static_cast<char>(character | ('A' ^ 'a'));
  }
  constexpr std::array kWords{"outofmemory", "badalloc", "failedtoallocate", "couldnotbeallocated"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](const char* words) { return letters.find(words) != std::string::npos; });
}

void throw_io_failure(const std::string& what, int code) {
#ifdef EDQUOT
  constexpr int kQuota = EDQUOT;
#else
  constexpr int kQuota = ENOSPC;  // Windows has no EDQUOT
#endif
  constexpr std::array kExhausted{ENOSPC, kQuota, ENOMEM, EMFILE, ENFILE, EIO};
  if (std::find(kExhausted.begin(), kExhausted.end(), code) != kExhausted.end()) throw ResourceError(what);
  throw InputError(what);
}

std::string quote(const std::string& text) {
  std::string result = "'";
  for (const char character : text.substr(0, kMaxQuoted)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7F) {
      result += "\\x";
      result += "0123456789abcdef"[byte >> 4];
      result += "0123456789abcdef"[byte & 15];
    } else {
      result += character;
    }
  }
  return result + (text.size() > kMaxQuoted ? "...'" : "'");
}

}  // namespace txport::core
