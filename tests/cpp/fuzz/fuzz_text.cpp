// Any bytes are a text to translate, or are refused by an InputError; the stream of it says the same. The first byte
// chooses options.

#include <cstdlib>

#include "errors.hpp"
#include "translator.hpp"

using namespace txport::core;

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  static const Translator translator = [] {
    TranslatorOptions how;
    how.threads = 1;
    return Translator(TXPORT_REPOSITORY "/tests/data/toy_bundle", how);
  }();
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  Options options;
  options.max_length = 1 + bytes[0] % 8;
  options.scores = (bytes[0] & 8) != 0;
  options.strict = (bytes[0] & 16) != 0;
  if ((bytes[0] & 32) != 0) options.prefix = std::string(text.substr(0, 8));
  try {
    const Translation result = translator.translate({text}, options)[0];
    PieceStream stream(translator, text, options);
    std::string streamed;
    while (const auto piece = stream.next()) streamed += piece->text;
    if (streamed != result.text) std::abort();
  } catch (const InputError&) {
  }
  return 0;
}
