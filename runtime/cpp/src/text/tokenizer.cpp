#include "text/tokenizer.hpp"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "bundle/protobuf.hpp"
#include "errors.hpp"
#include "text/byte_level.hpp"
#include "text/pieces.hpp"
#include "text/sentencepiece_rules.hpp"
#include "text/side.hpp"
#include "text/unigram.hpp"
#include "text/unknown.hpp"
#include "text/vocabulary.hpp"
#include "text/with_added.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::size_t kMaxModelBytes = std::size_t{256} << 20;

// A SentencePiece model that segments texts in the arithmetic `score_sums` of its bundle. Only if the linked library
// has another one, `unigram` is not null.
struct Model {
  std::unique_ptr<SentencePieceProcessor> processor = std::make_unique<SentencePieceProcessor>();
  std::unique_ptr<const Unigram> unigram;

  Pieces pieces(const std::string& text) const {
    return unigram ? unigram->segment(text) : read_pieces(processor->EncodeAsSerializedProto(text));
  }
};

Model load_model(const std::string& data, const std::string& name, const std::string& score_sums) {
  Model model;
  try {
    check_sentencepiece(data);
  } catch (const BundleError& error) {
    throw BundleError(name + " " + error.what() + ": copy or export the bundle again");
  }
  if (!model.processor->LoadFromSerializedProto(data).ok()) {
    throw BundleError(name + " is not a SentencePiece model: copy or export the bundle again");
  }
  const bool in_float32 = score_sums == "float32";
  if (in_float32 != library_sums_in_float32() && Unigram::is_unigram(data)) {
    model.unigram = std::make_unique<Unigram>(data, in_float32);
  }
  return model;
}

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // SentencePiece's space

// Return whether a model has normalisation rules (ModelProto.normalizer_spec.precompiled_charsmap).
bool has_rules(std::string_view data) {
  constexpr const char* kFault = "SentencePiece failed: its model cannot be read";
  Fields fields(data, kFault);
  while (const auto field = fields.next()) {
    if (field->number != 3) continue;
    Fields spec(field->bytes, kFault);
    while (const auto part = spec.next()) {
      if (part->number == 2 && !part->bytes.empty()) return true;
    }
  }
  return false;
}

// Append a piece of normalised text, and the position in the original text of each of its bytes. `original` is the text
// of the piece before normalisation, which begins at `start`. Its last characters correspond to the piece.
void add_piece(Normalised& to, std::string_view piece, std::string_view original, std::size_t start) {
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < original.size(); at += character_at(original, at).length) starts.push_back(start + at);
  const std::size_t count = count_characters(piece);
  std::size_t number = 0;
  for (std::size_t at = 0; at < piece.size(); ++number) {
    const std::size_t length = character_at(piece, at).length;
    const std::size_t skipped = starts.size() + number;
    const std::size_t index = skipped > count ? skipped - count : 0;
    to.text += piece.substr(at, length);
    to.positions.insert(to.positions.end(), length, index < starts.size() ? starts[index] : start);
    at += length;
  }
}

// The SentencePiece model of one side (Kudo and Richardson 2018, arXiv:1808.06226), with its optional vocabulary.
class SentencePieces : public Inner {
 public:
  SentencePieces(const Bundle& bundle, const TokenizerSide& files, std::int64_t vocabulary, const Manifest& manifest,
                 bool continues) {
    const std::string data = bundle.read(files.model, kMaxModelBytes);
    const std::string name = bundle.name(files.model);
    const std::string& sums = manifest.tokenizer.score_sums;
    model_ = load_model(data, name, sums);
    normalises_ = has_rules(data);
    // Protobuf merges repeated messages, so appending a NormalizerSpec sets add_dummy_prefix (3) to false.
    if (continues) without_prefix_ = load_model(data + field_of(3, std::string("\x18\0", 2)), name, sums);
    if (files.vocabulary) {
      vocabulary_.emplace(bundle, *files.vocabulary, vocabulary, manifest.tokens.unk);
    } else if (processor().GetPieceSize() > vocabulary) {
      throw BundleError(name + " has " + std::to_string(processor().GetPieceSize()) +
                        " pieces, more than the vocabulary of " + std::to_string(vocabulary) +
                        ": it belongs to another model, export the bundle again");
    }
  }

