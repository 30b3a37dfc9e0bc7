// txport: run bundles of encoder-decoder Transformers. This is the C++ API, a thin wrapper around the C ABI (txport.h).
//
//   txport::Translator translator("bundle");
//   for (const auto& result : translator.translate({"a sentence", "another one"})) std::cout << result.text << "\n";
//
// It requires only C++17 and the standard library. Text is UTF-8.
#ifndef TXPORT_TXPORT_HPP
#define TXPORT_TXPORT_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "txport/txport.h"

namespace txport {

// Base of all errors. Each message is one sentence with the file, the value and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller passed an invalid argument, option or text.
class InputError : public Error {
 public:
  using Error::Error;
};

// The bundle is incomplete, modified or newer than this library, or cannot run here.
class BundleError : public Error {
 public:
  using Error::Error;
};

// The self-check was completed and found a difference.
class CheckFailed : public Error {
 public:
  using Error::Error;
};

// Not enough host or GPU memory: retry later, or with a smaller batch.
class ResourceError : public Error {
 public:
  using Error::Error;
};

// A library or a GPU failed. After a GPU failure, open the bundle again.
class EngineError : public Error {
 public:
  using Error::Error;
};

// A library or a driver is not installed or cannot be loaded.
class MissingLibrary : public Error {
 public:
  using Error::Error;
};

// The request was cancelled before it was finished.
class Cancelled : public Error {
 public:
  using Error::Error;
};

// The request was not finished at its deadline.
class DeadlineExceeded : public Error {
 public:
  using Error::Error;
};

// A bug in txport or in a library that it uses: please report the message.
class InternalError : public Error {
 public:
  using Error::Error;
};

// Options for opening a bundle.
struct TranslatorOptions {
  std::string device = "auto";    // auto, cpu or cuda
  std::string engine = "auto";    // auto, fused (txport's for CPUs), ort (ONNX Runtime) or trt (TensorRT)
  std::string lowering;           // for experts: decoder step graph, ort, scatter or tensorscatter; empty: the best
  std::int32_t threads = 0;       // threads of each operator; 0: one per core
  std::int32_t batch = 0;         // maximum batch size in sentences; 0: the bundle's maximum
  std::int32_t batch_tokens = 0;  // maximum batch size in source tokens, including padding; 0: 4096
  std::function<void(const std::string&)> warning;  // called with one sentence; must not throw
  std::int32_t workers = 1;    // parallel batches on the CPU, which share the cores; 0: one per core, at most 4
  bool trust_engines = false;  // allow TensorRT engines in the bundle; they are native code, so trust its author
  bool verify = false;         // also compare the hash of the weights; hashes of other files are always compared
};

// Options for every sentence of a call.
struct Options {
  std::int32_t max_length = 0;  // maximum number of target tokens, including eos; 0: 2 x source tokens + 20
  bool full_length = false;     // without max_length, allow up to the bundle's maximum length
  std::int32_t min_length = 0;  // minimum number of target tokens
  std::variant<std::string, std::vector<std::int64_t>> prefix;  // text or target ids that every translation begins with
  bool scores = false;                                          // compute Translation::scores
  bool strict = false;          // refuse sentences that are too long, instead of truncating them with a warning
  std::string source_language;  // for multilingual bundles; empty: the bundle's default
  std::string target_language;
  // These two require a bundle exported with tx-export --with-attention. Streams refuse both.
  bool alignments = false;  // compute Translation::alignment
  bool attention = false;   // compute Translation::attention

