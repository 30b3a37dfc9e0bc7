// Any bytes are a SentencePiece model that may be loaded or are refused by a BundleError; nothing else. What passes is
// loaded, and a text is read by it: the library itself must survive that.

#include <sentencepiece_processor.h>

#include <string_view>
#include <vector>

#include "errors.hpp"
#include "text/sentencepiece_rules.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string_view model(reinterpret_cast<const char*>(bytes), size);
  try {
    txport::core::check_sentencepiece(model);
  } catch (const txport::core::BundleError&) {
    return 0;
  }
  sentencepiece::SentencePieceProcessor processor;
  if (!processor.LoadFromSerializedProto(model).ok()) return 0;
  std::vector<int> ids;
  for (const char* text :
       {"a aaaa b\xc3\xa9 \xe2\x80\xa2\xef\xac\x81", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    if (processor.Encode(text, &ids).ok()) {
      std::string decoded;
      static_cast<void>(processor.Decode(ids, &decoded));
    }
  }
  return 0;
}