  Ids encode(std::string_view whole) const override {
    const std::string text = shorten(whole).text;
    if (model_.unigram) return ids_of(model_.unigram->segment(text));
    if (!vocabulary_) {
      std::vector<int> found;
      check(processor().Encode(text, &found));
      return {found.begin(), found.end()};
    }
    std::vector<std::string> pieces;
    check(processor().Encode(text, &pieces));
    return vocabulary_->ids(pieces);
  }

  Ids locate(std::string_view text, std::vector<Span>& spans) const override { return located(model_, text, spans); }

  Ids locate_inside(std::string_view text, std::vector<Span>& spans) const override {
    return located(without_prefix_ ? *without_prefix_ : model_, text, spans);
  }

  std::optional<Normalised> normalised(std::string_view text) const override {
    if (!normalises_) return std::nullopt;
    Normalised whole;
    for (const Span& span : blocks(text, [this](std::string_view part) { return normalised_block(part).text; })) {
      const Normalised part = normalised_block(text.substr(span.start, span.end - span.start));
      whole.text += part.text;
      for (std::size_t i = 0; i < part.text.size(); ++i) whole.positions.push_back(span.start + part.positions[i]);
    }
    whole.positions.push_back(text.size());
    return whole;
  }

  Ids space() const override {
    if (!vocabulary_) return {processor().PieceToId(std::string(kSpaceMark))};
    return vocabulary_->ids({std::string(kSpaceMark)});
  }

  std::string decode(const Ids& ids) const override {
    std::string text;
    if (vocabulary_) {
      check(processor().Decode(vocabulary_->pieces(ids), &text));
      return text;
    }
    // The vocabulary may be padded to more ids than there are pieces. An undertrained model may generate such ids.
    std::vector<int> known;
    for (const std::int64_t id : ids) {
      if (0 <= id && id < processor().GetPieceSize()) known.push_back(static_cast<int>(id));
    }
    check(processor().Decode(known, &text));
    return text;
  }

  std::vector<std::string> split(std::string_view text) const override { return split_by(model_, text); }

  std::vector<std::string> split_inside(std::string_view text) const override {
    return split_by(without_prefix_ ? *without_prefix_ : model_, text);
  }

  std::string piece(std::int64_t id) const override {
    if (!vocabulary_)
      return 0 <= id && id < processor().GetPieceSize() ? processor().IdToPiece(static_cast<int>(id)) : "";
    const std::vector<std::string> found = vocabulary_->pieces({id});
    return found.empty() ? "" : found.front();
  }

