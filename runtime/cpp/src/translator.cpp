#include "translator.hpp"

#include <algorithm>

#include "arguments.hpp"
#include "bundle/golden.hpp"
#include "calls/search_options.hpp"
#include "cores.hpp"
#include "engines/choice.hpp"
#include "errors.hpp"
#include "search/decoding.hpp"
#include "text/affixes.hpp"

namespace txport::core {

namespace {

std::string show(const Ids& ids) {
  std::string text;
  for (const std::int64_t id : ids) text += (text.empty() ? "" : ", ") + std::to_string(id);
  return "[" + text + "]";
}

// With more workers, caches and memory cannot supply the weights fast enough.
constexpr int kMaxWorkers = 4;

// Replace 0 with the number of workers, and of threads per worker, so that together they use all cores.
void share_cores(int& workers, int& threads) {
  const int cores = usable_cores();
  if (workers == 0) workers = std::max(1, std::min(kMaxWorkers, cores / std::max(1, threads)));
  if (threads == 0 && workers > 1) threads = std::max(1, cores / workers);
}

}  // namespace

Translator::Translator(const Bundle& bundle, TranslatorOptions options)
    : bundle_(bundle), options_(std::move(options)) {
  if (options_.threads < 0 || options_.workers < 0 || options_.batch.value_or(1) < 1 || options_.batch_tokens < 1) {
    throw InputError("threads and workers must be 0 or more, batch and batch_tokens 1 or more");
  }
  manifest_ = Manifest::load(bundle);
  Choice choice = choose(bundle, manifest_, options_.where);
  manifest_.check_files(bundle, [this](const std::string& name) { return options_.verify || name != kWeightsName; });
  tokenizer_ = open_tokenizer(bundle, manifest_);
  shortlist_ = open_shortlist(bundle, manifest_);
  const bool many = options_.workers != 1;
  if (choice.device == "cpu") {
    share_cores(options_.workers, options_.threads);
  } else {
    options_.workers = 1;
  }
  engine_ = open_engine(bundle, manifest_, choice, {options_.threads, many}, options_.warn);
  reason_ = choice.reason;
  scorer_ = std::make_unique<Scorer>(bundle, manifest_, *tokenizer_, *engine_, options_.threads);
  queue_ = std::make_unique<Queue>(*engine_, SearchOptions{options_.batch, options_.batch_tokens});
  const SearchOptions search{options_.batch, options_.batch_tokens, options_.workers};
  const int cores = usable_cores();
  const int parallel = std::max(1, cores / (options_.threads > 0 ? options_.threads : cores));
  shared_ = std::make_unique<SharedBatches>(*engine_, search, static_cast<std::size_t>(parallel));
  if (options_.batch) check_between("batch", *options_.batch, 1, engine_->limits().batch, "the maximum of this bundle");
}

std::vector<Translation> Translator::translate(const std::vector<std::string_view>& sentences, const Options& options,
                                               const std::string& what, std::size_t first) const {
  const Call shared = call(options);
  std::vector<Translation> results(sentences.size());
  std::vector<Sentence> nonempty;
  std::vector<std::size_t> work;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    if (options.scores) results[i].scores.emplace();
    auto sentence = shared.sentence(sentences[i], what + " " + std::to_string(first + i), first + i);
    if (!sentence) continue;
    work.push_back(i);
    nonempty.push_back(std::move(*sentence));
  }
  std::vector<Translation> output = translations(nonempty, shared.options());
  for (std::size_t i = 0; i < work.size(); ++i) results[work[i]] = std::move(output[i]);
  return results;
}

Document Translator::translate_document(std::string_view text, const Options& options, const std::string& what) const {
  const Call shared = call(options);
  const Draft draft(shared, text, what);
  std::vector<Sentence> nonempty;
  for (const auto& sentence : draft.sentences()) {
    if (sentence) nonempty.push_back(*sentence);
  }
  std::vector<Translation> output = translations(nonempty, shared.options());
  std::vector<Translation> all(draft.sentences().size());
  auto next = output.begin();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (draft.sentences()[i]) {
      all[i] = std::move(*next++);
    } else if (options.scores) {
      all[i].scores.emplace();
    }
  }
  return draft.built(std::move(all));
}

std::vector<Translation> Translator::translate_features(std::vector<FloatMatrix> arrays, const Options& options) const {
  const Call shared = call(options, true);
  std::vector<Sentence> sentences;
  sentences.reserve(arrays.size());
  for (FloatMatrix& array : arrays) {
    const std::size_t number = sentences.size() + 1;
    sentences.push_back(of_vectors(shared, std::move(array), "array " + std::to_string(number), number));
  }
  return translations(sentences, shared.options());
}

