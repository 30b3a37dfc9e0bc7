// Results of a Translator.
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
  Ids ids;                                    // without bos; the last one is eos unless the maximum length was reached
  std::optional<std::vector<double>> scores;  // natural log-probability of each id, if requested
  bool truncated = false;                     // the sentence was longer than the bundle supports and was truncated
  bool finished = true;                       // it ended with eos or is empty; false if it reached the maximum length
  bool looped = false;  // it ends with at least three repetitions of one phrase, at least twelve tokens
  // Beam search: log-probability divided by a power of the length.
  std::optional<double> score;
  std::optional<Alignment> alignment;  // if requested; none for an empty sentence
  // `[ids, source ids]`, attention of each id over the source ids, averaged as in text/alignment.hpp, if requested;
  // none for an empty sentence.
  std::optional<FloatMatrix> attention;
  // All translations that `n_best` or `alternatives` requested, this one first; empty for a single one.
  std::vector<Translation> hypotheses;
};

// Return whether ids end with at least three repetitions of one sequence, at least twelve ids in total.
bool looped(const Ids& ids);

// Score of a given translation.
struct Score {
  Ids ids;                     // target ids without bos, including eos
  std::vector<double> scores;  // natural log-probability of each id given the ids before it
};

// One token of a stream: the id, the text that it completes (often empty), and its score if requested.
struct Piece {
  std::int64_t id = 0;
  std::string text;
  std::optional<double> score;
};

}  // namespace txport::core