  std::string decode_copied(const Ids& ids, const Copies& copies) const override {
    std::vector<std::string> pieces;
    bool has_text = false;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto copy = copies.find(i);
      std::string text = copy == copies.end() ? piece(ids[i]) : copy->second;
      if (text.empty()) continue;
      const int known = processor().PieceToId(text);
      if (copy != copies.end() && known == processor().unk_id()) {  // SentencePiece shows it unchanged
        text = with_spaces(std::move(text));
        if (!has_text) text.erase(0, text.find_first_not_of(' '));
      }
      has_text = has_text || !processor().IsControl(known);
      pieces.push_back(std::move(text));
    }
    std::string text;
    check(processor().Decode(pieces, &text));
    return text;
  }

 private:
  Model model_;
  std::optional<Model> without_prefix_;  // the same model, without a space before texts
  std::optional<Vocabulary> vocabulary_;
  bool normalises_ = false;

  const SentencePieceProcessor& processor() const { return *model_.processor; }

  Ids ids_of(const Pieces& pieces) const { return vocabulary_ ? vocabulary_->ids(pieces.texts) : pieces.ids; }

  Ids located(const Model& model, std::string_view text, std::vector<Span>& spans) const {
    const Shortened shortened_text = shorten(text);
    const Pieces pieces = model.pieces(shortened_text.text);
    spans = pieces.spans;
    shortened_text.locate(spans);
    return ids_of(pieces);
  }

  std::vector<std::string> split_by(const Model& model, std::string_view text) const {
    const Shortened left = shorten(text);
    Pieces pieces = model.pieces(left.text);
    const std::vector<Span> shorter = pieces.spans;
    left.locate(pieces.spans);
    for (std::size_t i = 0; i < shorter.size(); ++i) {
      const Span& span = pieces.spans[i];
      std::string& piece = pieces.texts[i];
      if (span.end - span.start == shorter[i].end - shorter[i].start) continue;
      const Span own = stripped(span, text);  // a long run of unknown characters
      const bool marked = piece.compare(0, kSpaceMark.size(), kSpaceMark) == 0;
      piece = (marked ? std::string(kSpaceMark) : "") + std::string(text.substr(own.start, own.end - own.start));
    }
    return std::move(pieces.texts);
  }

  Normalised normalised_block(std::string_view text) const {
    Normalised whole;
    const Pieces pieces = read_pieces(processor().EncodeAsSerializedProto(text));
    for (std::size_t i = 0; i < pieces.ids.size(); ++i) {
      const Span& span = pieces.spans[i];
      const std::string_view original = text.substr(span.start, span.end - span.start);
      // A character of several pieces consists of byte pieces. The last piece gets the character.
      const bool of_bytes = processor().IsByte(static_cast<int>(pieces.ids[i]));
      add_piece(whole, of_bytes ? std::string(original) : with_spaces(pieces.texts[i]), original, span.start);
    }
    return with_ends(std::move(whole), text);
  }

  static std::string with_spaces(std::string piece) {
    for (std::size_t at = 0; (at = piece.find(kSpaceMark, at)) != std::string::npos; ++at) {
      piece.replace(at, kSpaceMark.size(), " ");
    }
    return piece;
  }

  // Restore white space at both ends of the text, which the model drops. Text of white space only gets one space.
  static Normalised with_ends(Normalised whole, std::string_view text) {
    const std::size_t skipped = std::min(whole.text.find_first_not_of(' '), whole.text.size());
    whole.text.erase(0, skipped);
    whole.positions.erase(whole.positions.begin(), whole.positions.begin() + static_cast<std::ptrdiff_t>(skipped));
    const std::size_t end = before_space(text, text.size());
    if (after_space(text, 0) > 0) {
      whole.text.insert(0, " ");
      whole.positions.insert(whole.positions.begin(), 0);
    }
    if (0 < end && end < text.size()) {
      whole.text += ' ';
      whole.positions.push_back(end);
    }
    whole.positions.push_back(text.size());
    return whole;
  }

  // Return whether the model encodes a text as a single unknown piece, possibly after the space mark. The text is
  // encoded twice in a row, because the model would remove white space at its ends.
  bool is_unknown(std::string_view text) const {
    std::vector<int> ids;
    check(processor().Encode(std::string(text).append(text), &ids));
    const bool marked = ids.size() == 2 && ids.front() == processor().PieceToId("\xE2\x96\x81");
    return !ids.empty() && ids.back() == processor().unk_id() && (ids.size() == 1 || marked);
  }

  Shortened shorten(std::string_view text) const {
    return shortened(text, [this](std::string_view part) { return is_unknown(part); });
  }

  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw BundleError("SentencePiece failed: " + status.ToString());
  }
};

// UTF-8 bytes as tokens, as in ByT5 (Xue et al. 2021, arXiv:2105.13626).
class Utf8Bytes : public Inner {
 public:
  Ids encode(std::string_view text) const override {
    Ids ids;
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte) + TokenizerDescription::kFirstByte);
    return ids;
  }

  Ids locate(std::string_view text, std::vector<Span>& spans) const override {
    for (std::size_t start = 0; start < text.size();) {
      const std::size_t length = character_at(text, start).length;
      spans.insert(spans.end(), length, {start, start + length});
      start += length;
    }
    return encode(text);
  }

  Ids locate_inside(std::string_view text, std::vector<Span>& spans) const override { return locate(text, spans); }
  std::optional<Normalised> normalised(std::string_view /*text*/) const override { return std::nullopt; }
  Ids space() const override { return encode(" "); }
  std::vector<std::string> split_inside(std::string_view /*text*/) const override { return {}; }

  std::string decode(const Ids& ids) const override {
    std::string bytes;
    for (const std::int64_t id : ids) {
      const std::int64_t byte = id - TokenizerDescription::kFirstByte;
      if (0 <= byte && byte < 256) bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    }
    return without_faults(bytes);
  }
};

