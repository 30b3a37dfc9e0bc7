#include "documents/document.hpp"

#include <algorithm>
#include <utility>

#include "documents/cuts.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

// Upper bound of the average number of characters per token.
constexpr std::size_t kTokenCharacters = 16;

// Converts spans of characters to byte ranges. Each span must begin at or after the end of the one before.
class Bytes {
 public:
  explicit Bytes(std::u32string_view text, std::size_t skipped = 0) : text_(text), byte_(skipped) {}

  Span operator()(const Span& span) {
    const std::size_t start = at(span.start);
    return {start, at(span.end)};
  }

 private:
  std::u32string_view text_;
  std::size_t character_ = 0;
  std::size_t byte_;

  std::size_t at(std::size_t character) {
    for (; character_ < character; ++character_) {
      const char32_t code = text_[character_];
      byte_ += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    }
    return byte_;
  }
};

}  // namespace

Draft::Draft(const Call& call, std::string_view text, const std::string& what) : call_(call) {
  check_utf8(text, "the document");
  marker_ = text.substr(0, call.marker_length(text));
  text_ = characters_of(text.substr(marker_.size()));
  std::size_t line = 1;
  std::size_t last_start = 0;
  for (const Segment& segment : split(text_, abbreviations_of(call.source_language()))) {
    const auto begin = text_.begin();
    line += static_cast<std::size_t>(std::count(begin + static_cast<std::ptrdiff_t>(last_start),
                                                begin + static_cast<std::ptrdiff_t>(segment.start), U'\n'));
    last_start = segment.start;
    add(segment, "the sentence in " + what + " " + std::to_string(line));
  }
}

void Draft::add(const Segment& segment, const std::string& what) {
  std::string warning;
  auto encoded = sentence(segment, what, [&warning](const std::string& words) { warning = words; });
  if (!encoded || !encoded->truncated) {
    segments_.push_back(segment);
    sentences_.push_back(std::move(encoded));
    return;
  }
  const std::size_t first = segments_.size();
  const auto fitting = [this](std::u32string_view text) {
    return call_.fitting_characters(marker_ + utf8_of(text)) - count_characters(marker_);
  };
  for (const Segment& part : cut(text_, segment, fitting, kTokenCharacters * call_.max_tokens())) {
    sentences_.push_back(sentence(part, what, call_.warn()));
    segments_.push_back(part);
  }
  if (call_.warn()) call_.warn()(warning + " into " + std::to_string(segments_.size() - first) + " parts");
}

std::optional<Sentence> Draft::sentence(const Segment& segment, const std::string& what, const Warn& warn) {
  texts_.push_back(marker_ + utf8_of(segment.text));
  return call_.sentence(texts_.back(), what, segments_.size() + 1, warn);
}

Document Draft::built(std::vector<Translation> translations) const {
  std::vector<std::u32string> texts;
  texts.reserve(translations.size());
  for (const Translation& each : translations) texts.push_back(characters_of(each.text));
  const auto [text, targets] = join(text_, segments_, texts);
  Bytes source(text_, marker_.size());
  Bytes target(text);
  std::size_t unfinished = 0;
  Document document{utf8_of(text), {}};
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (!translations[i].finished) ++unfinished;
    document.parts.push_back({source({segments_[i].start, segments_[i].end}), target(targets[i]), segments_[i].cut,
                              marker_ + utf8_of(segments_[i].text), std::move(translations[i])});
  }
  if (unfinished > 0 && call_.warn()) {
    call_.warn()(std::to_string(unfinished) + " of " + std::to_string(segments_.size()) +
                 " parts of the document reached the maximum length before an end");
  }
  return document;
}

}  // namespace txport::core
