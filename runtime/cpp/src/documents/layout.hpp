// A document as segments to translate, and the layout between them, which is kept character for character;
// txport.runtime.documents.layout is the same in Python, and defines segments.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "documents/abbreviations.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// A line break inside a segment: where in the segment's text a space stands for it, and the break with the white space
// around it.
struct Break {
  std::size_t place = 0;
  std::u32string layout;
};

// A segment of a document to translate.
struct Segment {
  std::size_t start = 0;  // its first character in the document,
  std::size_t end = 0;    // and the one after the last
  std::u32string text;    // with one space instead of each line break and the white space around it
  std::vector<Break> breaks;
  bool cut = false;  // a part of a sentence that is longer than the model takes
};

// The segments of a document, in order.
std::vector<Segment> split(std::u32string_view text, const Abbreviations& rules);

// The segment of these characters of a document.
Segment segment_of(std::u32string_view text, std::size_t start, std::size_t end, bool cut = false);

// The document with translated segments, and the character span of each translation.
std::pair<std::u32string, std::vector<Span>> join(std::u32string_view text, const std::vector<Segment>& segments,
                                                  const std::vector<std::u32string>& translations);

}  // namespace txport::core
