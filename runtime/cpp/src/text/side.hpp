// One side of a tokenizer: a model that turns texts into ids and ids into texts, without affixes.
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

// Pieces of a source that replace ids of a translation, by position.
using Copies = std::map<std::size_t, std::string>;

// Texts are valid UTF-8. Threads may share one.
class Side {
 public:
  Side() = default;
  virtual ~Side() = default;
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  virtual Ids encode(std::string_view text) const = 0;
  // As `encode`, and the bytes of the text that each id stands for.
  virtual Ids locate(std::string_view text, std::vector<Span>& spans) const = 0;
  // The text of ids; special ids and ids that are not in the model leave none.
  virtual std::string decode(const Ids& ids) const = 0;

  // The following are for models in which an id can be unknown; others have no pieces.
  // The piece of each id of `encode`, that of an unknown id as well.
  virtual std::vector<std::string> split(std::string_view /*text*/) const { return {}; }
  // The piece of an id, empty if it has none.
  virtual std::string piece(std::int64_t /*id*/) const { return ""; }
  // The text of ids, some of which are replaced by pieces.
  virtual std::string decode_copied(const Ids& ids, const Copies& /*copies*/) const { return decode(ids); }
};

}  // namespace txport::core
