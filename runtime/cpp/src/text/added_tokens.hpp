// Tokens that a text holds as they are, which no model parts: special ones, and others that were added to one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/alignment.hpp"

namespace txport::core {

// One that the `tokenizers` library calls AddedToken.
struct AddedToken {
  std::int64_t id = 0;
  std::string content;
  bool takes_space_before = false;  // lstrip
  bool takes_space_after = false;   // rstrip
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Give the parts of a text in their order, as bytes of it: tokens, and what is between them, without an id.
  void split(std::string_view text, const std::function<void(const Span&, std::optional<std::int64_t>)>& take) const;

 private:
  std::array<std::vector<AddedToken>, 256> tokens_;  // by their first byte; the longest first

  const AddedToken* find(std::string_view text, std::size_t start) const;
};

}  // namespace txport::core
