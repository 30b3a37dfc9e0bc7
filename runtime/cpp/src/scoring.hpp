// Scores, embeddings, attention and alignments of sentences and given translations.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "bundle/manifest.hpp"
#include "calls/requests.hpp"
#include "engine.hpp"
#include "engines/teacher_forcing.hpp"
#include "options.hpp"
#include "results.hpp"
#include "text/tokenizer.hpp"

namespace txport::core {

// A given translation: text, which is tokenized and gets eos, or ids in the form of `Translation::ids`.
using GivenTarget = std::variant<std::string_view, Ids>;

// Runs the graphs of tx-export --with-attention on complete sentences. Threads may share a scorer. The arguments of the
// constructor must outlive it.
class Scorer {
 public:
  Scorer(Bundle bundle, const Manifest& manifest, const Tokenizer& tokenizer, const Engine& engine, int threads);

  // Throw BundleError if the bundle has no graph for these options, InputError if its tokenizer has no unknown tokens.
  void check(const Options& options) const;

  // Throw InputError if complete source ids are empty, too many, or outside the vocabulary.
  void check_source(const Ids& ids, const std::string& what) const;

  // Score a given translation of each sentence, for example to rank translations or to filter a corpus. Only the
  // options for languages and `strict` have an effect. Throws InputError: the numbers of sentences and translations
  // differ, a text is empty or too long, or an id is outside the vocabulary; BundleError: the bundle was exported
  // without the graph for scores.
  std::vector<Score> score(const Call& call, const std::vector<std::string_view>& sentences,
                           const std::vector<GivenTarget>& answers) const;

  // Score complete source and target ids, in the form that `Translator::translate_ids` reads and returns.
  std::vector<Score> score_ids(const std::vector<Ids>& sources, const std::vector<Ids>& answers) const;

  // Return the encoder output of each sentence: `[source ids, d_model]` or, if `pooled`, `[1, d_model]`, the mean over
  // all ids including eos and language tokens. Options as in `score`. Throws InputError: a sentence is empty, or it is
  // too long and `strict` is set; BundleError: the bundle was exported without the graph for embeddings.
  std::vector<FloatMatrix> embed(const Call& call, const std::vector<std::string_view>& sentences, bool pooled) const;

  // Add alignments and attention to translations of these sentences, if the options request them.
  void align(const Options& options, const std::vector<Sentence>& sentences,
             std::vector<Translation>& translations) const;

 private:
  Bundle bundle_;
  const Manifest& manifest_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<TeacherForcing> forcing_;

  Ids aligned_tokens(const Sentence& sentence, const Ids& ids, const FloatMatrix& attention) const;
  Copies copied(const Options& options, const Sentence& sentence, const Ids& ids, const Ids& tokens) const;
  Alignment alignment(const Sentence& sentence, const Translation& translation, Ids tokens, const Copies& copies) const;
  Ids target_of(const GivenTarget& answer, const Sentence& sentence, const std::string& what) const;
  void check_target(const Ids& ids, const std::string& what) const;
  std::vector<Score> scores(const std::vector<EncoderInput>& sources, std::vector<Ids> targets) const;
};

}  // namespace txport::core
