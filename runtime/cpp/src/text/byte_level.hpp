// Byte-level BPE as in GPT-2 (Radford et al. 2019), from a tokenizer.json of the `tokenizers` library (BART, CodeT5).
//
// Ids and texts equal those of the library without special tokens, also for bytes that are not valid characters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/side.hpp"

namespace txport::core {

// Read a tokenizer.json. `data` are its bytes, `file` its name in messages, and all ids must be below `vocabulary`.
// If texts are encoded in other ways, such as those of Nougat, ids are decoded, and encoding throws InputError.
// Throws BundleError: it is damaged or belongs to another model; InputError: only the Python runtime can decode its
// ids.
std::unique_ptr<Side> read_byte_level(std::string_view data, const std::string& file, std::int64_t vocabulary);

}  // namespace txport::core
