// Scores, embeddings, attention and alignments of sentences and reference translations.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "engines/teacher_forcing.hpp"
#include "options.hpp"
#include "results.hpp"
#include "text/requests.hpp"
#include "text/tokenizer.hpp"

namespace txport::core {

// A given translation: text, which is tokenized and ended with eos, or ids as of `Translation`.
using Answer = std::variant<std::string_view, Ids>;

// The graphs of tx-export --with-attention, asked about whole sentences. Threads may share one. All that it is made of
// must outlive it.
class Scorer {
 public:
  Scorer(Bundle bundle, const Manifest& manifest, const Tokenizer& tokenizer, const Engine& engine, int threads);

  // Throws BundleError: the bundle has no graph for these options.
  void check(const Options& options) const;

  // Throws InputError: whole source ids are none or too many, or one is outside the vocabulary.
  void check_source(const Ids& ids, const std::string& what) const;

  // How likely the model takes a given translation of each sentence for: to rank some, or to filter a corpus. Of the
  // options the languages and `strict` have a meaning here.
  // Throws InputError: the two are not of one number, one is empty or too long, or an id is outside the vocabulary.
  // BundleError: the bundle was exported without the graph that scores need.
  std::vector<Score> score(const Call& call, const std::vector<std::string_view>& sentences,
                           const std::vector<Answer>& answers) const;

  // The same of whole source ids and target ids, as `Translator::translate_ids` takes and gives them.
  std::vector<Score> score_ids(const std::vector<Ids>& sources, const std::vector<Ids>& answers) const;

  // What the encoder makes of sentences: `[source ids, d_model]` of each or, if `pooled`, `[1, d_model]`, the mean over
  // all ids, eos and language included. Options as for `score`.
  // Throws InputError: a sentence is empty, or too long and `strict` is set. BundleError: the bundle was exported
  // without the graph that embeddings need.
  std::vector<FloatMatrix> embed(const Call& call, const std::vector<std::string_view>& sentences, bool pooled) const;

  // Add alignment and attention to translations of these sentences, as far as the options ask for them.
  void align(const Options& options, const std::vector<Sentence>& sentences,
             std::vector<Translation>& translations) const;

 private:
  Bundle bundle_;
  const Manifest& manifest_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<TeacherForcing> forcing_;

  Alignment alignment(const Sentence& sentence, const Translation& translation, const FloatMatrix& attention) const;
  Ids target_of(const Answer& answer, const Sentence& sentence, const std::string& what) const;
  void check_target(const Ids& ids, const std::string& what) const;
  std::vector<Score> scores(const std::vector<EncoderInput>& sources, std::vector<Ids> targets) const;
};

}  // namespace txport::core
