// Field-by-field reader of Protocol Buffers messages (protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace txport::core {

// One field of a message: its tag (the number times 8 plus the wire type), its number, its value as a number or as
// bytes, and all of its bytes.
struct Field {
  std::uint64_t tag = 0;
  std::uint64_t number = 0;
  std::uint64_t value = 0;
  std::string_view bytes;
  std::string_view whole;
};

// Iterates over the fields of a message. Throws BundleError with the text `fault` if the message is invalid.
class Fields {
 public:
  Fields(std::string_view message, const char* fault) : rest_(message), fault_(fault) {}

  std::optional<Field> next();

 private:
  std::string_view rest_;
  const char* fault_;

  [[noreturn]] void refuse() const;
  std::string_view take(std::uint64_t size);
  std::uint64_t varint();
};

// Return an encoded field of bytes.
std::string field_of(std::uint64_t number, std::string_view bytes);

}  // namespace txport::core
