// Documents before and after translation. The Python twin is txport.runtime.documents.document.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calls/requests.hpp"
#include "documents/layout.hpp"
#include "results.hpp"

namespace txport::core {

// A sentence of a document, or a part of one.
struct Part {
  Span source;       // byte range in the document
  Span target;       // byte range of the translation in the translated document
  bool cut = false;  // it is a part of a sentence that is longer than the model supports
  std::string text;  // translated text, with the language marker and with spaces for line breaks
  Translation translation;
};

// A translated document with the layout of the source, and its sentences in order.
struct Document {
  std::string text;
  std::vector<Part> parts;
};

// A document before translation. The arguments of the constructor must outlive it.
class Draft {
 public:
  // `what` is the name of a line in messages, before its number. A language marker at the beginning of the document
  // applies to all of it. Throws InputError: the text is not UTF-8, or a sentence is too long and `strict` is set.
  Draft(const Call& call, std::string_view text, const std::string& what);

  // Return the sentences of all segments; no value for segments without tokens.
  const std::vector<std::optional<Sentence>>& sentences() const { return sentences_; }

  // Return the document with the translations of all segments. Warn about unfinished translations.
  Document built(std::vector<Translation> translations) const;

 private:
  const Call& call_;
  std::string marker_;  // language marker
  std::u32string text_;
  std::vector<Segment> segments_;
  std::deque<std::string> texts_;  // storage for the texts of sentences
  std::vector<std::optional<Sentence>> sentences_;

  void add(const Segment& segment, const std::string& what);
  std::optional<Sentence> sentence(const Segment& segment, const std::string& what, const Warn& warn);
};

}  // namespace txport::core
