// Splitting of sentences that are longer than the model supports. The Python twin is txport.runtime.documents.cuts.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "documents/layout.hpp"

namespace txport::core {

// Split a segment of a document into segments that fit. Each part ends after clause punctuation in the second half of
// the longest text that fits, otherwise at white space, otherwise between tokens. `fitting` returns how many characters
// at the beginning of a text the model supports. No part has more than `max_characters`.
std::vector<Segment> cut(std::u32string_view text, const Segment& segment,
                         const std::function<std::size_t(std::u32string_view)>& fitting, std::size_t max_characters);

}  // namespace txport::core
