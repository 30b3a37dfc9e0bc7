// Tokens that a model does not split: special tokens, and tokens that were added to a vocabulary.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// Finds added tokens in texts, at each place the longest one.
class TokenFinder {
 public:
  // Takes a part of a text, as bytes of it, and its token; null for what is between tokens.
  using Take = std::function<void(const Span&, const AddedToken*)>;

  explicit TokenFinder(std::vector<AddedToken> tokens);

  bool empty() const;
  // The token at `start`, or null.
  const AddedToken* find(std::string_view text, std::size_t start) const;
  // The token that is this text, or null.
  const AddedToken* equal(std::string_view text) const;
  // Whether there is a token in the text, wherever its rules let it be.
  bool may_find(std::string_view text) const;
  // Give the parts of a text in their order, as AddedVocabulary of the library `tokenizers` finds them.
  void split(std::string_view text, const Take& take) const;
  // Give the tokens, and what is between them, without their rules.
  void split_at_all(std::string_view text, const std::function<void(const Span&)>& take) const;

 private:
  std::array<std::vector<AddedToken>, 256> tokens_;  // by their first byte; the longest first
};

}  // namespace txport::core
