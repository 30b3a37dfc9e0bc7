// Shortlists: the target words that the sentences of a bundle choose among, for large vocabularies. Its format is
// that of runtime/bundle/shortlist.py.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "ids.hpp"

namespace txport::core {

// The words that each source word brings.
class Shortlist {
 public:
  // Throws BundleError: the file cannot be read, is damaged, or is for another model.
  Shortlist(const Bundle& bundle, const std::string& file, const ModelSizes& model, std::int64_t eos);

  // Ascending: the ids among which the translation of these source ids is chosen; `more` are added.
  std::shared_ptr<const Ids> words(const Ids& source_ids, const Ids& more) const;

 private:
  std::vector<std::int32_t> always_;  // ascending: ids that every list has, eos among them
  std::vector<std::int32_t> starts_;  // [source vocabulary + 1], of each source id's words in candidates_
  std::vector<std::int32_t> candidates_;

  // Returns what is wrong; empty if nothing is.
  std::string read(std::string_view data, const ModelSizes& model, std::int64_t eos);
};

// The shortlist of a bundle; null if it has none. Throws as the class.
std::unique_ptr<const Shortlist> open_shortlist(const Bundle& bundle, const Manifest& manifest);

}  // namespace txport::core
