// Parser for SentencePieceText, the protobuf message with the position of each piece of a text.
//
// SentencePiece 0.1.97 and newer have classes for this message, but Ubuntu 22.04 has an older release.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// The pieces of a text, in order.
struct Pieces {
  Ids ids;  // ids of the model file
  std::vector<std::string> texts;
  std::vector<Span> spans;  // byte range of each piece in the text
};

// Parse a message. Throws BundleError: it is not a SentencePieceText.
Pieces read_pieces(std::string_view message);

}  // namespace txport::core
