// Sentences of a line of text, by rules, which txport.runtime.documents.sentences, the same in Python, explains.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "documents/abbreviations.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// What closes after a sentence: brackets and quotes.
bool is_closing(char32_t character);

// Whether a character is a letter or a number, as Python's str.isalnum has it.
bool is_word_character(char32_t character);

// The characters of each sentence between `start` and `end` of a text, without white space around them.
std::vector<Span> sentences(std::u32string_view text, std::size_t start, std::size_t end, const Abbreviations& rules);

}  // namespace txport::core
