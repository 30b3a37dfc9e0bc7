// Any bytes are a SentencePiece model that may be loaded or are refused by a BundleError; nothing else. What passes is
// loaded, and texts are read by it: the library itself must survive that. Unigram models are also segmented by this
// runtime, in both arithmetics. In that of the library, the ids must be the library's.

#include <sentencepiece_processor.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "text/pieces.hpp"
#include "text/sentencepiece_rules.hpp"
#include "text/unigram.hpp"

namespace {

using txport::core::Unigram;

constexpr const char* kTexts[] = {"a aaaa b\xc3\xa9 \xe2\x80\xa2\xef\xac\x81",
                                  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

void segment(const sentencepiece::SentencePieceProcessor& processor, const std::string& model) {
  for (const bool in_float32 : {false, true}) {
    const Unigram unigram(model, in_float32);
    for (const char* text : kTexts) {
      const auto ids = unigram.segment(text).ids;
      if (in_float32 != txport::core::library_sums_in_float32()) continue;
      if (ids != txport::core::read_pieces(processor.EncodeAsSerializedProto(text)).ids) std::abort();
    }
  }
}

}  // namespace

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
  for (const char* text : kTexts) {
    if (processor.Encode(text, &ids).ok()) {
      std::string decoded;
      static_cast<void>(processor.Decode(ids, &decoded));
    }
  }
  try {
    if (Unigram::is_unigram(model)) segment(processor, std::string(model));
  } catch (const txport::core::BundleError&) {  // no bundle with this model opens
  }
  return 0;
}