  // Search options, with the meaning that they have in Hugging Face's `generate`. 0, empty or no value selects the
  // default or, if `generation` is "model", the model's generation setting. Streams refuse beams, sampling and
  // alternatives.
  using Ids = std::vector<std::int64_t>;
  std::string generation;                // greedy or model; empty: greedy
  std::int32_t beam = 0;                 // number of beams; 0: 1, greedy search
  std::int32_t n_best = 0;               // translations of each text: hypotheses, up to `beam`, or samples; 0: 1
  std::optional<double> length_penalty;  // exponent of the length that beam scores are divided by; default 1
  // When beam search stops: "true": after enough finished hypotheses; "false": when a better one is unlikely; "never":
  // when a better one is impossible; empty: false.
  std::string early_stopping;
  double patience = 0;               // with early_stopping "true": stop after beam x patience finished hypotheses; 0: 1
  double repetition_penalty = 0;     // penalty for repeated tokens; 0: 1
  std::int32_t no_repeat_ngram = 0;  // never repeat an n-gram of this size; 0: no rule
  std::vector<std::variant<std::string, Ids>> bad_words;  // texts and id sequences that translations must not contain
  Ids suppress;                                           // ids that are never generated
  Ids begin_suppress;                                     // ids that are never generated first
  Ids end_ids;                                            // ids that end a translation, in addition to eos
  std::optional<std::int64_t> forced_end;  // id that is generated last when the maximum length is reached
  std::optional<bool> renormalize;         // renormalize probabilities of beams after all rules
  std::optional<bool> sample;              // sample tokens at random
  double temperature = 0;                  // temperature that divides the logits before sampling; 0: 1
  std::optional<std::int64_t> top_k;       // sample from the k most likely tokens; 0: all
  double top_p = 0;               // nucleus sampling: smallest set of best tokens with this total probability; 0: 1
  double min_p = 0;               // sample from tokens at least this fraction as likely as the best one
  std::int64_t seed = 0;          // random seed for sampling
  std::int32_t alternatives = 0;  // branch on the N best tokens after the prefix; 0: none
  bool shortlist = false;         // restrict target tokens to the bundle's shortlist for the source
  // Replace each unknown token by the source token with the most attention, for bundles of tx-export --with-attention.
  // Streams refuse it.
  std::optional<bool> replace_unknowns;
};

// A byte range [start, end) of a text.
using Span = txport_span;
// Two aligned words: the index of the source word and of the target word.
using WordPair = txport_word_pair;

// Alignment of a translation with its source, computed from cross-attention. Spans of tokens exclude white space; they
// are empty for tokens that are not part of the text, such as eos. Words are separated by white space.
struct Alignment {
  std::vector<std::int64_t> tokens;  // position of the source id that each target id is aligned with; -1: none
  std::vector<Span> source_tokens;
  std::vector<Span> target_tokens;
  std::vector<Span> source_words;
  std::vector<Span> target_words;
  std::vector<WordPair> words;  // pairs of words with at least one pair of aligned tokens, sorted
  std::string pharaoh;          // these pairs in Pharaoh format: "0-0 1-2", source first
  // For each target id, the time in seconds at which its feature vector begins; -1: none. Empty if the bundle does not
  // have the number of vectors per second.
  std::vector<double> times;
};

// A matrix in row-major order.
struct Matrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<float> values;

  float operator()(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
};

// Score of a given translation.
struct Score {
  std::vector<std::int64_t> ids;  // target ids without bos, including eos
  std::vector<double> scores;     // natural log-probability of each id given the ids before it

  // Return the log-probability of the whole translation.
  double total() const {
    double sum = 0;
    for (const double score : scores) sum += score;
    return sum;
  }
};

// The translation of one sentence.
struct Translation {
  std::string text;                    // empty for an empty sentence
  std::vector<std::int64_t> ids;       // without bos; the last one is eos unless the maximum length was reached
  std::vector<double> scores;          // natural log-probability of each id, with the option scores
  bool truncated = false;              // the sentence was longer than the bundle supports and was truncated
  bool finished = true;                // it ended with eos or is empty; false if it reached the maximum length
  std::optional<Alignment> alignment;  // with the option alignments; none for an empty sentence
  Matrix attention;             // of each target id (row) over the source ids, with the option attention; rows sum to 1
  bool looped = false;          // it ends with at least three repetitions of one phrase, at least twelve tokens
  std::optional<double> score;  // beam search: log-probability divided by a power of the length
  std::vector<Translation>
      hypotheses;  // all that n_best or alternatives requested, this one first; empty for a single one
};

// A sentence of a document, or a part of one.
struct Part {
  Span source{};            // byte range in the document
  Span target{};            // byte range of the translation in the translated document
  bool cut = false;         // it is a part of a sentence that is longer than the model supports
  Translation translation;  // of its text, with line breaks replaced by spaces
};

// A translated document with the layout of the source, and its sentences in order.
struct Document {
  std::string text;
  std::vector<Part> parts;
};

// One token of a stream.
struct Piece {
  std::int64_t id = 0;
  std::string text;  // text that this token completes, often empty
  double score = 0;  // log-probability, with the option scores
};

namespace detail {

inline void check(txport_code code) {
  const auto message = [] { return std::string(txport_message()); };
  switch (code) {
    case TXPORT_OK:
    case TXPORT_END:
    case TXPORT_WAITING:
      return;
    case TXPORT_CANCELLED:
      throw Cancelled(message());
    case TXPORT_DEADLINE_EXCEEDED:
      throw DeadlineExceeded(message());
    case TXPORT_INPUT_ERROR:
      throw InputError(message());
    case TXPORT_BUNDLE_ERROR:
      throw BundleError(message());
    case TXPORT_CHECK_FAILED:
      throw CheckFailed(message());
    case TXPORT_RESOURCE_ERROR:
      throw ResourceError(message());
    case TXPORT_ENGINE_ERROR:
      throw EngineError(message());
    case TXPORT_MISSING_LIBRARY:
      throw MissingLibrary(message());
    case TXPORT_INTERNAL_ERROR:
      break;
  }
  throw InternalError(message());
}

inline const char* null_if_empty(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }

// Options in the form of the C ABI. They point into the options of the application, which must outlive them.
struct Fields {
  txport_options all = TXPORT_OPTIONS_INIT;

