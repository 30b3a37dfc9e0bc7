#include "calls/requests.hpp"

#include <algorithm>
#include <utility>

#include "arguments.hpp"
#include "calls/search_options.hpp"
#include "errors.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

void append(Ids& to, const Ids& more) { to.insert(to.end(), more.begin(), more.end()); }

Options checked(Options options, const Generation& generation, const Limits& limits) {
  options.check();
  Options filled = with_settings(options, generation, limits);
  check_effect(options, filled);
  return filled;
}

}  // namespace

Ids Sentence::visible(Ids ids) const {
  const Ids& ends = request.search.rules.end_ids;
  if (std::find(ends.begin(), ends.end(), ids.back()) != ends.end()) ids.pop_back();
  return ids;
}

std::int64_t length_limit(std::size_t source, std::size_t forced, std::int64_t max_target) {
  const auto tokens = static_cast<std::int64_t>(source);
  return std::min(max_target, kLengthRatio * tokens + kLengthOffset + static_cast<std::int64_t>(forced));
}

Call::Call(const Manifest& manifest, const Tokenizer& tokenizer, const Limits& limits, Options options, Warn warn,
           const Shortlist* shortlist)
    : manifest_(manifest),
      tokenizer_(tokenizer),
      limits_(limits),
      options_(checked(std::move(options), manifest.generation, limits)),
      warn_(std::move(warn)),
      languages_{options_.source_language, options_.target_language},
      target_prefix_(affixes(manifest.tokenizer, languages_).target_prefix),
      shortlist_(shortlist) {
  if (options_.shortlist && shortlist_ == nullptr) {
    throw InputError("the bundle has no shortlist: make one with tx-shortlist, or leave out the option shortlist");
  }
  if (const auto* ids = std::get_if<Ids>(&options_.prefix)) {
    check_ids(*ids, manifest.model.target_vocabulary, "the prefix");
    prefix_ = *ids;
  } else if (const auto& text = std::get<std::string>(options_.prefix); !text.empty()) {
    check_utf8(text, "the prefix");
    prefix_ = tokenizer.encode_prefix(text);
  }
  check_lengths(options_.max_length, options_.min_length, target_prefix_.size() + prefix_.size(), limits.target);
  search_ = search_of(options_, manifest, limits, tokenizer);
}

std::optional<Sentence> Call::sentence(std::string_view text, const std::string& what, std::size_t number,
                                       const Warn& warn) const {
  check_utf8(text, what);
  if (is_blank(text)) return std::nullopt;
  std::string_view rest = text;
  const Affixes affixes = affixes_of(rest, manifest_.tokenizer, languages_, manifest_.tokens.unk);
  Sentence result;
  Ids ids = options_.alignments ? tokenizer_.locate(rest, result.spans) : tokenizer_.encode(rest);
  if (ids.empty()) return std::nullopt;
  const auto max_source = static_cast<std::size_t>(limits_.source);
  const std::size_t fixed = affixes.source_prefix.size() + affixes.source_suffix.size();
  const std::size_t count = fixed + ids.size();
  result.truncated = count > max_source;
  if (result.truncated) {
    const std::string message = what + " has " + std::to_string(count) + " tokens, more than the " +
                                std::to_string(max_source) + " that this model supports";
    if (options_.strict) throw InputError(message + ": shorten it, or leave out the option strict to truncate it");
    if (warn) warn(message + ": it was cut");
    ids.resize(max_source > fixed ? max_source - fixed : 0);
  }
  result.text = text;
  result.first = affixes.source_prefix.size();
  result.last = result.first + ids.size();
  result.spans.resize(std::min(result.spans.size(), ids.size()));
  const std::size_t skipped = text.size() - rest.size();  // language marker
  for (Span& span : result.spans) span = stripped({span.start + skipped, span.end + skipped}, text);
  result.forced = affixes.target_prefix.size();
  result.request = request({affixes.wrap(ids), nullptr}, affixes.target_prefix, number);
  return result;
}

std::size_t Call::fitting_characters(std::string_view text) const {
  std::string_view rest = text;
  const Affixes affixes = affixes_of(rest, manifest_.tokenizer, languages_, manifest_.tokens.unk);
  std::vector<Span> spans;
  const Ids ids = tokenizer_.locate(rest, spans);
  const auto max_source = static_cast<std::size_t>(limits_.source);
  const std::size_t fixed = affixes.source_prefix.size() + affixes.source_suffix.size();
  const std::size_t room = max_source > fixed ? max_source - fixed : 0;
  if (ids.size() <= room) return count_characters(text);
  return count_characters(text.substr(0, text.size() - rest.size() + spans[room].start));
}

std::size_t Call::marker_length(std::string_view text) const {
  std::string_view rest = text;
  affixes_of(rest, manifest_.tokenizer, languages_, manifest_.tokens.unk);
  return text.size() - rest.size();
}

std::string Call::source_language() const {
  if (languages_.source) return *languages_.source;
  const auto& languages = manifest_.tokenizer.languages;
  return languages ? languages->source_default.value_or("") : "";
}

Sentence Call::needed(std::string_view text, const std::string& what) const {
  auto result = sentence(text, what);
  if (!result) throw InputError(what + " is empty: give text");
  return std::move(*result);
}

Sentence Call::of_ids(Ids source, std::size_t number) const {
  Sentence result;
  result.forced = target_prefix_.size();
  result.request = request({std::move(source), nullptr}, target_prefix_, number);
  return result;
}

Sentence Call::of_vectors(std::shared_ptr<const FloatMatrix> vectors, std::size_t number) const {
  Sentence result;
  result.forced = target_prefix_.size();
  result.request = request({{}, std::move(vectors)}, target_prefix_, number);
  return result;
}

// Return the request of a sentence. Its target prefix depends on its target language, which the text may select.
Request Call::request(EncoderInput source, const Ids& target_prefix, std::size_t number) const {
  Ids prefix = target_prefix;
  append(prefix, prefix_);
  std::optional<std::int64_t> limit = options_.max_length;
  if (!limit && options_.full_length) limit = limits_.target;
  if (!limit) {
    const std::size_t forced = std::max(prefix.size(), static_cast<std::size_t>(options_.min_length));
    limit = length_limit(source.size(), forced, limits_.target);
  }
  std::shared_ptr<const Ids> words;
  if (options_.shortlist) {
    Ids more = prefix;  // rules may generate these ids
    append(more, search_.rules.end_ids);
    if (search_.rules.forced_end) more.push_back(*search_.rules.forced_end);
    words = shortlist_->words(source.ids, more);
  }
  return {std::move(source.ids),
          limit,
          options_.min_length,
          std::move(prefix),
          options_.scores,
          manifest_.tokenizer.prompt ? 0 : target_prefix.size(),
          static_cast<std::uint64_t>(number),
          search_,
          std::move(words),
          std::move(source.vectors)};
}

}  // namespace txport::core