Sentence Translator::of_vectors(const Call& call, FloatMatrix array, const std::string& what,
                                std::size_t number) const {
  check_vectors(array, manifest_.model.feature_size.value(), engine_->limits().source, what);
  return call.of_vectors(std::make_shared<const FloatMatrix>(std::move(array)), number);
}

std::vector<Translation> Translator::translate_ids(const std::vector<Ids>& sources, const Options& options) const {
  check_reads(false);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    scorer_->check_source(sources[i], "sentence " + std::to_string(i + 1));
  }
  const Call shared = call(options);
  std::vector<Sentence> nonempty;
  nonempty.reserve(sources.size());
  for (const Ids& source : sources) nonempty.push_back(shared.of_ids(source, nonempty.size() + 1));
  return translations(nonempty, shared.options());
}

namespace {

// A sentence in the queue, with its text, options and listener.
struct Submitted {
  std::shared_ptr<const std::string> text;  // owner of the text of `sentence`; null for vectors
  Sentence sentence;
  Options options;
  TextStream pieces;
  Listener<Translation, Piece> listener;
};

}  // namespace

std::shared_ptr<Ticket> Translator::submit(std::string_view sentence, const Options& options,
                                           Listener<Translation, Piece> listener, std::optional<double> seconds) const {
  const Call shared = call(options);
  auto text = std::make_shared<const std::string>(sentence);
  auto parsed = shared.sentence(*text, "the sentence");
  if (!parsed) {
    Translation nothing;
    if (options.scores) nothing.scores.emplace();
    listener.answer(std::move(nothing));
    return std::make_shared<Ticket>();
  }
  return enqueue(std::move(*parsed), std::move(text), shared.options(), std::move(listener), seconds);
}

std::shared_ptr<Ticket> Translator::submit_features(FloatMatrix array, const Options& options,
                                                    Listener<Translation, Piece> listener,
                                                    std::optional<double> seconds) const {
  const Call shared = call(options, true);
  Sentence sentence = of_vectors(shared, std::move(array), "the array", 1);
  return enqueue(std::move(sentence), nullptr, shared.options(), std::move(listener), seconds);
}

std::shared_ptr<Ticket> Translator::enqueue(Sentence sentence, std::shared_ptr<const std::string> text,
                                            const Options& options, Listener<Translation, Piece> listener,
                                            std::optional<double> seconds) const {
  if (listener.part) {
    check_streams(sentence.request.search);
    check_pieces(options);
  }
  const auto job = std::make_shared<Submitted>(
      Submitted{std::move(text), std::move(sentence), options, TextStream(*tokenizer_), std::move(listener)});
  Listener<Result, Token> of_ids;
  of_ids.answer = [this, job](Result result) {
    std::vector<Result> results;
    results.push_back(std::move(result));
    job->listener.answer(std::move(built({job->sentence}, std::move(results), job->options).front()));
  };
  of_ids.failure = job->listener.failure;
  if (job->listener.part) {
    of_ids.part = [job](const Token& token) {
      job->listener.part({token.id, job->pieces.add(token.id, token.last), token.score});
    };
  }
  return queue_->submit(job->sentence.request, std::move(of_ids), seconds);
}

std::vector<Score> Translator::score(const std::vector<std::string_view>& sentences,
                                     const std::vector<GivenTarget>& answers, const Options& options) const {
  return scorer_->score(call(options), sentences, answers);
}

std::vector<Score> Translator::score_ids(const std::vector<Ids>& sources, const std::vector<Ids>& answers) const {
  check_reads(false);
  return scorer_->score_ids(sources, answers);
}

std::vector<FloatMatrix> Translator::embed(const std::vector<std::string_view>& sentences, const Options& options,
                                           bool pooled) const {
  return scorer_->embed(call(options), sentences, pooled);
}

