// txport: run bundles of encoder-decoder Transformers. The C++ API, a thin wrapper over the C ABI (txport.h).
//
//   txport::Translator translator("bundle");
//   for (const auto& result : translator.translate({"a sentence", "another one"})) std::cout << result.text << "\n";
//
// Needs C++17 and the standard library only. Text is UTF-8.
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

// Base of all errors; each message is one sentence with the file, the value and the way out.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's fault: an argument, an option or a text that cannot be used.
class InputError : public Error {
 public:
  using Error::Error;
};

// A bundle that is incomplete, changed, of a newer format, or does not run here.
class BundleError : public Error {
 public:
  using Error::Error;
};

// A self-check that ran to its end and found a difference.
class CheckFailed : public Error {
 public:
  using Error::Error;
};

// Not enough memory, of the host or of a GPU: retry later, or with a smaller batch.
class ResourceError : public Error {
 public:
  using Error::Error;
};

// A library or a GPU failed; if it was a GPU, open the bundle again.
class EngineError : public Error {
 public:
  using Error::Error;
};

// A library or a driver that is not installed or cannot be loaded.
class MissingLibrary : public Error {
 public:
  using Error::Error;
};

// A request that was given up before it had an answer.
class Cancelled : public Error {
 public:
  using Error::Error;
};

// A request that had no answer at its deadline.
class DeadlineExceeded : public Error {
 public:
  using Error::Error;
};

// A bug in txport or in a library under it: please report the message.
class InternalError : public Error {
 public:
  using Error::Error;
};

// How to open a bundle.
struct TranslatorOptions {
  std::string device = "auto";    // auto, cpu or cuda
  std::string engine = "auto";    // auto, fused (our own for CPUs), ort (ONNX Runtime) or trt (TensorRT)
  std::string lowering;           // for experts: ort, scatter or tensorscatter; empty: the best here
  std::int32_t threads = 0;       // threads of each operator; 0: as many as there are cores
  std::int32_t batch = 0;         // maximum number of sentences that run together; 0: the bundle's maximum
  std::int32_t batch_tokens = 0;  // the most source tokens, padding included, that run together; 0: 4096
  std::function<void(const std::string&)> warning;  // takes one sentence; must not throw
  std::int32_t workers = 1;    // batches side by side on the CPU, each with a share of the cores; 0: by the cores
  bool trust_engines = false;  // whether TensorRT engines in the bundle, native code of a third party, may run
  bool verify = false;         // compare the hash of the weights as well; those of other files always are
};

// Options for every sentence of a call.
struct Options {
  std::int32_t max_length = 0;  // maximum number of target tokens, including eos; 0: 2 x source tokens + 20
  bool full_length = false;     // without max_length, make as many tokens as the bundle makes at most
  std::int32_t min_length = 0;  // tokens to make before a translation may end
  std::variant<std::string, std::vector<std::int64_t>> prefix;  // text or target ids that every translation begins with
  bool scores = false;                                          // compute Translation::scores
  bool strict = false;          // refuse a sentence that is too long, instead of cutting it with a warning
  std::string source_language;  // for bundles that have languages to choose; empty: the bundle's default
  std::string target_language;
  // For bundles of tx-export --with-attention; streams have neither.
  bool alignments = false;  // compute Translation::alignment
  bool attention = false;   // compute Translation::attention

  // How to search, as Hugging Face's `generate` does; what is 0, empty or without a value is the default or, with
  // `generation` "model", the model's own setting. Streams refuse beams, samples and alternatives.
  using Ids = std::vector<std::int64_t>;
  std::string generation;                // greedy or model; empty: greedy
  std::int32_t beam = 0;                 // hypotheses to follow side by side; 0: 1, greedy
  std::int32_t n_best = 0;               // translations of each text, at most as many as the beam, or samples; 0: 1
  std::optional<double> length_penalty;  // power of the length by which scores of beams are divided; 1
  // A beam search ends: "true", with enough hypotheses; "false", when none is likely to be better; "never", when none
  // can be; empty: false.
  std::string early_stopping;
  double patience = 0;               // with early_stopping true, how many times the beam must have ended; 0: 1
  double repetition_penalty = 0;     // factor against tokens made already; 0: 1
  std::int32_t no_repeat_ngram = 0;  // never repeat an n-gram of this size; 0: no rule
  std::vector<std::variant<std::string, Ids>> bad_words;  // texts, or sequences of ids, that must not occur
  Ids suppress;                                           // ids that must not occur
  Ids begin_suppress;                                     // ids that must not be the first
  Ids end_ids;                                            // ids that end a translation, besides end of sequence
  std::optional<std::int64_t> forced_end;                 // the id that ends a translation that reaches its limit
  std::optional<bool> renormalize;                        // normalise the probabilities of beams again after all rules
  std::optional<bool> sample;                             // draw tokens at random
  double temperature = 0;                                 // what logits are divided by before a draw; 0: 1
  std::optional<std::int64_t> top_k;                      // sample from the k most likely tokens; 0: all
  double top_p = 0;               // draw among the best tokens that have this probability in all; 0: 1
  double min_p = 0;               // draw among tokens that have this share of the best one's probability
  std::int64_t seed = 0;          // number that draws follow from
  std::int32_t alternatives = 0;  // branch on the N best tokens after the prefix; 0: none
  bool shortlist = false;         // choose among the words that the bundle's shortlist gives for each sentence
};

