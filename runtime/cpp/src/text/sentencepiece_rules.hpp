// Checks of SentencePiece models before the library loads them. The Python twin is runtime/text/sentencepiece_rules.py.
#pragma once

#include <string_view>

namespace txport::core {

// Throw BundleError if the library might crash on a model. The message continues a sentence that begins with the
// model's name.
void check_sentencepiece(std::string_view model);

}  // namespace txport::core
