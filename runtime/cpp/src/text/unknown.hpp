// Long runs of characters that are unknown to a SentencePiece model, which needs quadratic time for them.
//
// It makes one unknown piece of such a run, however long, so the middle of the run changes nothing.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/alignment.hpp"

namespace txport::core {

// A text of the same ids, and the removed text.
struct Shortened {
  struct Gap {
    std::size_t place;  // in the text that is left, in bytes
    std::size_t size;
  };
  std::string text;
  std::vector<Gap> gaps;

  // Spans of this text as those of the whole text.
  void locate(std::vector<Span>& spans) const;
};

// Leave out the middle of long runs of unknown characters. `is_unknown`: whether the model makes nothing but one
// unknown piece of some characters.
Shortened shortened(std::string_view text, const std::function<bool(std::string_view)>& is_unknown);

// The parts of a text that are normalised one by one: long runs are cut where the normalised text of both sides
// together is that of each. `normalise`: the normalised text of a short text.
std::vector<Span> blocks(std::string_view text, const std::function<std::string(std::string_view)>& normalise);

}  // namespace txport::core
