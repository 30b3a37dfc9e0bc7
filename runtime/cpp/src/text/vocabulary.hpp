// vocabulary.json: the pieces of a SentencePiece model in the order of a model's ids, where these are not its own.
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

// Pieces to ids and back.
class Vocabulary {
 public:
  // Read the file of a model that has `size` ids on this side; `unk` is the id of every piece that is not there.
  // Throws BundleError: it is missing, damaged, of a newer format, has a piece twice, or has more than `size`.
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
