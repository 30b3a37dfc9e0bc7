// One side of a tokenizer, source or target: a model that encodes and decodes texts, without affixes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// Pieces of the source that replace ids of a translation, by position.
using Copies = std::map<std::size_t, std::string>;

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

  // The following are for models in which an id can be unknown; others have no pieces.
  // Return the piece of each id of `encode`, also of unknown ids.
  virtual std::vector<std::string> split(std::string_view /*text*/) const { return {}; }
  // Return the piece of an id; empty if it has none.
  virtual std::string piece(std::int64_t /*id*/) const { return ""; }
  // Return the text of ids, some of which are replaced by pieces.
  virtual std::string decode_copied(const Ids& ids, const Copies& /*copies*/) const { return decode(ids); }
};

}  // namespace txport::core
