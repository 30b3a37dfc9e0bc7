#include "text/tokenizer.hpp"

#include <sentencepiece_processor.h>

#include <optional>

#include "errors.hpp"
#include "text/byte_level.hpp"
#include "text/pieces.hpp"
#include "text/sentencepiece_rules.hpp"
#include "text/side.hpp"
#include "text/utf8.hpp"
#include "text/vocabulary.hpp"

namespace txport::core {

namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::size_t kLargestModel = std::size_t{256} << 20;

std::unique_ptr<SentencePieceProcessor> load_model(const Bundle& bundle, const std::string& file) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  const std::string model = bundle.read(file, kLargestModel);
  try {
    check_sentencepiece(model);
  } catch (const BundleError& error) {
    throw BundleError(bundle.name(file) + " " + error.what() + ": copy or export the bundle again");
  }
  if (!processor->LoadFromSerializedProto(model).ok()) {
    throw BundleError(bundle.name(file) + " is not a SentencePiece model: copy or export the bundle again");
  }
  return processor;
}

// One side's SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226) and its vocabulary, if it has one.
class SentencePieces : public Side {
 public:
  SentencePieces(const Bundle& bundle, const TokenizerSide& files, std::int64_t vocabulary, std::int64_t unk)
      : model_(load_model(bundle, files.model)) {
    if (files.vocabulary) {
      vocabulary_.emplace(bundle, *files.vocabulary, vocabulary, unk);
    } else if (model_->GetPieceSize() > vocabulary) {
      throw BundleError(bundle.name(files.model) + " has " + std::to_string(model_->GetPieceSize()) +
                        " pieces, more than the vocabulary of " + std::to_string(vocabulary) +
                        ": it belongs to another model, export the bundle again");
    }
  }

  Ids encode(std::string_view text) const override {
    Ids ids;
    if (!vocabulary_) {
      std::vector<int> found;
      check(model_->Encode(text, &found));
      ids.assign(found.begin(), found.end());
      return ids;
    }
    std::vector<std::string> pieces;
    check(model_->Encode(text, &pieces));
    return vocabulary_->ids(pieces);
  }

  Ids locate(std::string_view text, std::vector<Span>& spans) const override {
    Pieces pieces = read_pieces(model_->EncodeAsSerializedProto(text));
    spans = std::move(pieces.spans);
    return vocabulary_ ? vocabulary_->ids(pieces.texts) : std::move(pieces.ids);
  }

  std::string decode(const Ids& ids) const override {
    std::string text;
    if (vocabulary_) {
      check(model_->Decode(vocabulary_->pieces(ids), &text));
      return text;
    }
    // A vocabulary may be padded beyond the pieces; an undertrained model can choose ids from there.
    std::vector<int> known;
    for (const std::int64_t id : ids) {
      if (0 <= id && id < model_->GetPieceSize()) known.push_back(static_cast<int>(id));
    }
    check(model_->Decode(known, &text));
    return text;
  }

 private:
  std::unique_ptr<SentencePieceProcessor> model_;
  std::optional<Vocabulary> vocabulary_;

  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw BundleError("SentencePiece failed: " + status.ToString());
  }
};

std::shared_ptr<const Side> open_side(const Bundle& bundle, const std::string& kind, const TokenizerSide& files,
                                      std::int64_t vocabulary, std::int64_t unk) {
  if (kind == "tokenizers") {
    return read_byte_level(bundle.read(files.model, kLargestModel), bundle.name(files.model), vocabulary);
  }
  return std::make_shared<SentencePieces>(bundle, files, vocabulary, unk);
}

// A model for each side, perhaps the same one.
class TwoSides : public Tokenizer {
 public:
  TwoSides(const Bundle& bundle, const Manifest& manifest) {
    const TokenizerSide& source = *manifest.tokenizer.source;
    const TokenizerSide& target = *manifest.tokenizer.target;
    const auto& model = manifest.model;
    const auto open = [&](const TokenizerSide& files, std::int64_t vocabulary) {
      return open_side(bundle, manifest.tokenizer.kind, files, vocabulary, manifest.tokens.unk);
    };
    const bool same = source.model == target.model && source.vocabulary == target.vocabulary &&
                      model.source_vocabulary == model.target_vocabulary;
    source_ = open(source, model.source_vocabulary);
    target_ = same ? source_ : open(target, model.target_vocabulary);
  }

  Ids encode(std::string_view text) const override { return source_->encode(text); }
  Ids locate(std::string_view text, std::vector<Span>& spans) const override { return source_->locate(text, spans); }
  Ids encode_prefix(std::string_view text) const override { return target_->encode(text); }
  std::string decode(const Ids& ids) const override { return target_->decode(ids); }

 private:
  std::shared_ptr<const Side> source_;
  std::shared_ptr<const Side> target_;
};

// The bytes of a text, as ByT5 has them (Xue et al. 2021, arXiv:2105.13626).
class ByteTokenizer : public Tokenizer {
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

  Ids encode_prefix(std::string_view text) const override { return encode(text); }

  std::string decode(const Ids& ids) const override {
    std::string bytes;
    for (const std::int64_t id : ids) {
      const std::int64_t byte = id - TokenizerDescription::kFirstByte;
      if (0 <= byte && byte < 256) bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    }
    return without_faults(bytes);
  }
};

// The tokenizer of a bundle that has none, or one that there is only in Python.
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
  if (kind == "bytes") return std::make_unique<ByteTokenizer>();
  if (kind == "none") return std::make_unique<IdsOnly>("this bundle has no tokenizer: give it ids (translate_ids)");
  try {
    return std::make_unique<TwoSides>(bundle, manifest);
  } catch (const InputError& error) {
    return std::make_unique<IdsOnly>(error.what());  // a tokenizer.json that there is in Python only; ids are as good
  }
}

std::string TextStream::add(std::int64_t token_id, bool last) {
  ids_.push_back(token_id);
  std::string text = tokenizer_->decode(ids_);
  if (!last) text.resize(certain_length(text));
  if (text.compare(0, given_.size(), given_) != 0) return "";
  std::string added = text.substr(given_.size());
  given_ = std::move(text);
  return added;
}

std::vector<Span> target_spans(const Tokenizer& tokenizer, const Ids& ids) {
  TextStream stream(tokenizer);
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
