#include "scoring.hpp"

#include <utility>

#include "arguments.hpp"
#include "bundle/interface.hpp"
#include "errors.hpp"
#include "text/alignment.hpp"
#include "text/utf8.hpp"

namespace txport::core {

namespace {

std::string numbered(const char* what, std::size_t index) {
  return std::string(what) + " " + std::to_string(index + 1);
}

// The mean of all rows.
FloatMatrix mean_of(const FloatMatrix& matrix) {
  FloatMatrix mean{1, matrix.columns, std::vector<float>(matrix.columns)};
  for (std::size_t i = 0; i < matrix.values.size(); ++i) mean.values[i % matrix.columns] += matrix.values[i];
  for (float& value : mean.values) value /= static_cast<float>(matrix.rows);
  return mean;
}

}  // namespace

Scorer::Scorer(Bundle bundle, const Manifest& manifest, const Tokenizer& tokenizer, const Engine& engine, int threads)
    : bundle_(std::move(bundle)),
      manifest_(manifest),
      tokenizer_(tokenizer),
      forcing_(make_teacher_forcing(bundle_, manifest, engine, threads)) {}

void Scorer::check(const Options& options) const {
  if (options.alignments || options.attention) check_has(bundle_, manifest_, kDecoder);
}

void Scorer::check_source(const Ids& ids, const std::string& what) const {
  check_sentence(ids, manifest_.model.source_vocabulary, manifest_.limits().source, manifest_.tokens.pad, what);
}

void Scorer::check_target(const Ids& ids, const std::string& what) const {
  check_sentence(ids, manifest_.model.target_vocabulary, manifest_.limits().target, manifest_.tokens.pad, what);
}

std::vector<Score> Scorer::score(const Call& call, const std::vector<std::string_view>& sentences,
                                 const std::vector<Answer>& answers) const {
  check_pairs(sentences.size(), answers.size());
  std::vector<Sentence> asked;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    asked.push_back(call.needed(sentences[i], numbered("sentence", i)));
  }
  std::vector<EncoderInput> sources;
  std::vector<Ids> targets;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    targets.push_back(target_of(answers[i], asked[i], numbered("translation", i)));
    sources.push_back(asked[i].request.source());
  }
  return scores(sources, std::move(targets));
}

std::vector<Score> Scorer::score_ids(const std::vector<Ids>& sources, const std::vector<Ids>& answers) const {
  check_pairs(sources.size(), answers.size());
  for (std::size_t i = 0; i < sources.size(); ++i) check_source(sources[i], numbered("sentence", i));
  for (std::size_t i = 0; i < answers.size(); ++i) check_target(answers[i], numbered("translation", i));
  std::vector<EncoderInput> inputs;
  for (const Ids& source : sources) inputs.push_back({source, nullptr});
  return scores(inputs, answers);
}

std::vector<FloatMatrix> Scorer::embed(const Call& call, const std::vector<std::string_view>& sentences,
                                       bool pooled) const {
  std::vector<Ids> sources;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    sources.push_back(call.needed(sentences[i], numbered("sentence", i)).request.source_ids);
  }
  check_has(bundle_, manifest_, kEncoderAttention);
  std::vector<FloatMatrix> found(sources.size());
  forcing_->memories(sources, [&](std::size_t index, FloatMatrix memory) {
    found[index] = pooled ? mean_of(memory) : std::move(memory);
  });
  return found;
}

void Scorer::align(const Options& options, const std::vector<Sentence>& sentences,
                   std::vector<Translation>& translations) const {
  std::vector<EncoderInput> sources;
  std::vector<Ids> targets;
  for (std::size_t i = 0; i < translations.size(); ++i) {
    sources.push_back(sentences[i].request.source());
    targets.push_back(translations[i].ids);
  }
  forcing_->read(sources, targets, true, [&](std::size_t i, const Reading& reading) {
    FloatMatrix attention = averaged(reading.cross, manifest_.alignment_heads);
    if (options.alignments) translations[i].alignment = alignment(sentences[i], translations[i], attention);
    if (options.attention) translations[i].attention = std::move(attention);
  });
}

Alignment Scorer::alignment(const Sentence& sentence, const Translation& translation,
                            const FloatMatrix& attention) const {
  const SpecialTokens& tokens = manifest_.tokens;
  const auto is_special = [&tokens](std::int64_t id) {
    return id == tokens.pad || id == tokens.bos || id == tokens.eos;
  };
  const EncoderInput source = sentence.request.source();
  std::vector<bool> aligned;
  for (const std::int64_t id : translation.ids) {
    aligned.push_back(aligned.size() >= sentence.forced && !is_special(id));
  }
  Alignment result;
  result.source_spans.resize(source.size());
  std::vector<std::size_t> own;  // positions of the text's ids
  if (sentence.text.empty()) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source.vectors != nullptr || !is_special(source.ids[i])) own.push_back(i);
    }
  }
  for (std::size_t i = sentence.first; i < sentence.last; ++i) {
    own.push_back(i);
    result.source_spans[i] = sentence.spans.at(i - sentence.first);
  }
  for (const Span& span : target_spans(tokenizer_, translation.ids)) {
    result.target_spans.push_back(stripped(span, translation.text));
  }
  result.tokens = align_tokens(attention, own, aligned);
  if (manifest_.frame_rate) result.times = times_of(result.tokens, *manifest_.frame_rate);
  result.source_words = words_of(sentence.text);
  result.target_words = words_of(translation.text);
  align_words(result);
  return result;
}

// The ids of a given translation, as long as the bundle takes at most.
Ids Scorer::target_of(const Answer& answer, const Sentence& sentence, const std::string& what) const {
  Ids ids;
  if (const auto* text = std::get_if<std::string_view>(&answer)) {
    check_utf8(*text, what);
    const Ids own = tokenizer_.encode_prefix(*text);
    if (own.empty()) throw InputError(what + " is empty: there is nothing to score");
    const auto language = sentence.request.prefix.begin();
    ids.assign(language, language + static_cast<std::ptrdiff_t>(sentence.forced));
    ids.insert(ids.end(), own.begin(), own.end());
    ids.push_back(manifest_.tokens.eos);
  } else {
    ids = std::get<Ids>(answer);
  }
  check_target(ids, what);
  return ids;
}

std::vector<Score> Scorer::scores(const std::vector<EncoderInput>& sources, std::vector<Ids> targets) const {
  check_has(bundle_, manifest_, kDecoder);
  std::vector<Score> found(targets.size());
  forcing_->read(sources, targets, false, [&](std::size_t i, const Reading& reading) {
    found[i].scores.assign(reading.log_probabilities.begin(), reading.log_probabilities.end());
  });
  for (std::size_t i = 0; i < targets.size(); ++i) found[i].ids = std::move(targets[i]);
  return found;
}

}  // namespace txport::core
