// Where SentencePiece found each piece of a text: the message SentencePieceText that it serializes.
//
// Releases from 0.1.97 on have classes that read the message; Ubuntu 22.04 has an older one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// The pieces of a text, one after the other.
struct Pieces {
  Ids ids;  // of the model file
  std::vector<std::string> texts;
  std::vector<Span> spans;  // the bytes of the text that each stands for
};

// Throws BundleError: this is not such a message.
Pieces read_pieces(std::string_view message);

}  // namespace txport::core
