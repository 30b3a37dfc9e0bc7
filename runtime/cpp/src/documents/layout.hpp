// Splitting of a document into segments to translate and the layout between them, which does not change. The Python
// twin is txport.runtime.documents.layout, which defines segments.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "documents/abbreviations.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// A line break inside a segment: the position of the space that replaces it in the segment's text, and the break with
// the white space around it.
struct Break {
  std::size_t position = 0;
  std::u32string layout;
};

// A segment of a document to translate.
struct Segment {
  std::size_t start = 0;  // characters [start, end) of the document
  std::size_t end = 0;
  std::u32string text;  // one space replaces each line break and the white space around it
  std::vector<Break> breaks;
  bool cut = false;  // a part of a sentence that is longer than the model supports
};

// Return the segments of a document, in order.
std::vector<Segment> split(std::u32string_view text, const Abbreviations& rules);

// Return the segment of the characters [start, end) of a document.
Segment segment_of(std::u32string_view text, std::size_t start, std::size_t end, bool cut = false);

// Return the document with translated segments, and the character span of each translation.
std::pair<std::u32string, std::vector<Span>> join(std::u32string_view text, const std::vector<Segment>& segments,
                                                  const std::vector<std::u32string>& translations);

}  // namespace txport::core
