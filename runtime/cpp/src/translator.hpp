// The main class, which translates texts. The C ABI and the C++ API wrap it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "calls/requests.hpp"
#include "documents/document.hpp"
#include "engine.hpp"
#include "engines/choice.hpp"
#include "options.hpp"
#include "results.hpp"
#include "scoring.hpp"
#include "search/decoding.hpp"
#include "search/queue.hpp"
#include "search/shared.hpp"
#include "text/tokenizer.hpp"

namespace txport::core {

// Options for opening a bundle.
struct TranslatorOptions {
  EngineRequest where;                       // device, engine and lowering
  int threads = 0;                           // threads of each operator; 0: one per core
  std::optional<std::int64_t> batch;         // maximum batch size in sentences; no value: the bundle's maximum
  std::int64_t batch_tokens = kBatchTokens;  // maximum batch size in source tokens, including padding
  // Number of batches that run in parallel on the CPU and share the weights. Each gets a share of `batch`,
  // `batch_tokens` and, if `threads` is 0, of the cores. One is best for single sentences, several for many sentences.
  // 0: one per core, at most 4.
  int workers = 1;
  bool verify = false;  // also compare the hash of the weights
  Warn warn;            // called in the thread that causes the warning; may be empty
};

class Translator;

// A translation that is generated token by token. The translator must outlive it.
class PieceStream {
 public:
  PieceStream(const Translator& translator, std::string_view sentence, const Options& options);
  // Of vectors `[length, feature_size]`.
  PieceStream(const Translator& translator, FloatMatrix array, const Options& options);

  // Return the next token, or no value after the last one. The concatenated texts of all pieces are the translation.
  std::optional<Piece> next();

 private:
  TextStream text_;
  std::optional<TokenStream> tokens_;  // no value for a sentence without words

  static void check(const Options& options);
};

// A bundle, ready to translate. Threads may share a translator, since calls leave no state behind.
class Translator {
 public:
  // Throws BundleError: the bundle is damaged, incomplete or newer than this library (hashes of all files except the
  // weights are compared); InputError: an argument is invalid; MissingLibrary, EngineError, ResourceError: the device
  // cannot be used.
  Translator(const Bundle& bundle, TranslatorOptions options);
  ~Translator() = default;
  Translator(const Translator&) = delete;
  Translator& operator=(const Translator&) = delete;

  // Translate UTF-8 sentences and return the results in the same order. Messages name a sentence by `what` and its
  // number, counted from `first`. Throws InputError: an option is invalid, a sentence is not UTF-8, or a sentence is
  // too long and `strict` is set; BundleError: the bundle was exported without the graph for alignments and attention.
  std::vector<Translation> translate(const std::vector<std::string_view>& sentences, const Options& options,
                                     const std::string& what = "sentence", std::size_t first = 1) const;

  // Translate a UTF-8 text of any length and keep its layout. A sentence that is longer than the model supports is
  // split into parts, with a warning, or refused if `strict` is set. `what` is the name of a line in messages. Throws
  // the errors of `translate`.
  Document translate_document(std::string_view text, const Options& options, const std::string& what = "line") const;

  // Like `translate`, but from source ids including eos, without a tokenizer. `strict` has no effect. Alignments are
  // only between tokens, since sources have no text. Throws InputError: a source is empty, longer than the bundle
  // supports, or has an id outside the vocabulary.
  std::vector<Translation> translate_ids(const std::vector<Ids>& sources, const Options& options) const;

  // Translate feature vectors, `[length, feature_size]` for each source. Alignments are between vectors and tokens.
  // Throws the errors of `translate`, and InputError: the bundle reads text, or an array has another shape, too many
  // vectors, or NaN.
  std::vector<Translation> translate_features(std::vector<FloatMatrix> arrays, const Options& options) const;

  // Submit one sentence to the running batch. Any thread may call this at any time. `seconds`: time limit, after which
  // the listener gets DeadlineExceeded. The listener is called in the decoding thread, or during this call if the
  // sentence has no words. Throws the errors of `translate`; also InputError if the listener wants parts of a search
  // that is not greedy or if the queue is closed, and ResourceError if kMaxWaiting requests wait. The listener is not
  // called then.
  std::shared_ptr<Ticket> submit(std::string_view sentence, const Options& options,
                                 Listener<Translation, Piece> listener,
                                 std::optional<double> seconds = std::nullopt) const;

  // Submit vectors; see `translate_features`.
  std::shared_ptr<Ticket> submit_features(FloatMatrix array, const Options& options,
                                          Listener<Translation, Piece> listener,
                                          std::optional<double> seconds = std::nullopt) const;

  // Return the queue of submitted sentences.
  Queue& queue() const { return *queue_; }

  // Score given translations, and embed sentences; see the methods of `Scorer` with the same names.
  std::vector<Score> score(const std::vector<std::string_view>& sentences, const std::vector<GivenTarget>& answers,
                           const Options& options) const;
  std::vector<Score> score_ids(const std::vector<Ids>& sources, const std::vector<Ids>& answers) const;

  // See Scorer::embed.
  std::vector<FloatMatrix> embed(const std::vector<std::string_view>& sentences, const Options& options,
                                 bool pooled) const;

  // Translate the bundle's golden cases. Return a description of the first difference; empty if there is none.
  std::string self_check() const;

  const Manifest& manifest() const { return manifest_; }
  const Engine& engine() const { return *engine_; }
  // Return the reason for the choice of the engine, in the words of tx-inspect.
  const std::string& reason() const { return reason_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  friend class PieceStream;
  Bundle bundle_;
  TranslatorOptions options_;
  Manifest manifest_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<const Shortlist> shortlist_;  // null if the bundle has none
  std::unique_ptr<Engine> engine_;
  std::string reason_;
  std::unique_ptr<Scorer> scorer_;  // uses the members above
  std::unique_ptr<Queue> queue_;    // uses the members above
  std::unique_ptr<SharedBatches> shared_;

  // Throws InputError: an option is invalid; BundleError: the bundle does not have the required graph. `features`:
  // whether vectors were given, not text.
  Call call(const Options& options, bool features = false) const;
  // Throws InputError: the bundle reads vectors and was given text or ids, or the reverse.
  void check_reads(bool features) const;
  // Return the sentence of vectors, which are checked; `what` names them in messages.
  Sentence of_vectors(const Call& call, FloatMatrix array, const std::string& what, std::size_t number) const;
  // `text` owns the text of the sentence, or is null.
  std::shared_ptr<Ticket> enqueue(Sentence sentence, std::shared_ptr<const std::string> text, const Options& options,
                                  Listener<Translation, Piece> listener, std::optional<double> seconds) const;
  std::vector<Translation> translations(const std::vector<Sentence>& sentences, const Options& options) const;
  std::vector<Translation> built(const std::vector<Sentence>& sentences, std::vector<Result> results,
                                 const Options& options) const;
  Translation translation(const Sentence& sentence, Hypothesis hypothesis) const;
};

}  // namespace txport::core
