// One side of a tokenizer, source or target: a model that encodes and decodes texts, without affixes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// Texts are valid UTF-8. Threads may share a side.
class Side {
 public:
  Side() = default;
  virtual ~Side() = default;
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  virtual Ids encode(std::string_view text) const = 0;
  // Like `encode`, and return the byte range of the text for each id.
  virtual Ids locate(std::string_view text, std::vector<Span>& spans) const = 0;
  // Return the text of ids. Special and unknown ids produce no text.
  virtual std::string decode(const Ids& ids) const = 0;
};

}  // namespace txport::core
