// golden.json: sentences and the ids that must come out, by which a device checks itself.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine.hpp"

namespace txport::core {

// A source text, its ids (with eos), and the expected ids (without bos): complete if they end with eos or have the
// bundle's maximum length, otherwise the beginning of an answer. Without a tokenizer the text may be empty.
struct Case {
  std::string source;
  Ids source_ids;
  Ids target_ids;
  std::shared_ptr<const FloatMatrix> vectors = nullptr;  // instead of source ids, of a model that reads vectors
};

// Decode the bytes of a golden.json; `file` is its name in messages. Throws BundleError.
std::vector<Case> parse_golden(std::string_view data, const std::string& file);

}  // namespace txport::core
