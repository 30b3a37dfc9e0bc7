#include "translator.hpp"

#include <algorithm>

#include "bundle/files.hpp"
#include "bundle/golden.hpp"
#include "bundle/interface.hpp"
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

std::string numbered(const char* what, std::size_t index) {
  return std::string(what) + " " + std::to_string(index + 1);
}

void check_pairs(std::size_t sentences, std::size_t answers) {
  if (sentences != answers) {
    throw InputError("there are " + std::to_string(sentences) + " sentences and " + std::to_string(answers) +
                     " translations: give one for each");
  }
}

// The mean of all rows.
FloatMatrix mean_of(const FloatMatrix& matrix) {
  FloatMatrix mean{1, matrix.columns, std::vector<float>(matrix.columns)};
  for (std::size_t i = 0; i < matrix.values.size(); ++i) mean.values[i % matrix.columns] += matrix.values[i];
  for (float& value : mean.values) value /= static_cast<float>(matrix.rows);
  return mean;
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
  forcing_ = make_teacher_forcing(bundle, manifest_, *engine_, options_.threads);
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
  std::vector<Origin> origins;
  std::vector<std::size_t> work;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    if (options.scores) results[i].scores.emplace();
    Origin origin;
    auto asked = request(sentences[i], shared, what + " " + std::to_string(first + i), origin);
    if (!asked) continue;
    work.push_back(i);
    requests.push_back(std::move(*asked));
    origins.push_back(origin);
  }
  std::vector<Translation> made = translations(requests, origins, shared);
  for (std::size_t i = 0; i < work.size(); ++i) results[work[i]] = std::move(made[i]);
  return results;
}

std::vector<Translation> Translator::translate_ids(const std::vector<Ids>& sources, const Options& options) const {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    check_given(sources[i], manifest_.model.source_vocabulary, manifest_.limits().source, numbered("sentence", i));
  }
  const Call shared = call(options);
  const Ids begin = affixes(manifest_.tokenizer, shared.languages).target_prefix;
  std::vector<Request> requests;
  requests.reserve(sources.size());
  for (const Ids& source : sources) requests.push_back(request(source, shared, begin));
  return translations(requests, std::vector<Origin>(requests.size()), shared);
}

std::vector<Score> Translator::score(const std::vector<std::string_view>& sentences, const std::vector<Answer>& answers,
                                     const Options& options) const {
  const Call shared = call(options);
  check_pairs(sentences.size(), answers.size());
  std::vector<Request> requests;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    requests.push_back(needed(sentences[i], shared, numbered("sentence", i)));
  }
  std::vector<Ids> sources;
  std::vector<Ids> targets;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    targets.push_back(target_of(answers[i], requests[i], shared, numbered("translation", i)));
    sources.push_back(std::move(requests[i].source_ids));
  }
  return scores(sources, std::move(targets));
}

std::vector<Score> Translator::score_ids(const std::vector<Ids>& sources, const std::vector<Ids>& answers) const {
  check_pairs(sources.size(), answers.size());
  const Limits most = manifest_.limits();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    check_given(sources[i], manifest_.model.source_vocabulary, most.source, numbered("sentence", i));
  }
  for (std::size_t i = 0; i < answers.size(); ++i) {
    check_given(answers[i], manifest_.model.target_vocabulary, most.target, numbered("translation", i));
  }
  return scores(sources, answers);
}

std::vector<FloatMatrix> Translator::embed(const std::vector<std::string_view>& sentences, const Options& options,
                                           bool pooled) const {
  const Call shared = call(options);
  std::vector<Ids> sources;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    sources.push_back(needed(sentences[i], shared, numbered("sentence", i)).source_ids);
  }
  check_has(directory_, manifest_, kEncoderAttention);
  std::vector<FloatMatrix> found(sources.size());
  forcing_->memories(sources, [&](std::size_t index, FloatMatrix memory) {
    found[index] = pooled ? mean_of(memory) : std::move(memory);
  });
  return found;
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
                                           Origin& origin) const {
  check_utf8(text, what);
  if (is_blank(text)) return std::nullopt;
  origin.text = text;
  const Affixes around = affixes_of(text, manifest_.tokenizer, call.languages, manifest_.tokens.unk);
  origin.skipped = origin.text.size() - text.size();
  Ids ids = tokenizer_->encode(text);
  if (ids.empty()) return std::nullopt;
  const auto most = static_cast<std::size_t>(engine_->limits().source);
  const std::size_t fixed = around.source_prefix.size() + around.source_suffix.size();
  const std::size_t needed = fixed + ids.size();
  origin.truncated = needed > most;
  if (origin.truncated) {
    const std::string message = what + " has " + std::to_string(needed) + " tokens, more than the " +
                                std::to_string(most) + " that this bundle takes";
    if (call.options.strict) throw InputError(message + ": shorten it, or leave out the option strict to have it cut");
    if (options_.warn) options_.warn(message + ": it was cut");
    ids.resize(most > fixed ? most - fixed : 0);
  }
  origin.first = around.source_prefix.size();
  origin.last = origin.first + ids.size();
  return request(around_text(around, ids), call, around.target_prefix);
}

Request Translator::request(Ids source, const Call& call, const Ids& target_prefix) {
  Ids prefix = target_prefix;
  append(prefix, call.prefix);
  return {std::move(source), call.options.max_length, call.options.min_length, std::move(prefix)};
}

Request Translator::needed(std::string_view text, const Call& call, const std::string& what) const {
  Origin origin;
  auto found = request(text, call, what, origin);
  if (!found) throw InputError(what + " is empty: give text");
  return std::move(*found);
}

