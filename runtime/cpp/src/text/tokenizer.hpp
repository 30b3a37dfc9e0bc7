// Text to ids and back: SentencePiece, or nothing at all for models that work on ids.
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

// What the translator needs of a tokenizer. Texts are valid UTF-8. Threads may share one.
class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The source ids of a text alone, without the affixes around them.
  virtual Ids encode(std::string_view text) const = 0;
  // As `encode`, and the bytes of the text that each id stands for, also where normalisation changes them.
  virtual Ids locate(std::string_view text, std::vector<Span>& spans) const = 0;
  // The target ids that a translation shall begin with, without bos and eos.
  virtual Ids encode_prefix(std::string_view text) const = 0;
  // The text of target ids; special ids and ids that are not in the model produce nothing.
  virtual std::string decode(const Ids& ids) const = 0;
  // The piece of each id of `encode`, that of an unknown id as well; nothing if no id can be unknown.
  virtual std::vector<std::string> split(std::string_view /*text*/) const { return {}; }
  // The piece of a source id, empty if it has none.
  virtual std::string source_piece(std::int64_t /*id*/) const { return ""; }
  // The text of target ids, some of which are replaced by pieces of the source.
  virtual std::string decode_copied(const Ids& ids, const Copies& /*copies*/) const { return decode(ids); }
};

// The tokenizer of a bundle whose manifest was checked. Throws BundleError: a file contradicts the manifest.
std::unique_ptr<Tokenizer> open_tokenizer(const Bundle& bundle, const Manifest& manifest);

// Turns ids that arrive one by one into pieces of text whose concatenation is the text of all ids.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, Copies copies = {})
      : tokenizer_(&tokenizer), copies_(std::move(copies)) {}

  // The text that became certain by one more id: none while a character is incomplete, all by the last id.
  std::string add(std::int64_t token_id, bool last);

 private:
  const Tokenizer* tokenizer_;
  Copies copies_;
  Ids ids_;
  std::string given_;
};

// The bytes of the text of `decode_copied` that each id adds to those before; an unfinished character is the last id's.
std::vector<Span> target_spans(const Tokenizer& tokenizer, const Ids& ids, const Copies& copies = {});

}  // namespace txport::core