// Bytes of a text: the first, and the one after the last.
using Span = txport_span;
// The number of a word of the source, and of one of the translation.
using WordPair = txport_word_pair;

// Where a translation comes from, read off cross-attention. Tokens' spans have no white space, and are empty for tokens
// that are not of the text. Words are what white space separates.
struct Alignment {
  std::vector<std::int64_t> tokens;  // for each target id, the position of the source id that it comes from; -1: none
  std::vector<Span> source_tokens;
  std::vector<Span> target_tokens;
  std::vector<Span> source_words;
  std::vector<Span> target_words;
  std::vector<WordPair> words;  // pairs of words of which any tokens are aligned, in order
  std::string pharaoh;          // these pairs as fast_align, Marian and Pharaoh write them: "0-0 1-2", source first
  // For each target id, the time in seconds at which its feature vector begins; -1: none. Empty if the bundle does not
  // have the number of vectors per second.
  std::vector<double> times;
};

// Numbers, row after row.
struct Matrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<float> values;

  float operator()(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
};

// How likely a model takes a given translation for.
struct Score {
  std::vector<std::int64_t> ids;  // without the decoder start, the end included
  std::vector<double> scores;     // the natural logarithm of each id's probability

  // The logarithm of the whole translation's probability.
  double total() const {
    double sum = 0;
    for (const double score : scores) sum += score;
    return sum;
  }
};

// The translation of one sentence.
struct Translation {
  std::string text;               // empty for an empty sentence
  std::vector<std::int64_t> ids;  // without the decoder start; the last is eos unless the maximum length came first
  std::vector<double> scores;     // the natural logarithm of each id's probability, with the option scores
  bool truncated = false;         // the sentence was longer than the bundle takes and was cut
  bool finished = true;           // it ended with eos, not at the maximum length, or is empty
  std::optional<Alignment> alignment;  // with the option alignments; none for an empty sentence
  Matrix attention;             // of each target id (row) to each source id, with the option attention; rows sum to 1
  bool looped = false;          // its end repeats a phrase at least three times, over at least twelve tokens
  std::optional<double> score;  // what a beam search ranked it by: its log-probability by a power of its length
  std::vector<Translation>
      hypotheses;  // all that n_best or alternatives asked for, this one first; empty for one alone
};

// A sentence of a document, or a part of one.
struct Part {
  Span source{};            // its bytes in the document
  Span target{};            // those of its translation in the translated document
  bool cut = false;         // it is a part of a sentence that is longer than the model takes
  Translation translation;  // of its text, in which line breaks are spaces
};

// A translated document: the whole with the layout of the source, and its sentences in order.
struct Document {
  std::string text;
  std::vector<Part> parts;
};

// One token of a stream.
struct Piece {
  std::int64_t id = 0;
  std::string text;  // what became certain by this token, perhaps nothing
  double score = 0;  // its log-probability, with the option scores
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

// Fields of txport_options, from those of Options; these must live as long as the result.
inline void set(const char*& field, const std::string& value) { field = null_if_empty(value); }
inline void set(std::int32_t& field, std::int32_t value) { field = value; }

inline void set(std::int32_t& field, std::optional<bool> value) { field = value ? (*value ? 1 : -1) : 0; }
inline void set(double& field, double value) { field = value; }
inline void set(std::int64_t& field, std::int64_t value) { field = value; }
template <typename T>
void set(const T*& field, const std::optional<T>& value) {
  field = value ? &*value : nullptr;
}
inline void set(txport_ids& field, const Options::Ids& value) { field = {value.data(), value.size()}; }

// Bad words as the C ABI takes them.
struct Words {
  std::vector<const char*> texts;
  std::vector<txport_ids> sequences;

