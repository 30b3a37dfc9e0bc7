// Parts of a sentence that is longer than a model takes; txport.runtime.documents.cuts is the same in Python.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "documents/layout.hpp"

namespace txport::core {

// The parts of a segment of a document that fit, as segments of their own: cut after punctuation that ends a clause, if
// there is some in the second half of what fits; else at white space; else between tokens. `fitting` returns how many
// characters at the beginning of a text the model takes, perhaps all of them; no part has more than `most`.
std::vector<Segment> cut(std::u32string_view text, const Segment& segment,
                         const std::function<std::size_t(std::u32string_view)>& fitting, std::size_t most);

}  // namespace txport::core