  explicit Fields(const Options& options) {
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a field and an option with the same name
#define TXPORT_OPTION(kind, name, help) set(all.name, options.name);
#include "txport/options.inc"
#undef TXPORT_OPTION
  }
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

 private:
  // The texts and the sequences of `bad_words`.
  std::vector<const char*> texts_;
  std::vector<txport_ids> sequences_;

  static void set(std::int32_t& field, std::int32_t value) { field = value; }
  static void set(std::int32_t& field, bool value) { field = value ? 1 : 0; }
  static void set(std::int32_t& field, std::optional<bool> value) { field = value ? (*value ? 1 : -1) : 0; }
  static void set(std::int64_t& field, std::int64_t value) { field = value; }
  static void set(double& field, double value) { field = value; }
  static void set(const char*& field, const std::string& value) { field = null_if_empty(value); }
  template <typename T>
  static void set(const T*& field, const std::optional<T>& value) {
    field = value ? &*value : nullptr;
  }
  static void set(txport_ids& field, const Options::Ids& value) { field = {value.data(), value.size()}; }
  void set(const char*& field, const std::variant<std::string, Options::Ids>& prefix) {
    if (const auto* text = std::get_if<std::string>(&prefix)) return set(field, *text);
    const auto& ids = std::get<Options::Ids>(prefix);
    all.prefix_ids = ids.data();
    all.prefix_count = ids.size();
  }
  void set(txport_words& field, const std::vector<std::variant<std::string, Options::Ids>>& words) {
    for (const auto& word : words) {
      if (const auto* text = std::get_if<std::string>(&word)) texts_.push_back(text->c_str());
      if (const auto* ids = std::get_if<Options::Ids>(&word)) sequences_.push_back({ids->data(), ids->size()});
    }
    field = {texts_.data(), texts_.size(), sequences_.data(), sequences_.size()};
  }
};

struct CloseTranslator {
  void operator()(txport_translator* handle) const noexcept { txport_close(handle); }
};
struct FreeResult {
  void operator()(txport_result* handle) const noexcept { txport_result_free(handle); }
};
struct CloseStream {
  void operator()(txport_stream* handle) const noexcept { txport_stream_close(handle); }
};
struct FreePending {
  void operator()(txport_pending* handle) const noexcept { txport_pending_free(handle); }
};

using Result = std::unique_ptr<txport_result, FreeResult>;

// Call a function of the C ABI whose last argument is the result.
template <typename Function, typename... Arguments>
Result result_of(Function call, Arguments... arguments) {
  txport_result* result = nullptr;
  check(call(arguments..., &result));
  return Result(result);
}

// Copy a value of a sentence: a text or an array, if there is one. `more` are arguments of the function `read`.
template <typename Output, typename Function, typename... More>
void copy(Output& output, Function read, const txport_result* result, std::size_t index, More... more) {
  std::size_t length = 0;
  if (const auto* first = read(result, index, more..., &length)) output.assign(first, first + length);
}

inline std::optional<Alignment> alignment(const txport_result* result, std::size_t index) {
  if (txport_result_alignment(result, index, nullptr) == nullptr) return std::nullopt;
  Alignment output;
  copy(output.tokens, txport_result_alignment, result, index);
  copy(output.source_tokens, txport_result_spans, result, index, TXPORT_SOURCE_TOKENS);
  copy(output.target_tokens, txport_result_spans, result, index, TXPORT_TARGET_TOKENS);
  copy(output.source_words, txport_result_spans, result, index, TXPORT_SOURCE_WORDS);
  copy(output.target_words, txport_result_spans, result, index, TXPORT_TARGET_WORDS);
  copy(output.words, txport_result_word_pairs, result, index);
  copy(output.pharaoh, txport_result_pharaoh, result, index);
  copy(output.times, txport_result_times, result, index);
  return output;
}

inline Matrix matrix(decltype(&txport_result_attention) read, const txport_result* result, std::size_t index) {
  Matrix output;
  const float* values = read(result, index, &output.rows, &output.columns);
  output.values.assign(values, values + output.rows * output.columns);
  return output;
}

inline std::vector<Translation> collect(const txport_result* result) {
  std::vector<Translation> translations(txport_result_count(result));
  for (std::size_t i = 0; i < translations.size(); ++i) {
    Translation& output = translations[i];
    copy(output.text, txport_result_text, result, i);
    copy(output.ids, txport_result_ids, result, i);
    copy(output.scores, txport_result_scores, result, i);
    output.truncated = txport_result_truncated(result, i) != 0;
    output.finished = txport_result_finished(result, i) != 0;
    output.looped = txport_result_looped(result, i) != 0;
    output.alignment = alignment(result, i);
    output.attention = matrix(txport_result_attention, result, i);
    if (const double* score = txport_result_score(result, i)) output.score = *score;
    output.hypotheses = collect(txport_result_hypotheses(result, i));
  }
  return translations;
}

inline Document collect_document(const txport_result* result) {
  std::size_t length = 0;
  const char* text = txport_result_document(result, &length);
  Document output{std::string(text, length), {}};
  for (Translation& each : collect(result)) {
    const txport_part* part = txport_result_part(result, output.parts.size());
    output.parts.push_back({part->source, part->target, part->cut != 0, std::move(each)});
  }
  return output;
}

inline std::vector<Score> collect_scores(const Result& result) {
  std::vector<Score> output;
  for (Translation& each : collect(result.get())) output.push_back({std::move(each.ids), std::move(each.scores)});
  return output;
}

// The array must live as long as the result.
inline txport_features features_of(const Matrix& array) {
  if (array.values.size() != array.rows * array.columns) {
    throw InputError("an array has " + std::to_string(array.values.size()) + " numbers: give rows x columns of them");
  }
  return {array.values.data(), array.rows, array.columns};
}

inline void check_pairs(std::size_t sentences, std::size_t translations) {
  if (sentences == translations) return;
  throw InputError("there are " + std::to_string(sentences) + " sentences and " + std::to_string(translations) +
                   " translations: give one for each");
}

// The state of a request, for its callbacks.
struct Request {
  std::promise<Translation> answer;
  std::function<bool(const Piece&)> on_piece;
  std::exception_ptr thrown;  // exception thrown by `on_piece`

