// Text in, text out: the one class that an application needs, behind the C ABI.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"
#include "documents/document.hpp"
#include "engine.hpp"
#include "engines/choice.hpp"
#include "options.hpp"
#include "results.hpp"
#include "scoring.hpp"
#include "search/decoding.hpp"
#include "search/queue.hpp"
#include "search/shared.hpp"
#include "text/requests.hpp"
#include "text/tokenizer.hpp"

namespace txport::core {

// How to open a bundle.
struct TranslatorOptions {
  Asked where;      // device, engine and lowering
  int threads = 0;  // threads of each operator; 0 for as many as there are cores
  std::optional<std::int64_t>
      batch;  // maximum number of sentences that run together; without a value: the bundle's maximum
  std::int64_t batch_tokens = kBatchTokens;  // the most source tokens, padding included, that run together
  // Batches that run side by side on the CPU, over one set of weights: each gets a share of `batch`, `batch_tokens`
  // and, if `threads` is 0, of the cores. One is best for single sentences, several for many; 0: by the cores.
  int workers = 1;
  bool verify = false;  // compare the hash of the weights as well
  Warn warn;            // called in the thread of a call; may be empty
};

class Translator;

// A sentence that is being translated, token by token. The translator must outlive it.
class PieceStream {
 public:
  PieceStream(const Translator& translator, std::string_view sentence, const Options& options);
  // Of vectors `[length, feature_size]`.
  PieceStream(const Translator& translator, FloatMatrix array, const Options& options);

  // The next token, or nothing after the last; the texts of all pieces, joined, are the translation.
  std::optional<Piece> next();

 private:
  TextStream text_;
  std::optional<TokenStream> tokens_;  // none for a sentence in which there is nothing to translate

  static void check(const Options& options);
};

// A bundle, ready to translate. Threads may share one: calls leave no state behind.
class Translator {
 public:
  // Throws BundleError: the bundle is damaged, incomplete or of a newer format (hashes of all files but the weights are
  // compared here). InputError: an argument cannot be used. MissingLibrary, EngineError, ResourceError: the device
  // cannot be used.
  Translator(const Bundle& bundle, TranslatorOptions options);
  ~Translator() = default;
  Translator(const Translator&) = delete;
  Translator& operator=(const Translator&) = delete;

  // Translate sentences in UTF-8; the results are in their order. `what` and `first` name a sentence in messages.
  // Throws InputError: an option cannot be used, or a sentence is not UTF-8, or too long while `strict` is set.
  // BundleError: the bundle was exported without the graph that alignments and attention need.
  std::vector<Translation> translate(const std::vector<std::string_view>& sentences, const Options& options,
                                     const std::string& what = "sentence", std::size_t first = 1) const;

  // Translate a text of any length in UTF-8 and keep its layout. A sentence that is longer than the model takes is cut
  // into parts, with a warning, or refused if `strict` is set. `what` names a line in messages. Throws as `translate`.
  Document translate_document(std::string_view text, const Options& options, const std::string& what = "line") const;

  // As `translate`, from source ids (eos included), without a tokenizer; `strict` makes no difference.
  // Throws InputError: a source is empty, longer than the bundle takes, or has an id outside the vocabulary.
  // Alignments are of tokens then: a source has no characters.
  std::vector<Translation> translate_ids(const std::vector<Ids>& sources, const Options& options) const;

  // As `translate`, from feature vectors: `[length, feature_size]` each. Alignments are between vectors and tokens.
  // Throws InputError: the bundle reads text, or an array has another shape, too many vectors, or NaN.
  std::vector<Translation> translate_features(std::vector<FloatMatrix> arrays, const Options& options) const;

  // Translate one sentence in the batch that runs; any thread may do so at any time. `seconds`: the time to a deadline,
  // after which the failure is a DeadlineExceeded. The listener is called in the thread that decodes, or in
  // this call if there is nothing in the sentence to translate.
  // Throws as `translate`, and InputError: parts are asked of a search that has several answers, or the queue was
  // closed. ResourceError: kMaxWaiting requests wait. The listener hears nothing then.
  std::shared_ptr<Ticket> submit(std::string_view sentence, const Options& options,
                                 Listener<Translation, Piece> listener,
                                 std::optional<double> seconds = std::nullopt) const;

  // The same from vectors; see `translate_features`.
  std::shared_ptr<Ticket> submit_features(FloatMatrix array, const Options& options,
                                          Listener<Translation, Piece> listener,
                                          std::optional<double> seconds = std::nullopt) const;

  // What answers submitted sentences.
  Queue& queue() const { return *queue_; }

  // How likely the model takes a given translation of each sentence for; see `Scorer`, as for the two that follow.
  std::vector<Score> score(const std::vector<std::string_view>& sentences, const std::vector<Answer>& answers,
                           const Options& options) const;
  std::vector<Score> score_ids(const std::vector<Ids>& sources, const std::vector<Ids>& answers) const;

  // What the encoder makes of sentences.
  std::vector<FloatMatrix> embed(const std::vector<std::string_view>& sentences, const Options& options,
                                 bool pooled) const;

  // How the bundle's golden cases differ from what comes out here; empty if they do not.
  std::string self_check() const;

  const Manifest& manifest() const { return manifest_; }
  const Engine& engine() const { return *engine_; }
  // Why this engine, in the words of tx-inspect.
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
  std::unique_ptr<Scorer> scorer_;  // uses all of these
  std::unique_ptr<Queue> queue_;    // the same
  std::unique_ptr<SharedBatches> shared_;

  // Throws InputError: an option cannot be used. BundleError: the bundle lacks the graph that it needs.
  // `features`: whether vectors were given, not text.
  Call call(const Options& options, bool features = false) const;
  // Throws InputError: the bundle reads vectors and was given text or ids, or the reverse.
  void check_reads(bool features) const;
  // The sentence of vectors, which are checked; `what` names them in messages.
  Sentence of_vectors(const Call& call, FloatMatrix array, const std::string& what, std::size_t number) const;
  // `text` is what the sentence refers to, or null.
  std::shared_ptr<Ticket> enqueue(Sentence sentence, std::shared_ptr<const std::string> text, const Options& options,
                                  Listener<Translation, Piece> listener, std::optional<double> seconds) const;
  std::vector<Translation> translations(const std::vector<Sentence>& sentences, const Options& options) const;
  std::vector<Translation> built(const std::vector<Sentence>& sentences, std::vector<Result> results,
                                 const Options& options) const;
  Translation translation(const Sentence& sentence, Hypothesis hypothesis) const;
};

}  // namespace txport::core