std::string Translator::self_check() const {
  const std::string path = bundle_.name(kGoldenName);
  const std::vector<Case> cases = parse_golden(bundle_.read(kGoldenName), path);
  const Ids prefix = affixes(manifest_.tokenizer, {}).target_prefix;
  const std::int64_t max_target = engine_->limits().target;
  std::vector<Request> requests;
  for (const Case& item : cases) {  // generate only as many tokens as are compared
    const auto length = static_cast<std::int64_t>(item.target_ids.size());
    requests.push_back({item.source_ids, std::min(max_target, std::max<std::int64_t>(1, length)), 0, prefix, false});
    requests.back().vectors = item.vectors;
  }
  const SearchOptions search{options_.batch, options_.batch_tokens, options_.workers};
  const std::vector<Result> batch = decode_all(*engine_, requests, search);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto differs = [&](const std::string& what, const Ids& expected, const Ids& actual) {
      return "case " + std::to_string(i) + " of " + path + " differs in the " + what + " with " + engine_->name() +
             ": expected " + show(expected) + ", found " + show(actual);
    };
    Ids expected = cases[i].target_ids;
    expected.resize(std::min(expected.size(), static_cast<std::size_t>(max_target)));
    const auto begins = [&](const Ids& actual) {
      return actual.size() >= expected.size() && std::equal(expected.begin(), expected.end(), actual.begin());
    };
    if (!begins(batch[i].ids())) return differs("ids of a batch", expected, batch[i].ids());
    const Ids alone = decode_all(*engine_, {requests[i]}, search)[0].ids();
    if (!begins(alone)) return differs("ids of the sentence alone", expected, alone);
    if (manifest_.tokenizer.kind != "sentencepiece" || cases[i].vectors != nullptr) continue;
    std::string_view text = cases[i].source;
    const Affixes affixes = affixes_of(text, manifest_.tokenizer, {}, manifest_.tokens.unk);
    const Ids source = affixes.wrap(tokenizer_->encode(text));
    if (source != cases[i].source_ids) return differs("source ids", cases[i].source_ids, source);
  }
  return "";
}

void Translator::check_reads(bool features) const {
  if (features && !manifest_.model.feature_size) throw InputError(kReadsIds);
  if (!features && manifest_.model.feature_size) throw InputError(kReadsFeatures);
}

Call Translator::call(const Options& options, bool features) const {
  check_reads(features);
  Call call(manifest_, *tokenizer_, engine_->limits(), options, options_.warn, shortlist_.get());
  scorer_->check(call.options());
  return call;
}

std::vector<Translation> Translator::translations(const std::vector<Sentence>& sentences,
                                                  const Options& options) const {
  std::vector<Request> requests;
  requests.reserve(sentences.size());
  for (const Sentence& sentence : sentences) requests.push_back(sentence.request);
  return built(sentences, shared_->decode(std::move(requests)), options);
}

std::vector<Translation> Translator::built(const std::vector<Sentence>& sentences, std::vector<Result> results,
                                           const Options& options) const {
  const bool aligned = options.alignments || options.attention || options.replace_unknowns.value_or(false);
  std::vector<Sentence> aligned_sentences;  // one for each hypothesis
  std::vector<Translation> output;
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (Hypothesis& hypothesis : results[i].hypotheses) {
      output.push_back(translation(sentences[i], std::move(hypothesis)));
      if (aligned) aligned_sentences.push_back(sentences[i]);
    }
  }
  if (aligned) scorer_->align(options, aligned_sentences, output);
  std::vector<Translation> grouped;
  auto next = output.begin();
  for (const Result& result : results) {
    const auto end = next + static_cast<std::ptrdiff_t>(result.hypotheses.size());
    Translation& best = grouped.emplace_back(*next);
    if (result.hypotheses.size() > 1) best.hypotheses.assign(next, end);
    next = end;
  }
  return grouped;
}

Translation Translator::translation(const Sentence& sentence, Hypothesis hypothesis) const {
  Ids visible = sentence.visible(hypothesis.ids);
  const std::int64_t last = hypothesis.ids.back();
  const bool by_rule = visible.size() < hypothesis.ids.size();
  Translation output;
  output.text = tokenizer_->decode(visible);
  output.finished = by_rule || last == manifest_.tokens.eos;
  if (output.finished && !by_rule) visible.pop_back();
  output.looped = looped(visible);
  output.ids = std::move(hypothesis.ids);
  output.scores = std::move(hypothesis.scores);
  output.score = hypothesis.score;
  output.truncated = sentence.truncated;
  return output;
}

PieceStream::PieceStream(const Translator& translator, std::string_view sentence, const Options& options)
    : text_(*translator.tokenizer_) {
  check(options);
  const Call call = translator.call(options);
  check_pieces(call.options());
  auto parsed = call.sentence(sentence, "the sentence");
  if (parsed) tokens_.emplace(*translator.engine_, std::move(parsed->request));
}

PieceStream::PieceStream(const Translator& translator, FloatMatrix array, const Options& options)
    : text_(*translator.tokenizer_) {
  check(options);
  const Call call = translator.call(options, true);
  check_pieces(call.options());
  tokens_.emplace(*translator.engine_, translator.of_vectors(call, std::move(array), "the array", 1).request);
}

void PieceStream::check(const Options& options) {
  if (options.alignments || options.attention) {
    throw InputError("a stream has no alignments and no attention: use translate for these");
  }
}

std::optional<Piece> PieceStream::next() {
  const auto token = tokens_ ? tokens_->next() : std::nullopt;
  if (!token) return std::nullopt;
  return Piece{token->id, text_.add(token->id, token->last), token->score};
}

}  // namespace txport::core