  // Pass a token to `on_piece`. Return 0 to continue.
  static int token(void* user, std::int64_t id, const char* text, std::size_t length, double score) noexcept {
    auto* request = static_cast<Request*>(user);
    try {
      return request->on_piece({id, std::string(text, length), score}) ? 0 : 1;
    } catch (...) {
      request->thrown = std::current_exception();
      return 1;
    }
  }

  static void done(void* user, txport_code code, txport_result* handle) noexcept {
    const std::unique_ptr<Request> request(static_cast<Request*>(user));
    const Result result(handle);
    try {
      if (request->thrown) std::rethrow_exception(request->thrown);
      check(code);
      request->answer.set_value(std::move(collect(handle).front()));
    } catch (...) {
      request->answer.set_exception(std::current_exception());
    }
  }
};

// Texts or id sequences in the form of the C ABI: the address and the length of each.
template <typename T>
struct Views {
  std::vector<const T*> items;
  std::vector<std::size_t> lengths;

  template <typename Items>
  explicit Views(const Items& all) {
    static constexpr T nothing = 0;  // the address of an empty vector may be NULL
    for (const auto& item : all) {
      items.push_back(item.empty() ? &nothing : item.data());
      lengths.push_back(item.size());
    }
  }
};

}  // namespace detail

// Return the version of the library, such as "0.1.0".
inline std::string version() { return txport_version(); }

// A translation that is fetched token by token. It may outlive its translator.
class Stream {
 public:
  // Return the next token, or nothing after the last one.
  std::optional<Piece> next() {
    Piece piece;
    const char* text = nullptr;
    std::size_t length = 0;
    const txport_code code = txport_stream_next(handle_.get(), &piece.id, &text, &length, &piece.score);
    detail::check(code);
    if (code == TXPORT_END) return std::nullopt;
    piece.text.assign(text, length);
    return piece;
  }