// The ids of a given translation, as long as the bundle takes at most.
Ids Translator::target_of(const Answer& answer, const Request& request, const Call& call,
                          const std::string& what) const {
  Ids ids;
  if (const auto* text = std::get_if<std::string_view>(&answer)) {
    check_utf8(*text, what);
    const Ids own = tokenizer_->encode_prefix(*text);
    if (own.empty()) throw InputError(what + " is empty: there is nothing to score");
    const auto language = static_cast<std::ptrdiff_t>(request.prefix.size() - call.prefix.size());
    ids.assign(request.prefix.begin(), request.prefix.begin() + language);
    append(ids, own);
    ids.push_back(manifest_.tokens.eos);
  } else {
    ids = std::get<Ids>(answer);
  }
  check_given(ids, manifest_.model.target_vocabulary, manifest_.limits().target, what);
  return ids;
}

void Translator::check_given(const Ids& ids, std::int64_t vocabulary, std::int64_t most,
                             const std::string& what) const {
  check_ids(ids, vocabulary, what);
  const auto is_padding = [this](std::int64_t id) { return id == manifest_.tokens.pad; };
  if (std::all_of(ids.begin(), ids.end(), is_padding)) {
    throw InputError(what + " has no id but padding: give at least one");
  }
  if (ids.size() > static_cast<std::size_t>(most)) {
    throw InputError(what + " has " + std::to_string(ids.size()) + " tokens, more than the " + std::to_string(most) +
                     " that this bundle takes: shorten it");
  }
}

Translator::Call Translator::call(const Options& options) const {
  // Before any work is done.
  if (options.alignments || options.attention) check_has(directory_, manifest_, kDecoder);
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

std::vector<Translation> Translator::translations(const std::vector<Request>& requests,
                                                  const std::vector<Origin>& origins, const Call& call) const {
  std::vector<Translation> made;
  for (Result& result : decode(requests, call.options.scores)) {
    Translation& added = made.emplace_back();
    added.text = tokenizer_->decode(result.ids);
    added.ids = std::move(result.ids);
    added.scores = std::move(result.scores);
    added.truncated = origins[made.size() - 1].truncated;
    added.finished = !added.ids.empty() && added.ids.back() == manifest_.tokens.eos;
  }
  if (!call.options.alignments && !call.options.attention) return made;
  std::vector<Ids> sources;
  std::vector<Ids> targets;
  for (std::size_t i = 0; i < made.size(); ++i) {
    sources.push_back(requests[i].source_ids);
    targets.push_back(made[i].ids);
  }
  forcing_->read(sources, targets, true, [&](std::size_t i, const Reading& reading) {
    FloatMatrix attention = averaged(reading.cross, manifest_.alignment_heads);
    if (call.options.alignments) made[i].alignment = alignment(requests[i], origins[i], made[i], call, attention);
    if (call.options.attention) made[i].attention = std::move(attention);
  });
  return made;
}

Alignment Translator::alignment(const Request& request, const Origin& origin, const Translation& translation,
                                const Call& call, const FloatMatrix& attention) const {
  const SpecialTokens& tokens = manifest_.tokens;
  const auto is_special = [&tokens](std::int64_t id) {
    return id == tokens.pad || id == tokens.bos || id == tokens.eos;
  };
  const std::size_t forced = request.prefix.size() - call.prefix.size();  // ids of languages
  std::vector<bool> aligned;
  for (const std::int64_t id : translation.ids) aligned.push_back(aligned.size() >= forced && !is_special(id));
  Alignment result;
  result.source_spans.resize(request.source_ids.size());
  std::vector<std::size_t> own;  // positions of the text's ids
  if (origin.text.empty()) {
    for (std::size_t i = 0; i < request.source_ids.size(); ++i) {
      if (!is_special(request.source_ids[i])) own.push_back(i);
    }
  } else {
    const std::vector<Span> found = tokenizer_->spans(origin.text.substr(origin.skipped));
    for (std::size_t i = origin.first; i < origin.last; ++i) {
      own.push_back(i);
      const Span& span = found.at(i - origin.first);
      result.source_spans[i] = stripped({span.start + origin.skipped, span.end + origin.skipped}, origin.text);
    }
  }
  for (const Span& span : target_spans(*tokenizer_, translation.ids)) {
    result.target_spans.push_back(stripped(span, translation.text));
  }
  result.tokens = align_tokens(attention, own, aligned);
  result.source_words = words_of(origin.text);
  result.target_words = words_of(translation.text);
  align_words(result);
  return result;
}

std::vector<Score> Translator::scores(const std::vector<Ids>& sources, std::vector<Ids> targets) const {
  check_has(directory_, manifest_, kDecoder);
  std::vector<Score> found(targets.size());
  forcing_->read(sources, targets, false, [&](std::size_t i, const Reading& reading) {
    found[i].scores.assign(reading.log_probabilities.begin(), reading.log_probabilities.end());
  });
  for (std::size_t i = 0; i < targets.size(); ++i) found[i].ids = std::move(targets[i]);
  return found;
}

PieceStream::PieceStream(const Translator& translator, std::string_view sentence, const Options& options)
    : text_(*translator.tokenizer_) {
  if (options.alignments || options.attention) {
    throw InputError("a stream has no alignments and no attention: use translate for these");
  }
  Translator::Origin origin;
  auto asked = translator.request(sentence, translator.call(options), "the sentence", origin);
  if (asked) tokens_.emplace(*translator.engine_, std::move(*asked), options.scores);
}

std::optional<Piece> PieceStream::next() {
  const auto token = tokens_ ? tokens_->next() : std::nullopt;
  if (!token) return std::nullopt;
  return Piece{token->id, text_.add(token->id, token->last), token->score};
}

}  // namespace txport::core
