#include "bundle/protobuf.hpp"

#include "errors.hpp"

namespace txport::core {

namespace {

// Wire types.
constexpr std::uint64_t kVarint = 0;
constexpr std::uint64_t kFixed64 = 1;
constexpr std::uint64_t kBytes = 2;
constexpr std::uint64_t kFixed32 = 5;

std::string varint_of(std::uint64_t value) {
  std::string result;
  for (; value >= 128; value >>= 7U) result.push_back(static_cast<char>((value & 127U) | 128U));
  result.push_back(static_cast<char>(value));
  return result;
}

}  // namespace

std::optional<Field> Fields::next() {
  if (rest_.empty()) return std::nullopt;
  const std::string_view before = rest_;
  const std::uint64_t key = varint();
  if (key >> 32U != 0) refuse();  // parsers truncate it to the tag of another field
  Field field{key, key >> 3U, 0, {}, {}};
  switch (key & 7U) {
    case kVarint:
      field.value = varint();
      break;
    case kBytes:
      field.bytes = take(varint());
      break;
    case kFixed32:
      take(4);
      break;
    case kFixed64:
      take(8);
      break;
    default:
      refuse();
  }
  field.whole = before.substr(0, before.size() - rest_.size());
  return field;
}

void Fields::refuse() const { throw BundleError(fault_); }

std::string_view Fields::take(std::uint64_t size) {
  if (size > rest_.size()) refuse();
  const std::string_view value = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return value;
}

std::uint64_t Fields::varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(take(1).front());
    value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) return value;
  }
  refuse();
}

std::string field_of(std::uint64_t number, std::string_view bytes) {
  return varint_of(number << 3U | kBytes) + varint_of(bytes.size()) + std::string(bytes);
}

}  // namespace txport::core
