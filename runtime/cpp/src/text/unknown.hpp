// Shortening of long runs of unknown characters, for which SentencePiece needs quadratic time.
//
// SentencePiece encodes such a run as one unknown piece of any length, so the middle of the run can be removed.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/alignment.hpp"

namespace txport::core {

// A shortened text with the same ids, and the gaps where text was removed.
struct Shortened {
  struct Gap {
    std::size_t position;  // byte offset in the shortened text
    std::size_t size;      // removed bytes
  };
  std::string text;
  std::vector<Gap> gaps;

  // Convert spans of the shortened text to spans of the original text.
  void locate(std::vector<Span>& spans) const;
};

// Remove the middle of long runs of unknown characters. `is_unknown` returns whether the model encodes a text as one
// unknown piece.
Shortened shortened(std::string_view text, const std::function<bool(std::string_view)>& is_unknown);

// Split a text into blocks that can be normalised separately. Long runs are split at positions where normalising both
// sides together or separately gives the same text. `normalise` returns the normalised text of a short text.
std::vector<Span> blocks(std::string_view text, const std::function<std::string(std::string_view)>& normalise);

}  // namespace txport::core
