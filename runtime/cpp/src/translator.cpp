#include "translator.hpp"

#include <algorithm>

#include "bundle/files.hpp"
#include "bundle/golden.hpp"
#include "cores.hpp"
#include "engines/choice.hpp"
#include "errors.hpp"
#include "text/utf8.hpp"

namespace txport::core {

namespace {

void check_ids(const Ids& ids, std::int64_t vocabulary, const std::string& what) {
  for (const std::int64_t token : ids) {
    if (token < 0 || token >= vocabulary) {
      throw InputError(what + " has the id " + std::to_string(token) + ", which is not between 0 and " +
                       std::to_string(vocabulary - 1));
    }
  }
}

// A message about a value that is out of range, and what the upper bound is.
std::string between(const std::string& what, std::int64_t value, std::int64_t low, std::int64_t high,
                    const std::string& why) {
  return "the " + what + " " + std::to_string(value) + " is not between " + std::to_string(low) + " and " +
         std::to_string(high) + ", " + why;
}

void append(Ids& to, const Ids& more) { to.insert(to.end(), more.begin(), more.end()); }

// The source ids of a text with their affixes.
Ids around_text(const Affixes& around, const Ids& ids) {
  Ids whole = around.source_prefix;
  append(whole, ids);
  append(whole, around.source_suffix);
  return whole;
}

std::string show(const Ids& ids) {
  std::string text;
  for (const std::int64_t id : ids) text += (text.empty() ? "" : ", ") + std::to_string(id);
  return "[" + text + "]";
}

// More workers read the weights more often than caches and memory can supply them.
constexpr int kMostWorkers = 4;

// Replaces 0 by the number of workers, and of threads of each, that together use the machine's cores.
void share_cores(int& workers, int& threads) {
  const int cores = usable_cores();
  if (workers == 0) workers = std::max(1, std::min(kMostWorkers, cores / std::max(1, threads)));
  if (threads == 0 && workers > 1) threads = std::max(1, cores / workers);
}

}  // namespace

Translator::Translator(const std::filesystem::path& bundle, TranslatorOptions options)
    : directory_(bundle), options_(std::move(options)) {
  if (options_.threads < 0 || options_.workers < 0 || options_.batch.value_or(1) < 1 || options_.batch_tokens < 1) {
    throw InputError("threads and workers must be 0 or more, batch and batch_tokens 1 or more");
  }
  manifest_ = Manifest::load(bundle);
  Choice choice = choose(bundle, manifest_, options_.device, options_.lowering);
  manifest_.check_files(bundle, [](const std::string& name) { return name != kWeightsName; });
  tokenizer_ = open_tokenizer(bundle, manifest_);
  const bool many = options_.workers != 1;
  if (choice.device == "cpu") {
    share_cores(options_.workers, options_.threads);
  } else {
    options_.workers = 1;
  }
  engine_ = open_engine(bundle, manifest_, choice, {options_.threads, many}, options_.warn);
  reason_ = choice.reason;
  const std::int64_t most = engine_->limits().batch;
  if (options_.batch && *options_.batch > most) {
    throw InputError(between("batch", *options_.batch, 1, most, "the most of this bundle"));
  }
}

std::vector<Translation> Translator::translate(const std::vector<std::string_view>& sentences, const Options& options,
                                               const std::string& what, std::size_t first) const {
  const Call shared = call(options);
  std::vector<Translation> results(sentences.size());
  std::vector<Request> requests;
  std::vector<std::size_t> work;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    if (options.scores) results[i].scores.emplace();
    bool truncated = false;
    auto asked = request(sentences[i], shared, what + " " + std::to_string(first + i), truncated);
    if (!asked) continue;
    results[i].truncated = truncated;
    work.push_back(i);
    requests.push_back(std::move(*asked));
  }
  std::vector<Result> decoded = decode(requests, options.scores);
  for (std::size_t i = 0; i < work.size(); ++i) {
    results[work[i]] = translation(std::move(decoded[i]), results[work[i]].truncated);
  }
  return results;
}

std::vector<Translation> Translator::translate_ids(const std::vector<Ids>& sources, const Options& options) const {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    check_ids(sources[i], manifest_.model.source_vocabulary, "sentence " + std::to_string(i + 1));
  }
  const Call shared = call(options);
  const Ids begin = affixes(manifest_.tokenizer, shared.languages).target_prefix;
  std::vector<Request> requests;
  requests.reserve(sources.size());
  for (const Ids& source : sources) requests.push_back(request(source, shared, begin));
  std::vector<Translation> results;
  for (Result& result : decode(requests, options.scores)) results.push_back(translation(std::move(result), false));
  return results;
}