 private:
  friend class Translator;
  explicit Stream(txport_stream* handle) : handle_(handle) {}
  std::unique_ptr<txport_stream, detail::CloseStream> handle_;
};

// A std::future of a translation that can be cancelled. It may outlive its translator. Destroying it does not cancel
// the request.
class Pending : public std::future<Translation> {
 public:
  // These four work as in std::future. In a forked process they throw EngineError for an unfinished request of the
  // parent.
  Translation get() {
    check_process();
    return std::future<Translation>::get();
  }
  void wait() const {
    check_process();
    std::future<Translation>::wait();
  }
  template <typename Rep, typename Period>
  std::future_status wait_for(const std::chrono::duration<Rep, Period>& time) const {
    check_process();
    return std::future<Translation>::wait_for(time);
  }
  template <typename Clock, typename Duration>
  std::future_status wait_until(const std::chrono::time_point<Clock, Duration>& time) const {
    check_process();
    return std::future<Translation>::wait_until(time);
  }

  // Cancel the request; any thread may call this. `get` then throws Cancelled, unless the request is already finished.
  void cancel() const noexcept { txport_pending_cancel(handle_.get()); }

 private:
  void check_process() const {
    if (!valid() || std::future<Translation>::wait_for(std::chrono::seconds(0)) == std::future_status::ready) return;
    txport_result* none = nullptr;  // the result goes to `done`
    const txport_code code = txport_pending_wait(handle_.get(), 0, &none);
    if (code == TXPORT_ENGINE_ERROR) detail::check(code);
  }
  friend class Translator;
  Pending(std::future<Translation> answer, txport_pending* handle)
      : std::future<Translation>(std::move(answer)), handle_(handle) {}
  std::unique_ptr<txport_pending, detail::FreePending> handle_;
};

// The bytes of a tx-pack file.
struct BundleBytes {
  const void* data = nullptr;
  std::size_t size = 0;
};

// A bundle, ready to translate. Threads may share one. Its destructor cancels unfinished requests.
class Translator {
 public:
  // Open a directory of tx-export or a file of tx-pack. Throws BundleError, InputError.
  explicit Translator(const std::string& bundle, const TranslatorOptions& options = {})
      : Translator(options, [&](const txport_translator_options* fields, txport_translator** handle) {
          return txport_open(bundle.c_str(), fields, handle);
        }) {}

  // Open the bytes of a tx-pack file. Their address must be a multiple of 8. They must outlive the translator, its
  // streams and its pending requests.
  explicit Translator(BundleBytes bundle, const TranslatorOptions& options = {})
      : Translator(options, [&](const txport_translator_options* fields, txport_translator** handle) {
          return txport_open_memory(bundle.data, bundle.size, fields, handle);
        }) {}
  // Translate sentences and return the results in the same order. Throws InputError, BundleError.
  std::vector<Translation> translate(const std::vector<std::string>& sentences, const Options& options = {}) const {
    const detail::Views<char> texts(sentences);
    const detail::Fields fields(options);
    const detail::Result result = detail::result_of(txport_translate, handle_.get(), texts.items.data(),
                                                    texts.lengths.data(), texts.items.size(), &fields.all);
    return detail::collect(result.get());
  }

  // Translate one sentence.
  Translation translate(const std::string& sentence, const Options& options = {}) const {
    return std::move(translate(std::vector<std::string>{sentence}, options).front());
  }

