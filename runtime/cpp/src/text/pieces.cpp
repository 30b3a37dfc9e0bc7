#include "text/pieces.hpp"

#include <cstdint>

#include "bundle/protobuf.hpp"

namespace txport::core {

namespace {

// Field numbers of sentencepiece.proto.
constexpr std::uint64_t kPieces = 2;
constexpr std::uint64_t kPiece = 1;
constexpr std::uint64_t kId = 2;
constexpr std::uint64_t kBegin = 4;
constexpr std::uint64_t kEnd = 5;
constexpr const char* kFault = "SentencePiece failed: its pieces cannot be read";

}  // namespace

Pieces read_pieces(std::string_view message) {
  Pieces pieces;
  Fields fields(message, kFault);
  while (const auto field = fields.next()) {
    if (field->number != kPieces) continue;
    Span& span = pieces.spans.emplace_back();
    std::string& text = pieces.texts.emplace_back();
    std::int64_t& id = pieces.ids.emplace_back();
    Fields piece(field->bytes, kFault);
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
