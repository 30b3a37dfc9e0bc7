// One side of a tokenizer: a model that turns texts into ids and ids into texts, without affixes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine.hpp"
#include "text/alignment.hpp"

namespace txport::core {

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
};

}  // namespace txport::core
