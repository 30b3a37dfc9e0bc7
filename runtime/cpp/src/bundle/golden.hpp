// golden.json: sentences and their expected ids, for the self-check on a device.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ids.hpp"

namespace txport::core {

// A source text, its ids (with eos), and the expected ids (without bos). The expected ids are complete if they end with
// eos or have the bundle's maximum length; otherwise they are the beginning of the translation. Without a tokenizer,
// the text may be empty.
struct Case {
  std::string source;
  Ids source_ids;
  Ids target_ids;
  std::shared_ptr<const FloatMatrix> vectors = nullptr;  // instead of source ids, of a model that reads vectors
};

// Decode the bytes of a golden.json; `file` is its name in messages. Throws BundleError.
std::vector<Case> parse_golden(std::string_view data, const std::string& file);

}  // namespace txport::core
