#include "text/unigram.hpp"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "bundle/protobuf.hpp"
#include "errors.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

using sentencepiece::SentencePieceProcessor;

constexpr const char* kModelFault = "is not a SentencePiece model";
// Field numbers and values of sentencepiece_model.proto.
constexpr std::uint64_t kModelPieces = 1;
constexpr std::uint64_t kTrainer = 2;
constexpr std::uint64_t kNormalizer = 3;
constexpr std::uint64_t kText = 1;
constexpr std::uint64_t kScore = 2;
constexpr std::uint64_t kType = 3;
constexpr std::uint64_t kAlgorithm = 3;
constexpr std::uint64_t kByteFallback = 35;
constexpr std::uint64_t kUnigram = 1;
enum PieceType : std::uint64_t { kNormal = 1, kUnknown = 2, kUserDefined = 4, kByte = 6 };
constexpr float kUnknownPenalty = 10.0F;
constexpr float kReset = 100'000.0F;  // sums in float32 are reset to 0 at this limit
constexpr std::size_t kNoPiece = std::numeric_limits<std::size_t>::max();

struct ModelPiece {
  std::string_view text;
  float score = 0;
  std::uint64_t type = kNormal;
};

struct Contents {
  std::vector<ModelPiece> pieces;
  std::uint64_t algorithm = kUnigram;
  bool has_bytes = false;
};

float float_of(std::string_view field) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    bits |= static_cast<std::uint32_t>(static_cast<unsigned char>(field[field.size() - 4 + i])) << 8U * i;
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

ModelPiece piece_of(std::string_view message) {
  ModelPiece piece;
  for (Fields fields(message, kModelFault); const auto field = fields.next();) {
    if (field->tag == (kText << 3U | 2U)) piece.text = field->bytes;
    if (field->tag == (kScore << 3U | 5U)) piece.score = float_of(field->whole);
    if (field->tag == kType << 3U) piece.type = field->value;
  }
  return piece;
}

Contents read_model(std::string_view model) {
  Contents contents;
  for (Fields fields(model, kModelFault); const auto field = fields.next();) {
    if (field->tag == (kModelPieces << 3U | 2U)) contents.pieces.push_back(piece_of(field->bytes));
    if (field->tag != (kTrainer << 3U | 2U)) continue;
    for (Fields trainer(field->bytes, kModelFault); const auto part = trainer.next();) {
      if (part->tag == kAlgorithm << 3U) contents.algorithm = part->value;
      if (part->tag == kByteFallback << 3U) contents.has_bytes = part->value != 0;
    }
  }
  return contents;
}

std::string message_of(std::string_view text, PieceType type) {
  return field_of(kModelPieces, field_of(kText, text) + "\x18" + static_cast<char>(type));
}

std::string byte_name(std::size_t byte) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
}

std::unique_ptr<SentencePieceProcessor> load(const std::string& model) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  if (!processor->LoadFromSerializedProto(model).ok()) throw BundleError("SentencePiece failed to load a model");
  return processor;
}

// Load a model with the same normalisation, whose pieces are bytes, so that each character has its place in the text.
// Older versions of the library return no normalised texts. User-defined pieces remain: they are not normalised.
std::unique_ptr<SentencePieceProcessor> normaliser_of(std::string_view model, const std::vector<ModelPiece>& pieces) {
  const auto is_unknown = [](const ModelPiece& piece) { return piece.type == kUnknown; };
  const auto unknown = std::find_if(pieces.begin(), pieces.end(), is_unknown);
  std::set<std::string> names{std::string(unknown == pieces.end() ? "<unk>" : unknown->text)};
  std::string bytes = message_of(*names.begin(), kUnknown);
  const auto add = [&](const std::string& text, PieceType type) {
    if (names.insert(text).second) bytes += message_of(text, type);
  };
  for (std::size_t byte = 0; byte < 256; ++byte) add(byte_name(byte), kByte);
  add("\xE2\x96\x81", kNormal);  // the library needs a normal piece
  for (const ModelPiece& piece : pieces) {
    if (piece.type == kUserDefined) add(std::string(piece.text), kUserDefined);
  }
  for (Fields fields(model, kModelFault); const auto field = fields.next();) {
    if (field->number == kTrainer || field->number == kNormalizer) bytes += field->whole;
  }
  return load(bytes + field_of(kTrainer, "\x98\x02\x01"));  // byte_fallback; repeated messages are merged
}

}  // namespace

// A normalised text. `positions` contains the byte offset in the text of each of its bytes, and of its end.
struct Unigram::Normal {
  std::string text;
  std::vector<std::size_t> positions;
};

bool library_sums_in_float32() {
  // For "ab", a and b together are better than ab by 2^-25, which float32 rounds to 0.
  static const bool in_float32 = [] {
    const auto scored = [](std::string_view text, std::string_view score) {
      return field_of(kModelPieces, field_of(kText, text) + "\x15" + std::string(score));
    };
    constexpr std::string_view kMinusOne("\0\0\x80\xBF", 4);
    constexpr std::string_view kMinusHalf("\0\0\0\xBF", 4);
    constexpr std::string_view kAlmostMinusHalf("\xFF\xFF\xFF\xBE", 4);  // 2^-25 more
    const std::string without_prefix = field_of(kNormalizer, std::string_view("\x18\0", 2));
    const auto processor = load(message_of("<unk>", kUnknown) + scored("ab", kMinusOne) + scored("a", kMinusHalf) +
                                scored("b", kAlmostMinusHalf) + without_prefix);
    return read_pieces(processor->EncodeAsSerializedProto("ab")).ids.size() == 1;
  }();
  return in_float32;
}

bool Unigram::is_unigram(std::string_view model) { return read_model(model).algorithm == kUnigram; }