std::string Translator::self_check() const {
  const std::filesystem::path path = directory_ / kGoldenName;
  const std::vector<Case> cases = parse_golden(read_bundle_file(path), path.string());
  std::vector<Ids> sources;
  sources.reserve(cases.size());
  std::size_t longest = 0;
  for (const Case& item : cases) {
    sources.push_back(item.source_ids);
    longest = std::max(longest, item.target_ids.size());
  }
  Options options;  // to make no more than is compared
  if (longest > 0) options.max_length = std::min(static_cast<std::int64_t>(longest), engine_->limits().target);
  const auto begins = [](const Ids& found, const Ids& expected) {
    return found.size() >= expected.size() && std::equal(expected.begin(), expected.end(), found.begin());
  };
  const std::vector<Translation> batch = translate_ids(sources, options);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto differs = [&](const std::string& what, const Ids& expected, const Ids& found) {
      return "case " + std::to_string(i) + " of " + path.string() + " differs in the " + what + " with " +
             engine_->name() + ": expected " + show(expected) + ", found " + show(found);
    };
    const Ids& expected = cases[i].target_ids;
    if (!begins(batch[i].ids, expected)) return differs("ids of a batch", expected, batch[i].ids);
    const Ids alone = translate_ids({sources[i]}, options)[0].ids;
    if (!begins(alone, expected)) return differs("ids of the sentence alone", expected, alone);
    if (manifest_.tokenizer.kind != "sentencepiece") continue;
    std::string_view text = cases[i].source;
    const Affixes around = affixes_of(text, manifest_.tokenizer, {}, manifest_.tokens.unk);
    const Ids source = around_text(around, tokenizer_->encode(text));
    if (source != cases[i].source_ids) return differs("source ids", cases[i].source_ids, source);
  }
  return "";
}

std::optional<Request> Translator::request(std::string_view text, const Call& call, const std::string& what,
                                           bool& truncated) const {
  check_utf8(text, what);
  if (is_blank(text)) return std::nullopt;
  const Affixes around = affixes_of(text, manifest_.tokenizer, call.languages, manifest_.tokens.unk);
  Ids ids = tokenizer_->encode(text);
  if (ids.empty()) return std::nullopt;
  const auto most = static_cast<std::size_t>(engine_->limits().source);
  const std::size_t fixed = around.source_prefix.size() + around.source_suffix.size();
  const std::size_t needed = fixed + ids.size();
  truncated = needed > most;
  if (truncated) {
    const std::string message = what + " has " + std::to_string(needed) + " tokens, more than the " +
                                std::to_string(most) + " that this bundle takes";
    if (call.options.strict) throw InputError(message + ": shorten it, or translate it cut short, without strict");
    if (options_.warn) options_.warn(message + ": it was cut");
    ids.resize(most > fixed ? most - fixed : 0);
  }
  return request(around_text(around, ids), call, around.target_prefix);
}

Request Translator::request(Ids source, const Call& call, const Ids& target_prefix) {
  Ids prefix = target_prefix;
  append(prefix, call.prefix);
  return {std::move(source), call.options.max_length, call.options.min_length, std::move(prefix)};
}

Translator::Call Translator::call(const Options& options) const {
  Call result{options, {options.source_language, options.target_language}, {}};
  // An unknown or missing language is reported before any sentence is read.
  const std::size_t fixed = affixes(manifest_.tokenizer, result.languages).target_prefix.size();
  if (const auto* ids = std::get_if<Ids>(&options.prefix)) {
    check_ids(*ids, manifest_.model.target_vocabulary, "the prefix");
    result.prefix = *ids;
  } else if (const auto& text = std::get<std::string>(options.prefix); !text.empty()) {
    check_utf8(text, "the prefix");
    result.prefix = tokenizer_->encode_prefix(text);
  }
  check_lengths(options, fixed + result.prefix.size());
  return result;
}

void Translator::check_lengths(const Options& options, std::size_t prefix) const {
  std::int64_t most = engine_->limits().target;
  if (options.max_length && (*options.max_length < 1 || *options.max_length > most)) {
    throw InputError(between("maximum length", *options.max_length, 1, most, "the most of this bundle"));
  }
  most = options.max_length.value_or(most);
  if (options.min_length < 0 || options.min_length > most) {
    throw InputError(between("minimum length", options.min_length, 0, most, "the maximum length"));
  }
  if (static_cast<std::int64_t>(prefix) >= most) {
    throw InputError("a prefix of " + std::to_string(prefix) +
                     " tokens leaves no room for more: the maximum length is " + std::to_string(most));
  }
}

std::vector<Result> Translator::decode(const std::vector<Request>& requests, bool scores) const {
  return decode_all(*engine_, requests, {options_.batch, options_.batch_tokens, scores, options_.workers});
}

Translation Translator::translation(Result result, bool truncated) const {
  std::string text = tokenizer_->decode(result.ids);
  return {std::move(text), std::move(result.ids), std::move(result.scores), truncated};
}

PieceStream::PieceStream(const Translator& translator, std::string_view sentence, const Options& options)
    : text_(*translator.tokenizer_) {
  bool truncated = false;
  auto asked = translator.request(sentence, translator.call(options), "the sentence", truncated);
  if (asked) tokens_.emplace(*translator.engine_, std::move(*asked), options.scores);
}

std::optional<Piece> PieceStream::next() {
  const auto token = tokens_ ? tokens_->next() : std::nullopt;
  if (!token) return std::nullopt;
  return Piece{token->id, text_.add(token->id, token->last), token->score};
}

}  // namespace txport::core
