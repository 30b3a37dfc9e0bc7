// Translated documents, and documents on their way to it; txport.runtime.documents.document is the same in Python.
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
  Span source;       // its bytes in the document
  Span target;       // those of its translation in the translated document
  bool cut = false;  // it is a part of a sentence that is longer than the model takes
  std::string
      text;  // that was translated: line breaks are spaces, and what chooses the document's language is before it
  Translation translation;
};

// A translated document: the whole with the layout of the source, and its sentences in order.
struct Document {
  std::string text;
  std::vector<Part> parts;
};

// A document before it is translated. All that it is made of must outlive it.
class Draft {
 public:
  // `what` names a line in messages, before its number. The document may choose a target language by its beginning, if
  // the bundle has that, for all of it.
  // Throws InputError: it is not UTF-8, or a sentence is too long and the call is strict.
  Draft(const Call& call, std::string_view text, const std::string& what);

  // Those of its segments; nothing where a tokenizer leaves nothing of one.
  const std::vector<std::optional<Sentence>>& sentences() const { return sentences_; }

  // The document from the translations of all segments. Warns about unfinished translations.
  Document built(std::vector<Translation> translations) const;

 private:
  const Call& call_;
  std::string marker_;  // what chooses the language
  std::u32string text_;
  std::vector<Segment> segments_;
  std::deque<std::string> texts_;  // that sentences refer to
  std::vector<std::optional<Sentence>> sentences_;

  void add(const Segment& segment, const std::string& what);
  std::optional<Sentence> sentence(const Segment& segment, const std::string& what, const Warn& warn);
};

}  // namespace txport::core
