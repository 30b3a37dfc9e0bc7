// What a Translator gives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// The translation of one sentence.
struct Translation {
  std::string text;                           // empty for an empty sentence
  Ids ids;                                    // without bos; the last is eos unless the maximum length came first
  std::optional<std::vector<double>> scores;  // the natural logarithm of each id's probability, if requested
  bool truncated = false;                     // the sentence was longer than the bundle takes and was cut
  bool finished = true;                       // it ended with eos, not at the maximum length, or is empty
  bool looped = false;  // its end repeats a phrase at least three times, over at least twelve tokens
  // What a beam search ranked it by: its log-probability divided by a power of its length.
  std::optional<double> score;
  std::optional<Alignment> alignment;  // if requested; none for an empty sentence
  // `[ids, source ids]`, how much each id attended to each source id: the average of text/alignment.hpp; likewise.
  std::optional<FloatMatrix> attention;
  // All that `n_best` or `alternatives` asked for, this one first; empty if only one was asked for.
  std::vector<Translation> hypotheses;
};

// Whether ids end with one sequence three times in a row at least, and twelve ids of it.
bool looped(const Ids& ids);

// How likely a model takes a given translation for.
struct Score {
  Ids ids;                     // without bos, the end included
  std::vector<double> scores;  // the natural logarithm of each id's probability after those before it
};

// One step of a stream: the id, the text that became certain by it (perhaps none), its score if requested.
struct Piece {
  std::int64_t id = 0;
  std::string text;
  std::optional<double> score;
};

}  // namespace txport::core
