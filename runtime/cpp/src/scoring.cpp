#include "scoring.hpp"

#include <algorithm>
#include <utility>

#include "arguments.hpp"
#include "bundle/interface.hpp"
#include "errors.hpp"
#include "text/affixes.hpp"
#include "text/alignment.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

std::string numbered(const char* what, std::size_t index) {
  return std::string(what) + " " + std::to_string(index + 1);
}

// Return the mean of all rows.
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
  const bool replaces = options.replace_unknowns.value_or(false);
  if (replaces && manifest_.model.feature_size) {
    throw InputError("replace_unknowns copies words of a text, and this bundle reads vectors: leave it out");
  }
  const std::string& kind = manifest_.tokenizer.kind;
  if (replaces && kind != "sentencepiece") {
    throw InputError(
        "replace_unknowns needs a SentencePiece model or a word list, but the tokenizer of this bundle is " +
        ("of the kind '" + kind + "': leave out the option replace_unknowns"));
  }
  if (options.alignments || options.attention || replaces) check_has(bundle_, manifest_, kDecoder);
}

void Scorer::check_source(const Ids& ids, const std::string& what) const {
  check_sentence(ids, manifest_.model.source_vocabulary, manifest_.limits().source, manifest_.tokens.pad, what);
}

void Scorer::check_target(const Ids& ids, const std::string& what) const {
  check_sentence(ids, manifest_.model.target_vocabulary, manifest_.limits().target, manifest_.tokens.pad, what);
}

std::vector<Score> Scorer::score(const Call& call, const std::vector<std::string_view>& sentences,
                                 const std::vector<GivenTarget>& answers) const {
  check_pairs(sentences.size(), answers.size());
  std::vector<Sentence> requests;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    requests.push_back(call.needed(sentences[i], numbered("sentence", i)));
  }
  std::vector<EncoderInput> sources;
  std::vector<Ids> targets;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    targets.push_back(target_of(answers[i], requests[i], numbered("translation", i)));
    sources.push_back(requests[i].request.source());
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
  std::vector<FloatMatrix> results(sources.size());
  forcing_->memories(sources, [&](std::size_t index, FloatMatrix memory) {
    results[index] = pooled ? mean_of(memory) : std::move(memory);
  });
  return results;
}

void Scorer::align(const Options& options, const std::vector<Sentence>& sentences,
                   std::vector<Translation>& translations) const {
  std::vector<std::size_t> chosen;
  std::vector<EncoderInput> sources;
  std::vector<Ids> targets;
  for (std::size_t i = 0; i < translations.size(); ++i) {
    const Ids& ids = translations[i].ids;
    const bool has_unknown = std::find(ids.begin(), ids.end(), manifest_.tokens.unk) != ids.end();
    if (!options.alignments && !options.attention && !has_unknown) continue;
    chosen.push_back(i);
    sources.push_back(sentences[i].request.source());
    targets.push_back(ids);
  }
  forcing_->read(sources, targets, true, [&](std::size_t number, const Reading& reading) {
    const Sentence& sentence = sentences[chosen[number]];
    Translation& translation = translations[chosen[number]];
    FloatMatrix attention = averaged(reading.cross, manifest_.alignment_heads);
    Ids tokens = aligned_tokens(sentence, translation.ids, attention);
    Copies copies;
    if (options.replace_unknowns.value_or(false)) {
      copies = copied(options, sentence, translation.ids, tokens);
      translation.text = tokenizer_.decode_copied(sentence.visible(translation.ids), copies);
    }
    if (options.alignments) translation.alignment = alignment(sentence, translation, std::move(tokens), copies);
    if (options.attention) translation.attention = std::move(attention);
  });
}

