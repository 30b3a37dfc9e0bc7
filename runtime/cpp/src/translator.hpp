// Text in, text out: the one class that an application needs, behind the C ABI.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "engines/teacher_forcing.hpp"
#include "greedy.hpp"
#include "options.hpp"
#include "results.hpp"
#include "text/affixes.hpp"
#include "text/tokenizer.hpp"

namespace txport::core {

// Takes one sentence of warning.
using Warn = std::function<void(const std::string&)>;

// How to open a bundle.
struct TranslatorOptions {
  std::string device = "auto";               // auto, cpu, cuda or trt
  std::string lowering;                      // ort, scatter or tensorscatter; empty for the best one here
  int threads = 0;                           // threads of each operator; 0 for as many as there are cores
  std::optional<std::int64_t> batch;         // the most sentences that run together; without a value: the bundle's most
  std::int64_t batch_tokens = kBatchTokens;  // the most source tokens, padding included, that run together
  // Batches that run side by side on the CPU, over one set of weights: each gets a share of `batch`, `batch_tokens`
  // and, if `threads` is 0, of the cores. One is best for single sentences, several for many; 0: by the cores.
  int workers = 1;
  Warn warn;  // called in the thread of a call; may be empty
};

// A given translation: text, which is tokenized and ended with eos, or ids as of `Translation`.
using Answer = std::variant<std::string_view, Ids>;

class Translator;

// A sentence that is being translated, token by token. The translator must outlive it.
class PieceStream {
 public:
  PieceStream(const Translator& translator, std::string_view sentence, const Options& options);

  // The next token, or nothing after the last; the texts of all pieces, joined, are the translation.
  std::optional<Piece> next();

 private:
  TextStream text_;
  std::optional<TokenStream> tokens_;  // none for a sentence in which there is nothing to translate
};

// A bundle, ready to translate. Threads may share one: calls leave no state behind.
class Translator {
 public:
  // Throws BundleError: the bundle is damaged, incomplete or of a newer format (hashes of all files but the weights are
  // compared here). InputError: an argument cannot be used. MissingLibrary, EngineError, ResourceError: the device
  // cannot be used.
  Translator(const std::filesystem::path& bundle, TranslatorOptions options);

  // Translate sentences in UTF-8; the results are in their order. `what` and `first` name a sentence in messages.
  // Throws InputError: an option cannot be used, or a sentence is not UTF-8, or too long while `strict` is set.
  // BundleError: the bundle was exported without the graph that alignments and attention need.
  std::vector<Translation> translate(const std::vector<std::string_view>& sentences, const Options& options,
                                     const std::string& what = "sentence", std::size_t first = 1) const;

  // As `translate`, from source ids (eos included), without a tokenizer; `strict` makes no difference.
  // Throws InputError: a source is empty, longer than the bundle takes, or has an id outside the vocabulary.
  // Alignments are of tokens then: a source has no characters.
  std::vector<Translation> translate_ids(const std::vector<Ids>& sources, const Options& options) const;

  // How likely the model takes a given translation of each sentence for: to rank some, or to filter a corpus. Of the
  // options the languages and `strict` have a meaning here.
  // Throws InputError: the two are not of one number, one is empty or too long, or an id is outside the vocabulary.
  // BundleError: the bundle was exported without the graph that scores need.
  std::vector<Score> score(const std::vector<std::string_view>& sentences, const std::vector<Answer>& answers,
                           const Options& options) const;

  // The same of whole source ids and target ids, as `translate_ids` takes and gives them.
  std::vector<Score> score_ids(const std::vector<Ids>& sources, const std::vector<Ids>& answers) const;

  // What the encoder makes of sentences: `[source ids, d_model]` of each or, if `pooled`, `[1, d_model]`, the mean over
  // all ids, eos and language included. Options as for `score`.
  // Throws InputError: a sentence is empty, or too long and `strict` is set. BundleError: the bundle was exported
  // without the graph that embeddings need.
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
  std::filesystem::path directory_;
  TranslatorOptions options_;
  Manifest manifest_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::string reason_;
  std::unique_ptr<TeacherForcing> forcing_;  // uses the engine

  // What the sentences of a call share.
  struct Call {
    Options options;
    LanguageChoice languages;
    Ids prefix;  // the option, as target ids
  };

  // Where a request comes from.
  struct Origin {
    std::string_view text;    // the sentence; empty if only its ids are known
    std::size_t skipped = 0;  // bytes at its beginning that choose a language, and are not translated
    std::size_t first = 0;    // of its source ids, the first that is of the text,
    std::size_t last = 0;     // and the one after the last
    bool truncated = false;   // it was cut to fit
  };

  // Throws InputError: an option cannot be used. BundleError: the bundle lacks the graph that it needs.
  Call call(const Options& options) const;
  // The request for a text, or nothing if there is nothing in it to translate.
  std::optional<Request> request(std::string_view text, const Call& call, const std::string& what,
                                 Origin& origin) const;
  static Request request(Ids source, const Call& call, const Ids& target_prefix);
  // The request for a text in which there must be something. Throws InputError: it is empty.
  Request needed(std::string_view text, const Call& call, const std::string& what) const;
  Ids target_of(const Answer& answer, const Request& request, const Call& call, const std::string& what) const;
  void check_given(const Ids& ids, std::int64_t vocabulary, std::int64_t most, const std::string& what) const;
  void check_lengths(const Options& options, std::size_t prefix) const;
  std::vector<Result> decode(const std::vector<Request>& requests, bool scores) const;
  std::vector<Translation> translations(const std::vector<Request>& requests, const std::vector<Origin>& origins,
                                        const Call& call) const;
  Alignment alignment(const Request& request, const Origin& origin, const Translation& translation, const Call& call,
                      const FloatMatrix& attention) const;
  std::vector<Score> scores(const std::vector<Ids>& sources, std::vector<Ids> targets) const;
};

}  // namespace txport::core