std::shared_ptr<const Side> open_side(const Bundle& bundle, const Manifest& manifest,
                                      const std::optional<TokenizerSide>& files, std::int64_t vocabulary) {
  const std::string& kind = manifest.tokenizer.kind;
  const auto& added = manifest.tokenizer.added;
  if (kind == "tokenizers") {
    return read_byte_level(bundle.read(files->model, kMaxModelBytes), bundle.name(files->model), vocabulary);
  }
  std::shared_ptr<const Inner> inner;
  if (kind == "bytes") {
    inner = std::make_shared<Utf8Bytes>();
  } else {
    const bool continues = added && added->prefix == "first";
    inner = std::make_shared<SentencePieces>(bundle, *files, vocabulary, manifest, continues);
  }
  return added ? with_added(inner, *added, kind != "bytes") : inner;
}

// A tokenizer with a model for each side, which may be the same model.
class TwoSides : public Tokenizer {
 public:
  TwoSides(const Bundle& bundle, const Manifest& manifest) {
    const auto& source = manifest.tokenizer.source;
    const auto& target = manifest.tokenizer.target;
    const auto& model = manifest.model;
    const bool same = !source || (source->model == target->model && source->vocabulary == target->vocabulary &&
                                  model.source_vocabulary == model.target_vocabulary);
    source_ = open_side(bundle, manifest, source, model.source_vocabulary);
    target_ = same ? source_ : open_side(bundle, manifest, target, model.target_vocabulary);
  }

  Ids encode(std::string_view text) const override { return source_->encode(text); }
  Ids locate(std::string_view text, std::vector<Span>& spans) const override { return source_->locate(text, spans); }
  Ids encode_prefix(std::string_view text) const override { return target_->encode(text); }
  std::string decode(const Ids& ids) const override { return target_->decode(ids); }
  std::vector<std::string> split(std::string_view text) const override { return source_->split(text); }
  std::string source_piece(std::int64_t id) const override { return source_->piece(id); }

  std::string decode_copied(const Ids& ids, const Copies& copies) const override {
    return copies.empty() ? decode(ids) : target_->decode_copied(ids, copies);
  }

 private:
  std::shared_ptr<const Side> source_;
  std::shared_ptr<const Side> target_;
};

// The tokenizer of a bundle without a tokenizer, or with one that only the Python runtime supports.
class IdsOnly : public Tokenizer {
 public:
  explicit IdsOnly(std::string reason) : reason_(std::move(reason)) {}

  Ids encode(std::string_view /*text*/) const override { throw InputError(reason_); }
  Ids locate(std::string_view /*text*/, std::vector<Span>& /*spans*/) const override { throw InputError(reason_); }
  Ids encode_prefix(std::string_view /*text*/) const override { throw InputError(reason_); }
  std::string decode(const Ids& /*ids*/) const override { return ""; }

 private:
  std::string reason_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const Bundle& bundle, const Manifest& manifest) {
  const std::string& kind = manifest.tokenizer.kind;
  if (kind == "none") return std::make_unique<IdsOnly>("this bundle has no tokenizer: give it ids (translate_ids)");
  try {
    return std::make_unique<TwoSides>(bundle, manifest);
  } catch (const InputError& error) {
    return std::make_unique<IdsOnly>(error.what());  // only the Python runtime supports it; ids still work
  }
}

std::string TextStream::add(std::int64_t token_id, bool last) {
  ids_.push_back(token_id);
  std::string text = tokenizer_->decode_copied(ids_, copies_);
  if (!last) text.resize(certain_length(text));
  if (text.compare(0, returned_.size(), returned_) != 0) return "";
  std::string added = text.substr(returned_.size());
  returned_ = std::move(text);
  return added;
}

std::vector<Span> target_spans(const Tokenizer& tokenizer, const Ids& ids, const Copies& copies) {
  TextStream stream(tokenizer, copies);
  std::vector<Span> spans;
  std::size_t end = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t start = end;
    end += stream.add(ids[i], i + 1 == ids.size()).size();
    spans.push_back({start, end});
  }
  return spans;
}

}  // namespace txport::core
