// A side with added tokens; txport.runtime.text.added_tokens is the same in Python.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "text/side.hpp"

namespace txport::core {

// A normalised text, and the byte of the original of each of its bytes and of its end.
struct Normalised {
  std::string text;
  std::vector<std::size_t> places;
};

// A model that tokens can be added to.
class Inner : public Side {
 public:
  // As `locate`, for text that continues a word.
  virtual Ids locate_inside(std::string_view text, std::vector<Span>& spans) const = 0;
  // As `split`, for text that continues a word.
  virtual std::vector<std::string> split_inside(std::string_view text) const = 0;
  // The text as the model reads it, without a space that it puts in front; nothing if it reads the text unchanged.
  virtual std::optional<Normalised> normalised(std::string_view text) const = 0;
  // The ids of a space alone.
  virtual Ids space() const = 0;
};

// `decodes`: the model's own vocabulary shows the tokens in answers.
std::shared_ptr<const Side> with_added(std::shared_ptr<const Inner> inner, const AddedTokens& added, bool decodes);

}  // namespace txport::core
