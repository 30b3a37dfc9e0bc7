// A tokenizer side with added tokens. The Python twin is txport.runtime.text.added_tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "text/side.hpp"

namespace txport::core {

// A normalised text. `positions` contains the byte offset in the original text of each of its bytes, and of its end.
struct Normalised {
  std::string text;
  std::vector<std::size_t> positions;
};

// A model that supports added tokens.
class Inner : public Side {
 public:
  // Like `locate`, for text that continues a word.
  virtual Ids locate_inside(std::string_view text, std::vector<Span>& spans) const = 0;
  // Like `split`, for text that continues a word.
  virtual std::vector<std::string> split_inside(std::string_view text) const = 0;
  // Return the normalised text, without the space that the model adds at the beginning; no value if the model does not
  // normalise.
  virtual std::optional<Normalised> normalised(std::string_view text) const = 0;
  // Return the ids of a single space.
  virtual Ids space() const = 0;
};

// Return `inner` with added tokens. `decodes`: the model's vocabulary contains the tokens, so it can decode them.
std::shared_ptr<const Side> with_added(std::shared_ptr<const Inner> inner, const AddedTokens& added, bool decodes);

}  // namespace txport::core