  // Translate a text of any length and keep its layout: paragraphs, white space, bullets and headings. A sentence that
  // is longer than the model supports is split into parts, with a warning, or refused if `strict` is set.
  Document translate_document(const std::string& text, const Options& options = {}) const {
    const detail::Fields fields(options);
    const detail::Result result =
        detail::result_of(txport_translate_document, handle_.get(), text.data(), text.size(), &fields.all);
    return detail::collect_document(result.get());
  }

  // Translate source ids, including eos, without a tokenizer.
  std::vector<Translation> translate_ids(const std::vector<std::vector<std::int64_t>>& sources,
                                         const Options& options = {}) const {
    const detail::Views<std::int64_t> ids(sources);
    const detail::Fields fields(options);
    const detail::Result result = detail::result_of(txport_translate_ids, handle_.get(), ids.items.data(),
                                                    ids.lengths.data(), ids.items.size(), &fields.all);
    return detail::collect(result.get());
  }

  // Translate feature vectors: a matrix for each source, with a vector in each row. For bundles that read vectors.
  std::vector<Translation> translate_features(const std::vector<Matrix>& arrays, const Options& options = {}) const {
    std::vector<txport_features> features;
    for (const Matrix& array : arrays) features.push_back(detail::features_of(array));
    const detail::Fields fields(options);
    const detail::Result result =
        detail::result_of(txport_translate_features, handle_.get(), features.data(), features.size(), &fields.all);
    return detail::collect(result.get());
  }

  // Score a given translation of each sentence, for example to rank translations or to filter a corpus. Only the
  // options for languages and `strict` have an effect. Requires a bundle exported with tx-export --with-attention.
  std::vector<Score> score(const std::vector<std::string>& sentences, const std::vector<std::string>& translations,
                           const Options& options = {}) const {
    detail::check_pairs(sentences.size(), translations.size());
    const detail::Views<char> texts(sentences);
    const detail::Views<char> targets(translations);
    const detail::Fields fields(options);
    return detail::collect_scores(detail::result_of(txport_score, handle_.get(), texts.items.data(),
                                                    texts.lengths.data(), targets.items.data(), targets.lengths.data(),
                                                    texts.items.size(), &fields.all));
  }

  // Score source ids and target ids in the form that `translate_ids` reads and returns.
  std::vector<Score> score_ids(const std::vector<std::vector<std::int64_t>>& sources,
                               const std::vector<std::vector<std::int64_t>>& translations) const {
    detail::check_pairs(sources.size(), translations.size());
    const detail::Views<std::int64_t> ids(sources);
    const detail::Views<std::int64_t> targets(translations);
    return detail::collect_scores(detail::result_of(txport_score_ids, handle_.get(), ids.items.data(),
                                                    ids.lengths.data(), targets.items.data(), targets.lengths.data(),
                                                    ids.items.size()));
  }

  // Compute the encoder output of sentences that are not empty: one row, the mean over all ids, or one row per id if
  // `pooled` is false. Options and bundles as in `score`.
  std::vector<Matrix> embed(const std::vector<std::string>& sentences, bool pooled = true,
                            const Options& options = {}) const {
    const detail::Views<char> texts(sentences);
    const detail::Fields fields(options);
    const detail::Result result =
        detail::result_of(txport_embed, handle_.get(), texts.items.data(), texts.lengths.data(), texts.items.size(),
                          pooled ? 1 : 0, &fields.all);
    std::vector<Matrix> output(txport_result_count(result.get()));
    for (std::size_t i = 0; i < output.size(); ++i)
      output[i] = detail::matrix(txport_result_embedding, result.get(), i);
    return output;
  }

  // Translate one sentence and call `on_piece` with each token as soon as it is generated, until it returns false.
  // Exceptions of `on_piece` propagate to the caller.
  void stream(const std::string& sentence, const std::function<bool(const Piece&)>& on_piece,
              const Options& options = {}) const {
    Stream tokens = stream(sentence, options);
    while (const auto piece = tokens.next()) {
      if (!on_piece(*piece)) return;
    }
  }

  // Return a stream from which the caller fetches each token.
  Stream stream(const std::string& sentence, const Options& options = {}) const {
    const detail::Fields fields(options);
    txport_stream* handle = nullptr;
    detail::check(txport_stream_open(handle_.get(), sentence.data(), sentence.size(), &fields.all, &handle));
    return Stream(handle);
  }

