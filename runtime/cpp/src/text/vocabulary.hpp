// vocabulary.json: the pieces of a SentencePiece model in the order of the Transformer's ids, if these differ from
// SentencePiece's ids.
//
//   {"format_version": 1, "pieces": ["</s>", null, "▁the", ...]}
//
// A piece's id is its index. null marks ids that produce no text: special tokens, languages, padding.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bundle/bundle.hpp"
#include "engine.hpp"

namespace txport::core {

// Conversion of pieces to ids and back.
class Vocabulary {
 public:
  // Read the file. `size` is the vocabulary size of this side, and `unk` the id of unknown pieces. Throws BundleError:
  // the file is missing, damaged or newer, contains a piece twice, or has more than `size` pieces.
  Vocabulary(const Bundle& bundle, const std::string& file, std::int64_t size, std::int64_t unk);

  Ids ids(const std::vector<std::string>& pieces) const;
  // Ids without a piece, and invalid ids, are skipped.
  std::vector<std::string> pieces(const Ids& ids) const;

 private:
  std::vector<std::optional<std::string>> pieces_;
  std::unordered_map<std::string, std::int64_t> ids_;
  std::int64_t unk_;
};

}  // namespace txport::core
