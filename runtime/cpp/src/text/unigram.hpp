// Segmentation by a unigram model in the arithmetic of another version of SentencePiece. The Python twin, which
// explains the difference, is txport.runtime.text.unigram.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine.hpp"
#include "text/pieces.hpp"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace txport::core {

// Return whether the linked SentencePiece adds scores in float32, as from version 0.2.2 on, instead of float64.
bool library_sums_in_float32();

// The pieces of a unigram model, with the best segmentation of a text. Threads may share it.
class Unigram {
 public:
  // `model`: the bytes of a SentencePiece model that passes `check_sentencepiece`. `in_float32`: the arithmetic.
  Unigram(std::string model, bool in_float32);
  ~Unigram();
  Unigram(const Unigram&) = delete;
  Unigram& operator=(const Unigram&) = delete;

  // Return whether a model is a unigram model. Only these depend on the arithmetic.
  static bool is_unigram(std::string_view model);

  // Return the pieces of a text. Consecutive unknown characters are one piece, or bytes.
  Pieces segment(std::string_view text) const;

 private:
  struct Edge {
    std::int64_t id;
    double score;
  };
  struct Normal;

  const std::string model_;  // keys of `edges_` are parts of it
  const bool in_float32_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> normaliser_;
  std::unordered_map<std::string_view, Edge> edges_;
  std::array<std::size_t, 256> longest_{};  // bytes of the longest piece, by its first byte
  Edge unknown_{-1, 0};
  Ids bytes_;  // ids of byte pieces; empty if unknown characters do not become bytes

  Normal normalise(std::string_view text) const;
  std::vector<std::size_t> best_starts(std::string_view text) const;
  void add_unknown(Pieces& pieces, std::string_view text, const Span& span) const;
};

}  // namespace txport::core