Unigram::Unigram(std::string model, bool in_float32) : model_(std::move(model)), in_float32_(in_float32) {
  const Contents contents = read_model(model_);
  normaliser_ = normaliser_of(model_, contents.pieces);
  float best = FLT_MIN;  // as in the library
  float worst = FLT_MAX;
  for (const ModelPiece& piece : contents.pieces) {
    if (piece.type != kNormal) continue;
    best = std::max(best, piece.score);
    worst = std::min(worst, piece.score);
  }
  unknown_.score = worst - kUnknownPenalty;
  if (contents.has_bytes) bytes_.assign(256, -1);
  for (std::size_t i = 0; i < contents.pieces.size(); ++i) {
    const ModelPiece& piece = contents.pieces[i];
    const auto id = static_cast<std::int64_t>(i);
    if (piece.type == kUnknown) unknown_.id = id;
    for (std::size_t byte = 0; piece.type == kByte && byte < bytes_.size(); ++byte) {
      if (piece.text == byte_name(byte)) bytes_[byte] = id;
    }
    if ((piece.type != kNormal && piece.type != kUserDefined) || piece.text.empty()) continue;
    double score = piece.score;
    if (piece.type == kUserDefined) {
      const auto size = static_cast<float>(piece.text.size());
      score = in_float32_ ? static_cast<float>(0.1 * (size - 1)) : static_cast<double>(size * best) - 0.1;
    }
    edges_[piece.text] = {id, score};
    std::size_t& longest = longest_[static_cast<unsigned char>(piece.text.front())];
    longest = std::max(longest, piece.text.size());
  }
}

Unigram::~Unigram() = default;

Unigram::Normal Unigram::normalise(std::string_view text) const {
  Normal normal;
  const Pieces pieces = read_pieces(normaliser_->EncodeAsSerializedProto({text.data(), text.size()}));
  for (std::size_t i = 0; i < pieces.ids.size(); ++i) {
    const auto byte = pieces.ids[i] - 1;
    normal.text += 0 <= byte && byte < 256 ? std::string(1, static_cast<char>(byte)) : pieces.texts[i];
    normal.positions.resize(normal.text.size(), pieces.spans[i].start);
  }
  normal.positions.push_back(pieces.spans.empty() ? text.size() : pieces.spans.back().end);
  return normal;
}

// Return where the last piece of the best segmentation of each beginning of the text begins. Follows
// unigram::Model::EncodeOptimized of the library step by step.
std::vector<std::size_t> Unigram::best_starts(std::string_view text) const {
  std::vector<float> best(text.size() + 1);
  std::vector<std::size_t> starts(text.size() + 1, kNoPiece);
  std::size_t frontier = 0;
  for (std::size_t start = 0; start < text.size();) {
    if (const float offset = best[start]; in_float32_ && std::abs(offset) > kReset) {
      for (std::size_t i = start; i <= frontier; ++i) {
        if (i == start || starts[i] != kNoPiece) best[i] -= offset;
      }
    }
    const auto add = [&, here = best[start]](std::size_t end, const Edge& edge) {
      double total = static_cast<double>(here) + edge.score;
      if (in_float32_ || edge.id == unknown_.id) total = static_cast<float>(total);
      frontier = std::max(frontier, end);
      if (starts[end] != kNoPiece && !(total > static_cast<double>(best[end]))) return;
      best[end] = static_cast<float>(total);
      starts[end] = start;
    };
    const std::size_t next = start + character_at(text, start).length;
    const std::size_t last = std::min(text.size(), start + longest_[static_cast<unsigned char>(text[start])]);
    bool has_character = false;
    for (std::size_t end = next; end <= last; end += character_at(text, end).length) {
      if (const auto edge = edges_.find(text.substr(start, end - start)); edge != edges_.end()) {
        has_character = has_character || end == next;
        add(end, edge->second);
      }
      if (end == text.size()) break;
    }
    if (!has_character) add(next, unknown_);
    start = next;
  }
  return starts;
}

Pieces Unigram::segment(std::string_view text) const {
  const Normal normal = normalise(text);
  const std::vector<std::size_t> starts = best_starts(normal.text);
  std::vector<std::size_t> ends;
  for (std::size_t end = normal.text.size(); end > 0; end = starts[end]) ends.push_back(end);
  Pieces pieces;
  std::size_t start = 0;
  for (auto end = ends.rbegin(); end != ends.rend(); start = *end++) {
    const std::string_view piece = std::string_view(normal.text).substr(start, *end - start);
    const Span span{normal.positions[start], normal.positions[*end]};
    if (const auto edge = edges_.find(piece); edge == edges_.end()) {
      add_unknown(pieces, piece, span);
    } else {
      pieces.ids.push_back(edge->second.id);
      pieces.texts.emplace_back(piece);
      pieces.spans.push_back(span);
    }
  }
  return pieces;
}

void Unigram::add_unknown(Pieces& pieces, std::string_view text, const Span& span) const {
  if (bytes_.empty() && !pieces.ids.empty() && pieces.ids.back() == unknown_.id) {
    pieces.texts.back() += text;
    pieces.spans.back().end = span.end;
    return;
  }
  if (bytes_.empty()) {
    pieces.ids.push_back(unknown_.id);
    pieces.texts.emplace_back(text);
    pieces.spans.push_back(span);
    return;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {  // the last byte represents the character
    const auto byte = static_cast<unsigned char>(text[i]);
    pieces.ids.push_back(bytes_[byte]);
    pieces.texts.push_back(byte_name(byte));
    pieces.spans.push_back({span.start, i + 1 == text.size() ? span.end : span.start});
  }
}

}  // namespace txport::core
