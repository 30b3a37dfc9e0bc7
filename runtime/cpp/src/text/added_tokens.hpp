// Added tokens, which a model does not split: special tokens and tokens that were added to a vocabulary.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// Finds added tokens in texts. At each position, the longest token wins.
class TokenFinder {
 public:
  // Callback for a part of a text: its byte range and its token; null for text between tokens.
  using Take = std::function<void(const Span&, const AddedToken*)>;

  explicit TokenFinder(std::vector<AddedToken> tokens);

  bool empty() const;
  // Return the token at `start`, or null.
  const AddedToken* find(std::string_view text, std::size_t start) const;
  // Return the token that equals this text, or null.
  const AddedToken* equal(std::string_view text) const;
  // Return whether the text contains a token. Rules such as single_word are ignored.
  bool may_find(std::string_view text) const;
  // Call `take` with the parts of a text in order, as AddedVocabulary of the `tokenizers` library finds them.
  void split(std::string_view text, const Take& take) const;
  // Call `take` with tokens and the text between them. Rules such as single_word are ignored.
  void split_at_all(std::string_view text, const std::function<void(const Span&)>& take) const;

 private:
  std::array<std::vector<AddedToken>, 256> tokens_;  // by first byte; the longest first
};

}  // namespace txport::core