// Return for each target id the position of the source id that it is aligned with.
Ids Scorer::aligned_tokens(const Sentence& sentence, const Ids& ids, const FloatMatrix& attention) const {
  const SpecialTokens& tokens = manifest_.tokens;
  const auto is_special = [&tokens](std::int64_t id) {
    return id == tokens.pad || id == tokens.bos || id == tokens.eos;
  };
  const EncoderInput source = sentence.request.source();
  std::vector<bool> aligned;
  for (const std::int64_t id : ids) {
    aligned.push_back(aligned.size() >= sentence.forced && !is_special(id));
  }
  std::vector<std::size_t> text_ids;  // positions of ids of the text
  if (sentence.text.empty()) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source.vectors != nullptr || !is_special(source.ids[i])) text_ids.push_back(i);
    }
  }
  for (std::size_t i = sentence.first; i < sentence.last; ++i) text_ids.push_back(i);
  return align_tokens(attention, text_ids, aligned);
}

// Return the piece of the source that replaces each unknown id of a translation.
Copies Scorer::copied(const Options& options, const Sentence& sentence, const Ids& ids, const Ids& tokens) const {
  const std::int64_t unk = manifest_.tokens.unk;
  std::vector<std::string> pieces;
  for (const std::int64_t id : sentence.request.source_ids) {  // the text of an unknown id cannot be found from its id
    pieces.push_back(id == unk ? "" : tokenizer_.source_piece(id));
  }
  if (!sentence.text.empty()) {
    std::string_view rest = sentence.text;
    affixes_of(rest, manifest_.tokenizer, {options.source_language, options.target_language}, unk);
    const std::vector<std::string> split = tokenizer_.split(rest);
    for (std::size_t i = sentence.first; i < sentence.last; ++i) pieces[i] = split.at(i - sentence.first);
  }
  Copies copies;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] != unk || tokens[i] == kNotAligned) continue;
    const std::string& piece = pieces[static_cast<std::size_t>(tokens[i])];
    if (!piece.empty()) copies[i] = piece;
  }
  return copies;
}

Alignment Scorer::alignment(const Sentence& sentence, const Translation& translation, Ids tokens,
                            const Copies& copies) const {
  Alignment result;
  result.tokens = std::move(tokens);
  if (manifest_.frame_rate) result.times = times_of(result.tokens, *manifest_.frame_rate);
  result.source_spans.resize(sentence.request.source().size());
  for (std::size_t i = sentence.first; i < sentence.last; ++i) {
    result.source_spans[i] = sentence.spans.at(i - sentence.first);
  }
  for (const Span& span : target_spans(tokenizer_, translation.ids, copies)) {
    result.target_spans.push_back(stripped(span, translation.text));
  }
  result.source_words = words_of(sentence.text);
  result.target_words = words_of(translation.text);
  align_words(result);
  return result;
}

// Return the checked ids of a given translation.
Ids Scorer::target_of(const GivenTarget& answer, const Sentence& sentence, const std::string& what) const {
  Ids ids;
  if (const auto* text = std::get_if<std::string_view>(&answer)) {
    check_utf8(*text, what);
    const Ids text_ids = tokenizer_.encode_prefix(*text);
    if (text_ids.empty()) throw InputError(what + " is empty: there is nothing to score");
    const auto language = sentence.request.prefix.begin();
    ids.assign(language, language + static_cast<std::ptrdiff_t>(sentence.forced));
    ids.insert(ids.end(), text_ids.begin(), text_ids.end());
    ids.push_back(manifest_.tokens.eos);
  } else {
    ids = std::get<Ids>(answer);
  }
  check_target(ids, what);
  return ids;
}

std::vector<Score> Scorer::scores(const std::vector<EncoderInput>& sources, std::vector<Ids> targets) const {
  check_has(bundle_, manifest_, kDecoder);
  std::vector<Score> results(targets.size());
  forcing_->read(sources, targets, false, [&](std::size_t i, const Reading& reading) {
    results[i].scores.assign(reading.log_probabilities.begin(), reading.log_probabilities.end());
  });
  for (std::size_t i = 0; i < targets.size(); ++i) results[i].ids = std::move(targets[i]);
  return results;
}

}  // namespace txport::core