  explicit Words(const Options& options) {
    for (const auto& word : options.bad_words) {
      if (const auto* text = std::get_if<std::string>(&word)) texts.push_back(text->c_str());
      if (const auto* ids = std::get_if<Options::Ids>(&word)) sequences.push_back({ids->data(), ids->size()});
    }
  }
  txport_words listed() const { return {texts.data(), texts.size(), sequences.data(), sequences.size()}; }
};

// How to search; `words` are of these options.
inline void set_search(txport_options& result, const Options& options, const Words& words) {
  set(result.generation, options.generation);
  set(result.beam, options.beam);
  set(result.n_best, options.n_best);
  set(result.length_penalty, options.length_penalty);
  set(result.early_stopping, options.early_stopping);
  set(result.patience, options.patience);
  set(result.repetition_penalty, options.repetition_penalty);
  set(result.no_repeat_ngram, options.no_repeat_ngram);
  result.bad_words = words.listed();
  set(result.suppress, options.suppress);
  set(result.begin_suppress, options.begin_suppress);
  set(result.end_ids, options.end_ids);
  set(result.forced_end, options.forced_end);
  set(result.renormalize, options.renormalize);
  set(result.sample, options.sample);
  set(result.temperature, options.temperature);
  set(result.top_k, options.top_k);
  set(result.top_p, options.top_p);
  set(result.min_p, options.min_p);
  set(result.seed, options.seed);
  set(result.alternatives, options.alternatives);
}

inline txport_options to_c(const Options& options, const Words& words) {
  txport_options result = TXPORT_OPTIONS_INIT;
  set(result.max_length, options.max_length);
  set(result.full_length, options.full_length ? 1 : 0);
  set(result.shortlist, options.shortlist ? 1 : 0);
  set(result.min_length, options.min_length);
  if (const auto* text = std::get_if<std::string>(&options.prefix)) set(result.prefix, *text);
  if (const auto* ids = std::get_if<std::vector<std::int64_t>>(&options.prefix)) {
    result.prefix_ids = ids->data();
    result.prefix_count = ids->size();
  }
  set(result.scores, options.scores ? 1 : 0);
  set(result.strict, options.strict ? 1 : 0);
  set(result.source_language, options.source_language);
  set(result.target_language, options.target_language);
  set(result.alignments, options.alignments ? 1 : 0);
  set(result.attention, options.attention ? 1 : 0);
  set_search(result, options, words);
  return result;
}

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

inline std::vector<Span> spans(const txport_result* result, std::size_t index, txport_spans which) {
  std::size_t length = 0;
  const Span* found = txport_result_spans(result, index, which, &length);
  return {found, found + length};
}

inline std::optional<Alignment> alignment(const txport_result* result, std::size_t index) {
  std::size_t length = 0;
  const std::int64_t* tokens = txport_result_alignment(result, index, &length);
  if (tokens == nullptr) return std::nullopt;
  Alignment made;
  made.tokens.assign(tokens, tokens + length);
  made.source_tokens = spans(result, index, TXPORT_SOURCE_TOKENS);
  made.target_tokens = spans(result, index, TXPORT_TARGET_TOKENS);
  made.source_words = spans(result, index, TXPORT_SOURCE_WORDS);
  made.target_words = spans(result, index, TXPORT_TARGET_WORDS);
  const WordPair* words = txport_result_word_pairs(result, index, &length);
  made.words.assign(words, words + length);
  const char* pharaoh = txport_result_pharaoh(result, index, &length);
  made.pharaoh.assign(pharaoh, length);
  if (const double* times = txport_result_times(result, index, &length)) made.times.assign(times, times + length);
  return made;
}

inline Matrix matrix(decltype(&txport_result_attention) read, const txport_result* result, std::size_t index) {
  Matrix made;
  const float* values = read(result, index, &made.rows, &made.columns);
  made.values.assign(values, values + made.rows * made.columns);
  return made;
}

inline std::vector<Translation> collect(const txport_result* result) {
  std::vector<Translation> translations(txport_result_count(result));
  for (std::size_t i = 0; i < translations.size(); ++i) {
    std::size_t length = 0;
    const char* text = txport_result_text(result, i, &length);
    translations[i].text.assign(text, length);
    const std::int64_t* ids = txport_result_ids(result, i, &length);
    translations[i].ids.assign(ids, ids + length);
    const double* scores = txport_result_scores(result, i, &length);
    translations[i].scores.assign(scores, scores + length);
    translations[i].truncated = txport_result_truncated(result, i) != 0;
    translations[i].finished = txport_result_finished(result, i) != 0;
    translations[i].looped = txport_result_looped(result, i) != 0;
    translations[i].alignment = alignment(result, i);
    translations[i].attention = matrix(txport_result_attention, result, i);
    if (const double* score = txport_result_score(result, i)) translations[i].score = *score;
    translations[i].hypotheses = collect(txport_result_hypotheses(result, i));
  }
  return translations;
}

inline Document collect_document(const txport_result* result) {
  std::size_t length = 0;
  const char* text = txport_result_document(result, &length);
  Document made{std::string(text, length), {}};
  for (Translation& each : collect(result)) {
    const txport_part* part = txport_result_part(result, made.parts.size());
    made.parts.push_back({part->source, part->target, part->cut != 0, std::move(each)});
  }
  return made;
}

inline std::vector<Score> collect_scores(txport_result* handle) {
  const Result result(handle);
  std::vector<Score> made;
  for (Translation& each : collect(handle)) made.push_back({std::move(each.ids), std::move(each.scores)});
  return made;
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

// State of the callbacks of a request.
struct Request {
  std::promise<Translation> answer;
  std::function<bool(const Piece&)> take;
  std::exception_ptr thrown;  // by `take`

  // Passes a token to `take`; not 0 to stop.
  static int token(void* user, std::int64_t id, const char* text, std::size_t length, double score) noexcept {
    auto* request = static_cast<Request*>(user);
    try {
      return request->take({id, std::string(text, length), score}) ? 0 : 1;
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

// Items as the C ABI takes them: the address and the length of each.
template <typename T>
struct Listed {
  std::vector<const T*> items;
  std::vector<std::size_t> lengths;

  template <typename Items>
  explicit Listed(const Items& all) {
    static constexpr T nothing = 0;  // an empty vector may have no address
    for (const auto& item : all) {
      items.push_back(item.empty() ? &nothing : item.data());
      lengths.push_back(item.size());
    }
  }
};

}  // namespace detail

// The version of the library, as "0.1.0".
inline std::string version() { return txport_version(); }

// A sentence that is being translated, token by token. It may outlive its translator.
class Stream {
 public:
  // The next token, or nothing after the last.
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

// An answer to come: a std::future that can be cancelled. It may outlive its translator, and be dropped before the
// answer has come, which cancels nothing.
class Pending : public std::future<Translation> {
 public:
  // As of std::future. In a forked process they throw EngineError: an unanswered request belongs to the parent.
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

  // Give up the request, in any thread: `get` throws Cancelled then, unless it has been answered.
  void cancel() const noexcept { txport_pending_cancel(handle_.get()); }

 private:
  void check_process() const {
    if (!valid() || std::future<Translation>::wait_for(std::chrono::seconds(0)) == std::future_status::ready) return;
    txport_result* none = nullptr;  // the answer goes to `done`
    const txport_code code = txport_pending_wait(handle_.get(), 0, &none);
    if (code == TXPORT_ENGINE_ERROR) detail::check(code);
  }
  friend class Translator;
  Pending(std::future<Translation> answer, txport_pending* handle)
      : std::future<Translation>(std::move(answer)), handle_(handle) {}
  std::unique_ptr<txport_pending, detail::FreePending> handle_;
};

// The bytes of a file that tx-pack wrote.
struct BundleBytes {
  const void* data = nullptr;
  std::size_t size = 0;
};

// A bundle, ready to translate. Threads may share one. Its end cancels what was submitted and has no answer.
class Translator {
 public:
  // Open the directory that tx-export wrote, or the file that tx-pack wrote. Throws BundleError, InputError.
  explicit Translator(const std::string& bundle, const TranslatorOptions& options = {})
      : Translator(options, [&](const txport_translator_options* asked, txport_translator** handle) {
          return txport_open(bundle.c_str(), asked, handle);
        }) {}

  // Open the bytes of such a file, which begin at a multiple of 8 and must outlive this and what it gives.
  explicit Translator(BundleBytes bundle, const TranslatorOptions& options = {})
      : Translator(options, [&](const txport_translator_options* asked, txport_translator** handle) {
          return txport_open_memory(bundle.data, bundle.size, asked, handle);
        }) {}
  // Translate sentences; the results are in their order. Throws InputError, BundleError.
  std::vector<Translation> translate(const std::vector<std::string>& sentences, const Options& options = {}) const {
    const detail::Listed<char> texts(sentences);
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    txport_result* result = nullptr;
    detail::check(
        txport_translate(handle_.get(), texts.items.data(), texts.lengths.data(), texts.items.size(), &asked, &result));
    return detail::collect(detail::Result(result).get());
  }

  // Translate one sentence.
  Translation translate(const std::string& sentence, const Options& options = {}) const {
    return std::move(translate(std::vector<std::string>{sentence}, options).front());
  }

  // Translate a text of any length and keep its layout: paragraphs, white space, marks of lists and headings. A
  // sentence that is longer than the model takes is cut into parts, with a warning, or refused if `strict` is set.
  Document translate_document(const std::string& text, const Options& options = {}) const {
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    txport_result* result = nullptr;
    detail::check(txport_translate_document(handle_.get(), text.data(), text.size(), &asked, &result));
    return detail::collect_document(detail::Result(result).get());
  }

  // From source ids (end of sequence included), without a tokenizer.
  std::vector<Translation> translate_ids(const std::vector<std::vector<std::int64_t>>& sources,
                                         const Options& options = {}) const {
    const detail::Listed<std::int64_t> ids(sources);
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    txport_result* result = nullptr;
    detail::check(
        txport_translate_ids(handle_.get(), ids.items.data(), ids.lengths.data(), ids.items.size(), &asked, &result));
    return detail::collect(detail::Result(result).get());
  }

  // From feature vectors: a matrix of each source, with a vector in each row. For bundles that read these.
  std::vector<Translation> translate_features(const std::vector<Matrix>& arrays, const Options& options = {}) const {
    std::vector<txport_features> features;
    for (const Matrix& array : arrays) features.push_back(detail::features_of(array));
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    txport_result* result = nullptr;
    detail::check(txport_translate_features(handle_.get(), features.data(), features.size(), &asked, &result));
    return detail::collect(detail::Result(result).get());
  }

  // How likely the model takes a given translation of each sentence for: to rank some, or to filter a corpus. Of the
  // options the languages and `strict` have a meaning here. For bundles of tx-export --with-attention.
  std::vector<Score> score(const std::vector<std::string>& sentences, const std::vector<std::string>& translations,
                           const Options& options = {}) const {
    detail::check_pairs(sentences.size(), translations.size());
    const detail::Listed<char> texts(sentences);
    const detail::Listed<char> targets(translations);
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    txport_result* result = nullptr;
    detail::check(txport_score(handle_.get(), texts.items.data(), texts.lengths.data(), targets.items.data(),
                               targets.lengths.data(), texts.items.size(), &asked, &result));
    return detail::collect_scores(result);
  }

  // The same of source ids and target ids, as `translate_ids` takes and gives them.
  std::vector<Score> score_ids(const std::vector<std::vector<std::int64_t>>& sources,
                               const std::vector<std::vector<std::int64_t>>& translations) const {
    detail::check_pairs(sources.size(), translations.size());
    const detail::Listed<std::int64_t> ids(sources);
    const detail::Listed<std::int64_t> targets(translations);
    txport_result* result = nullptr;
    detail::check(txport_score_ids(handle_.get(), ids.items.data(), ids.lengths.data(), targets.items.data(),
                                   targets.lengths.data(), ids.items.size(), &result));
    return detail::collect_scores(result);
  }

  // What the encoder makes of sentences, none of them empty: the mean over all ids in one row or, if not `pooled`, a
  // row for each id. Otherwise as `score`.
  std::vector<Matrix> embed(const std::vector<std::string>& sentences, bool pooled = true,
                            const Options& options = {}) const {
    const detail::Listed<char> texts(sentences);
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    txport_result* handle = nullptr;
    detail::check(txport_embed(handle_.get(), texts.items.data(), texts.lengths.data(), texts.items.size(),
                               pooled ? 1 : 0, &asked, &handle));
    const detail::Result result(handle);
    std::vector<Matrix> made(txport_result_count(handle));
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = detail::matrix(txport_result_embedding, handle, i);
    return made;
  }

  // Translate one sentence and give each token to `take` as it is made, until that returns false. What `take` throws
  // comes out of this call.
  void stream(const std::string& sentence, const std::function<bool(const Piece&)>& take,
              const Options& options = {}) const {
    Stream tokens = stream(sentence, options);
    while (const auto piece = tokens.next()) {
      if (!take(*piece)) return;
    }
  }

  // The same, with the caller fetching each token.
  Stream stream(const std::string& sentence, const Options& options = {}) const {
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    txport_stream* handle = nullptr;
    detail::check(txport_stream_open(handle_.get(), sentence.data(), sentence.size(), &asked, &handle));
    return Stream(handle);
  }

  // The same from feature vectors.
  Stream stream_features(const Matrix& array, const Options& options = {}) const {
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    const txport_features features = detail::features_of(array);
    txport_stream* handle = nullptr;
    detail::check(txport_stream_open_features(handle_.get(), &features, &asked, &handle));
    return Stream(handle);
  }

  // Translate one sentence in the batch that runs, with those of other threads; returns at once. `get` of the answer
  // throws as `translate`; DeadlineExceeded if there is none after this number of seconds (0: unlimited); Cancelled.
  // `take` gets each token as it is made, in the thread that decodes, so it must return at once; false, or what it
  // throws, ends the request. Throws InputError; ResourceError: 1024 requests are waiting.
  Pending submit(const std::string& sentence, const Options& options = {}, double seconds = 0,
                 std::function<bool(const Piece&)> take = nullptr) const {
    return submit(options, seconds, std::move(take), [&](const auto* asked, const auto* request, auto** handle) {
      return txport_submit(handle_.get(), sentence.data(), sentence.size(), asked, request, handle);
    });
  }

  // The same from feature vectors, which are copied.
  Pending submit_features(const Matrix& array, const Options& options = {}, double seconds = 0,
                          std::function<bool(const Piece&)> take = nullptr) const {
    const txport_features features = detail::features_of(array);
    return submit(options, seconds, std::move(take), [&](const auto* asked, const auto* request, auto** handle) {
      return txport_submit_features(handle_.get(), &features, asked, request, handle);
    });
  }

  // Submit no more, and return when what was submitted has its answers.
  void drain() const { detail::check(txport_drain(handle_.get())); }

  // Translate the bundle's golden cases. Throws CheckFailed if what comes out differs from what did when it was made.
  void self_check() const { detail::check(txport_self_check(handle_.get())); }

  // The bundle's manifest.json as it was read.
  std::string manifest() const {
    const char* json = nullptr;
    detail::check(txport_manifest(handle_.get(), &json));
    return json;
  }

  // What runs the bundle.
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
    txport_translator_options asked = TXPORT_TRANSLATOR_OPTIONS_INIT;
    asked.device = options.device.c_str();
    asked.engine = options.engine.c_str();
    asked.lowering = detail::null_if_empty(options.lowering);
    asked.threads = options.threads;
    asked.batch = options.batch;
    asked.batch_tokens = options.batch_tokens;
    asked.workers = options.workers == 0 ? -1 : options.workers;
    asked.trust_engines = options.trust_engines ? 1 : 0;
    asked.verify = options.verify ? 1 : 0;
    if (options.warning) {
      asked.warning = [](void* user, const char* message) { (*static_cast<Warning*>(user))(message); };
      asked.warning_user = warning_.get();
    }
    txport_translator* handle = nullptr;
    detail::check(open(&asked, &handle));
    handle_.reset(handle);
  }

  // `start` gives a request to the library.
  template <typename Start>
  Pending submit(const Options& options, double seconds, std::function<bool(const Piece&)> take,
                 const Start& start) const {
    const detail::Words words(options);
    const txport_options asked = detail::to_c(options, words);
    auto listener = std::make_unique<detail::Request>();
    listener->take = std::move(take);
    txport_request request = TXPORT_REQUEST_INIT;
    request.seconds = seconds;
    request.done = detail::Request::done;
    request.token = listener->take ? detail::Request::token : nullptr;
    request.user = listener.get();
    std::future<Translation> answer = listener->answer.get_future();
    txport_pending* handle = nullptr;
    detail::check(start(&asked, &request, &handle));
    static_cast<void>(listener.release());  // `done` has it
    return Pending(std::move(answer), handle);
  }

  std::unique_ptr<Warning> warning_;  // at an address that does not move with this object
  std::unique_ptr<txport_translator, detail::CloseTranslator> handle_;
};

}  // namespace txport

#endif  // TXPORT_TXPORT_HPP