  // Open a stream of the translation of feature vectors.
  Stream stream_features(const Matrix& array, const Options& options = {}) const {
    const detail::Fields fields(options);
    const txport_features features = detail::features_of(array);
    txport_stream* handle = nullptr;
    detail::check(txport_stream_open_features(handle_.get(), &features, &fields.all, &handle));
    return Stream(handle);
  }

  // Submit one sentence to the running batch, which it shares with requests of other threads; returns immediately.
  // `get` of the result throws the errors of `translate`, DeadlineExceeded after `seconds` (0: no limit), or Cancelled.
  // `on_piece` is called with each token as soon as it is generated, on the decoding thread, so it must return quickly.
  // It ends the request by returning false or by throwing. Throws InputError, and ResourceError if 1024 requests are
  // already waiting.
  Pending submit(const std::string& sentence, const Options& options = {}, double seconds = 0,
                 std::function<bool(const Piece&)> on_piece = nullptr) const {
    return submit(options, seconds, std::move(on_piece), [&](const auto* fields, const auto* request, auto** handle) {
      return txport_submit(handle_.get(), sentence.data(), sentence.size(), fields, request, handle);
    });
  }

  // Submit feature vectors, which are copied.
  Pending submit_features(const Matrix& array, const Options& options = {}, double seconds = 0,
                          std::function<bool(const Piece&)> on_piece = nullptr) const {
    const txport_features features = detail::features_of(array);
    return submit(options, seconds, std::move(on_piece), [&](const auto* fields, const auto* request, auto** handle) {
      return txport_submit_features(handle_.get(), &features, fields, request, handle);
    });
  }

  // Refuse further requests, and return when all submitted requests are finished.
  void drain() const { detail::check(txport_drain(handle_.get())); }

  // Translate the bundle's golden cases. Throws CheckFailed if a translation differs from the one at export.
  void self_check() const { detail::check(txport_self_check(handle_.get())); }

  // Return the bundle's manifest.json, unchanged.
  std::string manifest() const {
    const char* json = nullptr;
    detail::check(txport_manifest(handle_.get(), &json));
    return json;
  }

  // Return a description of the engine that runs the bundle.
  std::string engine() const {
    const char* name = nullptr;
    detail::check(txport_engine(handle_.get(), &name));
    return name;
  }

 private:
  using Warning = std::function<void(const std::string&)>;

  template <typename Open>
  Translator(const TranslatorOptions& options, const Open& open)
      : warning_(std::make_unique<Warning>(options.warning)) {
    txport_translator_options fields = TXPORT_TRANSLATOR_OPTIONS_INIT;
    fields.device = options.device.c_str();
    fields.engine = options.engine.c_str();
    fields.lowering = detail::null_if_empty(options.lowering);
    fields.threads = options.threads;
    fields.batch = options.batch;
    fields.batch_tokens = options.batch_tokens;
    fields.workers = options.workers == 0 ? -1 : options.workers;
    fields.trust_engines = options.trust_engines ? 1 : 0;
    fields.verify = options.verify ? 1 : 0;
    if (options.warning) {
      fields.warning = [](void* user, const char* message) { (*static_cast<Warning*>(user))(message); };
      fields.warning_user = warning_.get();
    }
    txport_translator* handle = nullptr;
    detail::check(open(&fields, &handle));
    handle_.reset(handle);
  }

  // `start` passes a request to the library.
  template <typename Start>
  Pending submit(const Options& options, double seconds, std::function<bool(const Piece&)> on_piece,
                 const Start& start) const {
    const detail::Fields fields(options);
    auto listener = std::make_unique<detail::Request>();
    listener->on_piece = std::move(on_piece);
    txport_request request = TXPORT_REQUEST_INIT;
    request.seconds = seconds;
    request.done = detail::Request::done;
    request.token = listener->on_piece ? detail::Request::token : nullptr;
    request.user = listener.get();
    std::future<Translation> answer = listener->answer.get_future();
    txport_pending* handle = nullptr;
    detail::check(start(&fields.all, &request, &handle));
    static_cast<void>(listener.release());  // now owned by `done`
    return Pending(std::move(answer), handle);
  }

  std::unique_ptr<Warning> warning_;  // its address must not change when this object is moved
  std::unique_ptr<txport_translator, detail::CloseTranslator> handle_;
};

}  // namespace txport

#endif  // TXPORT_TXPORT_HPP
