#include "text/requests.hpp"

#include <algorithm>
#include <utility>

#include "arguments.hpp"
#include "errors.hpp"
#include "text/search_options.hpp"
#include "text/utf8.hpp"

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

std::int64_t length_limit(std::size_t source, std::size_t begun, std::int64_t most) {
  const auto tokens = static_cast<std::int64_t>(source);
  return std::min(most, kLengthRatio * tokens + kLengthOffset + static_cast<std::int64_t>(begun));
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
  const Affixes around = affixes_of(rest, manifest_.tokenizer, languages_, manifest_.tokens.unk);
  Sentence result;
  Ids ids = options_.alignments ? tokenizer_.locate(rest, result.spans) : tokenizer_.encode(rest);
  if (ids.empty()) return std::nullopt;
  const auto most = static_cast<std::size_t>(limits_.source);
  const std::size_t fixed = around.source_prefix.size() + around.source_suffix.size();
  const std::size_t count = fixed + ids.size();
  result.truncated = count > most;
  if (result.truncated) {
    const std::string message = what + " has " + std::to_string(count) + " tokens, more than the " +
                                std::to_string(most) + " that this model takes";
    if (options_.strict) throw InputError(message + ": shorten it, or leave out the option strict to have it cut");
    if (warn) warn(message + ": it was cut");
    ids.resize(most > fixed ? most - fixed : 0);
  }
  result.text = text;
  result.first = around.source_prefix.size();
  result.last = result.first + ids.size();
  result.spans.resize(std::min(result.spans.size(), ids.size()));
  const std::size_t skipped = text.size() - rest.size();  // what chooses a language
  for (Span& span : result.spans) span = stripped({span.start + skipped, span.end + skipped}, text);
  result.forced = around.target_prefix.size();
  result.request = request({around.wrap(ids), nullptr}, around.target_prefix, number);
  return result;
}

std::size_t Call::fitting(std::string_view text) const {
  std::string_view rest = text;
  const Affixes around = affixes_of(rest, manifest_.tokenizer, languages_, manifest_.tokens.unk);
  std::vector<Span> spans;
  const Ids ids = tokenizer_.locate(rest, spans);
  const auto most = static_cast<std::size_t>(limits_.source);
  const std::size_t fixed = around.source_prefix.size() + around.source_suffix.size();
  const std::size_t room = most > fixed ? most - fixed : 0;
  if (ids.size() <= room) return count_characters(text);
  return count_characters(text.substr(0, text.size() - rest.size() + spans[room].start));
}

std::size_t Call::marker(std::string_view text) const {
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
  auto found = sentence(text, what);
  if (!found) throw InputError(what + " is empty: give text");
  return std::move(*found);
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

// A sentence may choose a target language, and with it a target prefix, of its own.
Request Call::request(EncoderInput source, const Ids& target_prefix, std::size_t number) const {
  Ids prefix = target_prefix;
  append(prefix, prefix_);
  std::optional<std::int64_t> limit = options_.max_length;
  if (!limit && options_.full_length) limit = limits_.target;
  if (!limit) {
    const std::size_t begun = std::max(prefix.size(), static_cast<std::size_t>(options_.min_length));
    limit = length_limit(source.size(), begun, limits_.target);
  }
  std::shared_ptr<const Ids> words;
  if (options_.shortlist) {
    Ids more = prefix;  // rules may put these into an answer, or end it with them
    append(more, search_.rules.end_ids);
    if (search_.rules.forced_end) more.push_back(*search_.rules.forced_end);
    words = shortlist_->words(source.ids, more);
  }
  return {std::move(source.ids),
          limit,
          options_.min_length,
          std::move(prefix),
          options_.scores,
          target_prefix.size(),
          static_cast<std::uint64_t>(number),
          search_,
          std::move(words),
          std::move(source.vectors)};
}

}  // namespace txport::core
