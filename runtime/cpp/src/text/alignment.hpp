// Word alignment from cross-attention. The Python twin is txport.runtime.text.alignment.
//
// Attention is averaged over the heads that are known to align (`alignment_heads` of the manifest), otherwise over all
// heads of the last kLastLayers layers. If no head was trained to align, the last but one layer aligns best (Garg et
// al. 2019, "Jointly Learning to Align and Translate with Transformer Models", section 4.1). A target token is aligned
// to the source token with the highest average attention. Two words are aligned if any of their tokens are (section 4.3
// there). Attention is not designed as an alignment: check the results before you rely on them.
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
// Position of tokens that are not aligned.
inline constexpr std::int64_t kNotAligned = -1;

// A byte range [start, end) of a text.
struct Span {
  std::size_t start = 0;
  std::size_t end = 0;
};

// Two aligned words: the index of the source word and of the target word.
struct WordPair {
  std::size_t source = 0;
  std::size_t target = 0;
};

// Alignment of a translation with its source.
struct Alignment {
  // Position of the source id that each target id is aligned with; kNotAligned for ids that never produce text (eos,
  // language tokens).
  Ids tokens;
  // Byte range of each source id in the sentence, without white space; empty for ids that are not part of the text and
  // for ids that are only a space.
  std::vector<Span> source_spans;
  // Byte range of each target id in the translation. A character of several ids belongs to the last of them.
  std::vector<Span> target_spans;
  // Byte ranges of words, which are separated by white space. For languages without spaces, use tokens.
  std::vector<Span> source_words;
  std::vector<Span> target_words;
  std::vector<WordPair> words;  // each pair once, sorted
  std::string pharaoh;          // these pairs in Pharaoh format: "0-0 1-2", source first
  // For a model that reads vectors at a known rate, the time in seconds at which the vector of each id begins;
  // kNotAligned for ids without a vector.
  std::vector<double> times;
};

// Return the average attention `[targets, sources]` of the given (layer, head) pairs. An empty list selects all heads
// of the last kLastLayers layers.
FloatMatrix averaged(const CrossAttention& cross, const std::vector<std::pair<std::int64_t, std::int64_t>>& heads);

// Return for each row of `attention` the candidate column with the highest value, the first of equal ones. Rows that
// are not `aligned` get kNotAligned, as do all rows if there are no candidates.
Ids align_tokens(const FloatMatrix& attention, const std::vector<std::size_t>& candidates,
                 const std::vector<bool>& aligned);

// Return the seconds at which the vectors `tokens` begin, with `rate` vectors per second; kNotAligned for none.
std::vector<double> times_of(const Ids& tokens, double rate);

// Return the byte ranges of the words of a UTF-8 text.
std::vector<Span> words_of(std::string_view text);

// Return a span without white space around it. A span of white space becomes empty, at its end.
Span stripped(const Span& span, std::string_view text);

// Compute `words` and `pharaoh` from the other members. Two words are aligned if any of their tokens are. A token
// without characters belongs to the word that follows.
void align_words(Alignment& alignment);

}  // namespace txport::core
