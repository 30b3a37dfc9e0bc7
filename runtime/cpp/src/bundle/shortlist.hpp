// Shortlists: restrictions of the target tokens of a sentence, for large vocabularies. runtime/bundle/shortlist.py
// defines the format.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "ids.hpp"

namespace txport::core {

// The target tokens that each source token allows.
class Shortlist {
 public:
  // Throws BundleError: the file cannot be read, is damaged, or belongs to another model.
  Shortlist(const Bundle& bundle, const std::string& file, const ModelSizes& model, std::int64_t eos);

  // Return the target ids allowed for a translation of these source ids, ascending, including `more`.
  std::shared_ptr<const Ids> words(const Ids& source_ids, const Ids& more) const;

 private:
  std::vector<std::int32_t> always_;  // ids in every list, ascending, including eos
  std::vector<std::int32_t> starts_;  // [source vocabulary + 1], start of each source id's ids in candidates_
  std::vector<std::int32_t> candidates_;

  // Parse the file. Return a message if it is invalid, otherwise an empty text.
  std::string read(std::string_view data, const ModelSizes& model, std::int64_t eos);
};

// Open the shortlist of a bundle; null if it has none. Throws the errors of the class.
std::unique_ptr<const Shortlist> open_shortlist(const Bundle& bundle, const Manifest& manifest);

}  // namespace txport::core
