// txport: run bundles of encoder-decoder Transformers. The C++ API, a thin wrapper over the C ABI (txport.h).
//
//   txport::Translator translator("bundle");
//   for (const auto& result : translator.translate({"a sentence", "another one"})) std::cout << result.text << "\n";
//
// Needs C++17 and the standard library only. Text is UTF-8.
#ifndef TXPORT_TXPORT_HPP
#define TXPORT_TXPORT_HPP

#include <cstdint>
#include <exception>
#include <functional>
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

// A bug in txport or in a library under it: please report the message.
class InternalError : public Error {
 public:
  using Error::Error;
};

// How to open a bundle.
struct TranslatorOptions {
  std::string device = "auto";    // auto, cpu, cuda (ONNX Runtime) or trt
  std::string lowering;           // fused, or a decoder step: ort, scatter, tensorscatter; empty: the best here
  std::int32_t threads = 0;       // threads of each operator; 0: as many as there are cores
  std::int32_t batch = 0;         // the most sentences that run together; 0: the most that the bundle takes
  std::int32_t batch_tokens = 0;  // the most source tokens, padding included, that run together; 0: 4096
  std::function<void(const std::string&)> warning;  // takes one sentence; must not throw
  std::int32_t workers = 1;  // batches side by side on the CPU, each with a share of the cores; 0: by the cores
};

// Options for every sentence of a call.
struct Options {
  std::int32_t max_length = 0;  // the most tokens to make, eos included; 0: as many as the bundle makes
  std::int32_t min_length = 0;  // tokens to make before a translation may end
  std::variant<std::string, std::vector<std::int64_t>> prefix;  // text or target ids that every translation begins with
  bool scores = false;                                          // compute Translation::scores
  bool strict = false;          // refuse a sentence that is too long, instead of cutting it with a warning
  std::string source_language;  // for bundles that have languages to choose; empty: the bundle's default
  std::string target_language;
};

// The translation of one sentence.
struct Translation {
  std::string text;               // empty for an empty sentence
  std::vector<std::int64_t> ids;  // without the decoder start; the last is eos unless the maximum length came first
  std::vector<double> scores;     // the natural logarithm of each id's probability, with the option scores
  bool truncated = false;         // the sentence was longer than the bundle takes and was cut
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
    case TXPORT_CANCELLED:
      return;
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

inline txport_options to_c(const Options& options) {
  txport_options result = TXPORT_OPTIONS_INIT;
  set(result.max_length, options.max_length);
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

inline std::vector<Translation> collect(txport_result* handle) {
  const std::unique_ptr<txport_result, FreeResult> result(handle);
  std::vector<Translation> translations(txport_result_count(result.get()));
  for (std::size_t i = 0; i < translations.size(); ++i) {
    std::size_t length = 0;
    const char* text = txport_result_text(result.get(), i, &length);
    translations[i].text.assign(text, length);
    const std::int64_t* ids = txport_result_ids(result.get(), i, &length);
    translations[i].ids.assign(ids, ids + length);
    const double* scores = txport_result_scores(result.get(), i, &length);
    translations[i].scores.assign(scores, scores + length);
    translations[i].truncated = txport_result_truncated(result.get(), i) != 0;
  }
  return translations;
}

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

// A bundle, ready to translate. Threads may share one.
class Translator {
 public:
  // Open the directory that tx-export wrote. Throws BundleError, InputError.
  explicit Translator(const std::string& bundle, const TranslatorOptions& options = {})
      : warning_(std::make_unique<Warning>(options.warning)) {
    txport_translator_options asked = TXPORT_TRANSLATOR_OPTIONS_INIT;
    asked.device = options.device.c_str();
    asked.lowering = detail::null_if_empty(options.lowering);
    asked.threads = options.threads;
    asked.batch = options.batch;
    asked.batch_tokens = options.batch_tokens;
    asked.workers = options.workers == 0 ? -1 : options.workers;
    if (options.warning) {
      asked.warning = [](void* user, const char* message) { (*static_cast<Warning*>(user))(message); };
      asked.warning_user = warning_.get();
    }
    txport_translator* handle = nullptr;
    detail::check(txport_open(bundle.c_str(), &asked, &handle));
    handle_.reset(handle);
  }

  // Translate sentences; the results are in their order. Throws InputError, BundleError.
  std::vector<Translation> translate(const std::vector<std::string>& sentences, const Options& options = {}) const {
    std::vector<const char*> texts;
    std::vector<std::size_t> lengths;
    for (const std::string& sentence : sentences) {
      texts.push_back(sentence.data());
      lengths.push_back(sentence.size());
    }
    const txport_options asked = detail::to_c(options);
    txport_result* result = nullptr;
    detail::check(txport_translate(handle_.get(), texts.data(), lengths.data(), texts.size(), &asked, &result));
    return detail::collect(result);
  }

  // Translate one sentence.
  Translation translate(const std::string& sentence, const Options& options = {}) const {
    return std::move(translate(std::vector<std::string>{sentence}, options).front());
  }

  // From source ids (end of sequence included), without a tokenizer.
  std::vector<Translation> translate_ids(const std::vector<std::vector<std::int64_t>>& sources,
                                         const Options& options = {}) const {
    static constexpr std::int64_t nothing = 0;  // an empty vector may have no address
    std::vector<const std::int64_t*> ids;
    std::vector<std::size_t> lengths;
    for (const auto& source : sources) {
      ids.push_back(source.empty() ? &nothing : source.data());
      lengths.push_back(source.size());
    }
    const txport_options asked = detail::to_c(options);
    txport_result* result = nullptr;
    detail::check(txport_translate_ids(handle_.get(), ids.data(), lengths.data(), ids.size(), &asked, &result));
    return detail::collect(result);
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
    const txport_options asked = detail::to_c(options);
    txport_stream* handle = nullptr;
    detail::check(txport_stream_open(handle_.get(), sentence.data(), sentence.size(), &asked, &handle));
    return Stream(handle);
  }

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
  std::unique_ptr<Warning> warning_;  // at an address that does not move with this object
  std::unique_ptr<txport_translator, detail::CloseTranslator> handle_;
};

}  // namespace txport

#endif  // TXPORT_TXPORT_HPP
