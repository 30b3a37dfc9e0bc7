// What a SentencePiece model may contain, checked before the library loads it; the same as
// runtime/text/sentencepiece_rules.py.
#pragma once

#include <string_view>

namespace txport::core {

// Throws BundleError, with the rest of a sentence that begins with the model's name: the library may not survive it.
void check_sentencepiece(std::string_view model);

}  // namespace txport::core
