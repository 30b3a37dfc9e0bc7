// Where SentencePiece found each piece of a text: the message SentencePieceText that it serializes.
//
// Releases from 0.1.97 on have classes that read the message; Ubuntu 22.04 has an older one.
#pragma once

#include <string_view>
#include <vector>

#include "text/alignment.hpp"

namespace txport::core {

// The bytes of the text that each piece stands for. Throws BundleError: this is no such message.
std::vector<Span> piece_spans(std::string_view message);

}  // namespace txport::core
