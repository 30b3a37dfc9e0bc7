// Tokenizers of bundles: SentencePiece, UTF-8 bytes, byte-level BPE, or none for bundles that only accept ids.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "text/alignment.hpp"
#include "text/side.hpp"

namespace txport::core {

// Interface of tokenizers. Texts are valid UTF-8. Threads may share a tokenizer.
class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Return the source ids of a text, without affixes.
  virtual Ids encode(std::string_view text) const = 0;
  // Like `encode`, and return the byte range of the text for each id. Ranges refer to the text before normalisation.
  virtual Ids locate(std::string_view text, std::vector<Span>& spans) const = 0;
  // Return target ids of the beginning of a translation, without bos and eos.
  virtual Ids encode_prefix(std::string_view text) const = 0;
  // Return the text of target ids. Special and unknown ids produce no text.
  virtual std::string decode(const Ids& ids) const = 0;
  // Return the piece of each id of `encode`, also of unknown ids; empty if no id can be unknown.
  virtual std::vector<std::string> split(std::string_view /*text*/) const { return {}; }
  // Return the piece of a source id; empty if it has none.
  virtual std::string source_piece(std::int64_t /*id*/) const { return ""; }
  // Return the text of target ids, some of which are replaced by pieces of the source.
  virtual std::string decode_copied(const Ids& ids, const Copies& /*copies*/) const { return decode(ids); }
};

// Open the tokenizer of a bundle with a checked manifest. Throws BundleError: a file contradicts the manifest.
std::unique_ptr<Tokenizer> open_tokenizer(const Bundle& bundle, const Manifest& manifest);

// Decodes ids that arrive one by one. The concatenation of the returned texts is the text of all ids.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, Copies copies = {})
      : tokenizer_(&tokenizer), copies_(std::move(copies)) {}

  // Return the text that this id completes. It is empty while a character is incomplete; `last` completes all text.
  std::string add(std::int64_t token_id, bool last);

 private:
  const Tokenizer* tokenizer_;
  Copies copies_;
  Ids ids_;
  std::string returned_;
};

// Return the byte range that each target id adds to the text of `decode_copied`. A character of several ids belongs to
// the last of them.
std::vector<Span> target_spans(const Tokenizer& tokenizer, const Ids& ids, const Copies& copies = {});

}  // namespace txport::core
