// Byte-level BPE (GPT-2's: Radford et al. 2019), of a tokenizer.json of the `tokenizers` library: BART's, CodeT5's.
//
// Texts become the ids that the library gives without its special tokens around them, and ids the texts, also those of
// bytes that are no characters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/side.hpp"

namespace txport::core {

// The model of a file's bytes, of which ids are below `vocabulary`; `file` is its name in messages.
// Throws BundleError: it is damaged or of another model; InputError: it has something that only Python has.
std::unique_ptr<Side> read_byte_level(std::string_view data, const std::string& file, std::int64_t vocabulary);

}  // namespace txport::core
