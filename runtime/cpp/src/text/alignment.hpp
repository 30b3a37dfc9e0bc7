// Which words of a source a translation's words come from, read off cross-attention; txport.runtime.text.alignment is
// the same in Python.
//
// The weights of the heads that are known to align (`alignment_heads` of the manifest) are averaged, or of all heads of
// the last kLastLayers layers: the last but one aligns best if no head was trained for it (Garg et al.
// 2019, "Jointly Learning to Align and Translate with Transformer Models", section 4.1; with one layer, that one). A
// token is aligned to the token of the source text to which the average gives most, and two words are if any of their
// tokens are (section 4.3 there). Attention is not an alignment by definition: check the results before you rely on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine.hpp"

namespace txport::core {

inline constexpr std::size_t kLastLayers = 2;
// Instead of a position, for a token that is not aligned.
inline constexpr std::int64_t kNotAligned = -1;

// Bytes of a text: the first, and the one after the last.
struct Span {
  std::size_t start = 0;
  std::size_t end = 0;
};

// The number of a word of the source, and of one of the translation.
struct WordPair {
  std::size_t source = 0;
  std::size_t target = 0;
};

// Where a translation comes from.
struct Alignment {
  // For each id of the translation, the position in the source ids that it comes from; kNotAligned for ids that leave
  // no text by their nature (eos, a forced language).
  Ids tokens;
  // Of each source id in the sentence, without white space; empty for ids that are not of the text, and where a
  // tokenizer puts a space only.
  std::vector<Span> source_spans;
  // Of each id of the translation in its text, likewise; where an id completes a character that others began, that one
  // has it.
  std::vector<Span> target_spans;
  // Of each word, which is what white space separates: in a language without spaces look at tokens.
  std::vector<Span> source_words;
  std::vector<Span> target_words;
  std::vector<WordPair> words;  // each pair once, in order
  std::string pharaoh;          // these pairs as fast_align, Marian and Pharaoh write them: "0-0 1-2", source first
  // Of a model that reads vectors at a known rate, the time in seconds at which the vector of each id begins;
  // kNotAligned for ids without one.
  std::vector<double> times;
};

// Cross-attention `[layers, heads, targets, sources]` of one sentence and its translation.
struct CrossAttention {
  std::size_t layers = 0;
  std::size_t heads = 0;
  std::size_t targets = 0;
  std::size_t sources = 0;
  std::vector<float> values;
};

// The average `[targets, sources]` of the heads that align: (layer, head) of each, or none for all of the last layers.
FloatMatrix averaged(const CrossAttention& cross, const std::vector<std::pair<std::int64_t, std::int64_t>>& heads);

// For each row of `attention`, as `averaged` gives it, the candidate with the most, the first of equal ones;
// kNotAligned for rows that are not `aligned`, and if there are no candidates.
Ids align_tokens(const FloatMatrix& attention, const std::vector<std::size_t>& candidates,
                 const std::vector<bool>& aligned);

// The seconds at which the vectors `tokens` begin, at this number of vectors per second; kNotAligned for none.
std::vector<double> times_of(const Ids& tokens, double rate);

// The words of a text in UTF-8.
std::vector<Span> words_of(std::string_view text);

// A span without white space around it; a span of spaces only becomes empty, at its end.
Span stripped(const Span& span, std::string_view text);

// Fill in `words` and `pharaoh` of an alignment from the rest of it: pairs of words of which any tokens are aligned. A
// token without characters counts to the word that follows.
void align_words(Alignment& alignment);

}  // namespace txport::core
