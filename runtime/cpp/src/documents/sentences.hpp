// Rules that split a line of text into sentences. The Python twin, txport.runtime.documents.sentences, explains them.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "documents/abbreviations.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// Return whether a character is a bracket or quote that may follow the end of a sentence.
bool is_closing(char32_t character);

// Return whether a character is a letter or a number, as in Python's str.isalnum.
bool is_word_character(char32_t character);

// Return the character span of each sentence between `start` and `end` of a text, without white space around it.
std::vector<Span> sentences(std::u32string_view text, std::size_t start, std::size_t end, const Abbreviations& rules);

}  // namespace txport::core
