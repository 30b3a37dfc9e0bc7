#include "text/pieces.hpp"

#include <cstdint>
#include <optional>

#include "errors.hpp"

namespace txport::core {

namespace {

// Numbers of fields in sentencepiece.proto, and how the wire has them (protobuf.dev/programming-guides/encoding).
constexpr std::uint64_t kPieces = 2;
constexpr std::uint64_t kPiece = 1;
constexpr std::uint64_t kId = 2;
constexpr std::uint64_t kBegin = 4;
constexpr std::uint64_t kEnd = 5;
constexpr std::uint64_t kVarint = 0;
constexpr std::uint64_t kFixed64 = 1;
constexpr std::uint64_t kBytes = 2;
constexpr std::uint64_t kFixed32 = 5;

// One field of a message: its number, and its value as a number or as bytes.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;
  std::string_view bytes;
};

// The fields of a message, one after the other.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  std::optional<Field> next() {
    if (rest_.empty()) return std::nullopt;
    const std::uint64_t key = varint();
    Field field{key >> 3U, 0, {}};
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
    return field;
  }

 private:
  std::string_view rest_;

  [[noreturn]] static void refuse() { throw BundleError("SentencePiece failed: its pieces cannot be read"); }

  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) refuse();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return value;
    }
    refuse();
  }
};

}  // namespace

Pieces read_pieces(std::string_view message) {
  Pieces pieces;
  Fields fields(message);
  while (const auto field = fields.next()) {
    if (field->number != kPieces) continue;
    Span& span = pieces.spans.emplace_back();
    std::string& text = pieces.texts.emplace_back();
    std::int64_t& id = pieces.ids.emplace_back();
    Fields piece(field->bytes);
    while (const auto part = piece.next()) {
      if (part->number == kPiece) text = part->bytes;
      if (part->number == kId) id = static_cast<std::int64_t>(part->value);
      if (part->number == kBegin) span.start = part->value;
      if (part->number == kEnd) span.end = part->value;
    }
  }
  return pieces;
}

}  // namespace txport::core
