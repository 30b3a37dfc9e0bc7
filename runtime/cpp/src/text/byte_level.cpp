#include "text/byte_level.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "bundle/strict_json.hpp"
#include "errors.hpp"
#include "text/added_tokens.hpp"
#include "text/letters.hpp"
#include "text/merges.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

// Return the character for each byte in the pieces of a vocabulary: the character itself if it is printable, otherwise
// the next character from U+0100 (bytes_to_unicode of GPT-2).
std::array<std::uint32_t, 256> characters_of_bytes() {
  std::array<std::uint32_t, 256> characters{};
  std::uint32_t unseen = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    characters[byte] = is_printable ? byte : unseen++;
  }
  return characters;
}

// Return the UTF-8 of a character below U+0800.
std::string utf8(std::uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3FU))};
}

// Return the bytes of a piece; the piece unchanged if one of its characters does not represent a byte.
std::string bytes_of(const std::string& piece) {
  static const std::unordered_map<std::uint32_t, char> bytes = [] {
    std::unordered_map<std::uint32_t, char> found;
    const auto characters = characters_of_bytes();
    for (std::size_t byte = 0; byte < 256; ++byte) found[characters[byte]] = static_cast<char>(byte);
    return found;
  }();
  std::string result;
  for (std::size_t start = 0; start < piece.size();) {
    const Character character = character_at(piece, start);
    const auto byte = bytes.find(character.code);
    if (byte == bytes.end()) return piece;
    result += byte->second;
    start += character.length;
  }
  return result;
}

// Return the range of a piece without spaces at its ends. For a piece of spaces only, the range is (size, 0).
std::pair<std::size_t, std::size_t> without_blanks(std::string_view piece) {
  const std::size_t begin = std::min(piece.find_first_not_of(' '), piece.size());
  return {begin, begin == piece.size() ? 0 : piece.find_last_not_of(' ') + 1};
}

// Return the range of a text without white space at its ends, in the same way.
std::pair<std::size_t, std::size_t> without_space(std::string_view text) {
  const std::size_t begin = after_space(text, 0);
  return {begin, begin == text.size() ? 0 : before_space(text, text.size())};
}

// Return the end of a run of characters of one kind.
std::size_t run_end(std::string_view text, std::size_t start, Kind kind) {
  while (start < text.size()) {
    const Character character = character_at(text, start);
    if (kind_of(character.code) != kind) break;
    start += character.length;
  }
  return start;
}

// Return the end of the word that begins at `start`, according to GPT-2's regular expression: 's|'t|'re|'ve|'m|'ll|'d|
// ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t word_end(std::string_view text, std::size_t start) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.compare(start, ending.size(), ending) == 0) return start + ending.size();
  }
  const std::size_t first = text[start] == ' ' && start + 1 < text.size() ? start + 1 : start;
  const Kind kind = kind_of(character_at(text, first).code);
  if (kind != Kind::space) return run_end(text, first, kind);
  const std::size_t end = run_end(text, start, kind);
  if (end == text.size()) return end;
  const std::size_t last = character_before(text, end);  // the last space belongs to the word that follows
  return last > start ? last : end;
}

// Return whether a field is missing, null, false or an empty string.
bool is_unset(const Json& object, const char* name) {
  const auto field = object.find(name);
  return field == object.end() || field->is_null() || *field == false || *field == "";
}

std::string type_of(const Json& part) {
  return part.is_object() ? part.at("type").get<std::string>() : std::string("none");
}

[[noreturn]] void refuse(const std::string& what) {
  throw InputError("this bundle's tokenizer.json has " + what +
                   ", which only the Python runtime supports: give it ids "
                   "(translate_ids)");
}

// Throw InputError if ids are not decoded as those of a byte-level BPE.
void check_decoder(const Json& file) {
  // Files of the library's first releases do not name BPE.
  if (const std::string type = file.at("model").value("type", "BPE"); type != "BPE") {
    refuse("the model " + quote(type));
  }
  if (type_of(file.at("decoder")) != "ByteLevel") refuse("the decoder " + quote(type_of(file.at("decoder"))));
}

// Return the part of the file by which its encoding differs from a plain byte-level BPE; empty if there is none.
std::string other_encoding(const Json& file) {
  const Json& parts = file.at("pre_tokenizer");
  for (const char* name :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"}) {
    if (!is_unset(file.at("model"), name)) return "a BPE with " + std::string(name);
  }
  if (!is_unset(file, "normalizer")) return "the normalizer " + quote(type_of(file.at("normalizer")));
  if (type_of(parts) != "ByteLevel") return "the pre_tokenizer " + quote(type_of(parts));
  if (!parts.value("use_regex", true)) return "a pre_tokenizer without GPT-2's expression";
  return "";
}

class ByteLevel : public Side {
 public:
  ByteLevel(const Json& file, const std::string& file_name, std::int64_t vocabulary)
      : file_name_(file_name), vocabulary_(vocabulary), other_(other_encoding(file)) {
    const Json& model = file.at("model");
    std::unordered_map<std::string, std::uint32_t> ids;
    if (!model.at("vocab").is_object()) damaged("has no vocabulary of pieces and their ids");
    for (const auto& [piece, id] : model.at("vocab").items()) {
      ids[piece] = checked(id);
      pieces_[ids[piece]] = bytes_of(piece);
    }
    const auto characters = characters_of_bytes();
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto found = ids.find(utf8(characters[byte]));
      if (found != ids.end()) bytes_[byte] = found->second;
    }
    if (!is_unset(model, "unk_token")) unk_ = known(ids, model.at("unk_token").get<std::string>());
    fuses_unk_ = !is_unset(model, "fuse_unk");
    read_merges(model.at("merges"), ids);
    read_added(file.at("added_tokens"), ids);
    prefix_space_ = other_.empty() && file.at("pre_tokenizer").value("add_prefix_space", true);
    read_trimming(file.at("post_processor"));
  }

  Ids encode(std::string_view text) const override { return run(text, nullptr); }

  Ids locate(std::string_view text, std::vector<Span>& spans) const override {
    Ids ids = run(text, &spans);
    if (trims_) trim(text, ids, spans);
    return ids;
  }

  std::string decode(const Ids& ids) const override {
    std::string bytes;
    for (const std::int64_t id : ids) {
      const auto piece = pieces_.find(id);
      if (piece != pieces_.end() && special_.count(id) == 0) bytes += piece->second;
    }
    return replace_faults(bytes);
  }

 private:
  std::string file_name_;
  std::int64_t vocabulary_;
  std::string other_;                                     // what texts are not encoded because of; usually empty
  std::unordered_map<std::int64_t, std::string> pieces_;  // bytes of each id
  std::unordered_set<std::int64_t> added_;
  std::unordered_set<std::int64_t> special_;
  std::array<std::optional<std::uint32_t>, 256> bytes_;  // ids of single bytes
  std::optional<std::uint32_t> unk_;                     // id of other bytes; without it, they are dropped
  bool fuses_unk_ = false;
  Merges merges_;
  std::optional<TokenFinder> raw_;         // tokens to find first
  std::optional<TokenFinder> normalized_;  // tokens to find between raw tokens
  bool prefix_space_ = false;              // texts get a leading space if they have none
  bool trims_ = false;                     // remove spaces from the ends of spans
  bool keeps_first_ = false;               // except the first space of a text

  [[noreturn]] void damaged(const std::string& reason) const {
    throw BundleError(file_name_ + " " + reason + ": copy or export the bundle again");
  }

  std::uint32_t checked(const Json& id) const {
    const auto value = id.get<std::int64_t>();
    if (0 <= value && value < vocabulary_) return static_cast<std::uint32_t>(value);
    throw BundleError(file_name_ + " has the id " + std::to_string(value) + ", outside the vocabulary of " +
                      std::to_string(vocabulary_) + ": it belongs to another model, export the bundle again");
  }

  std::uint32_t known(const std::unordered_map<std::string, std::uint32_t>& ids, const std::string& piece) const {
    const auto found = ids.find(piece);
    if (found == ids.end()) damaged("lacks the piece " + quote(piece) + ", which a rule of it names");
    return found->second;
  }

  // Merges are pairs of pieces; files of older releases have them as a string with a space between the pieces.
  void read_merges(const Json& merges, const std::unordered_map<std::string, std::uint32_t>& ids) {
    for (const Json& merge : merges) {
      std::pair<std::string, std::string> pair;
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const auto space = text.find(' ');
        if (space == std::string::npos) damaged("has the merge " + quote(text) + ", which is not a pair");
        pair = {text.substr(0, space), text.substr(space + 1)};
      } else {
        pair = merge.get<std::pair<std::string, std::string>>();
      }
      merges_.add(known(ids, pair.first), known(ids, pair.second), known(ids, pair.first + pair.second));
    }
  }

  void read_added(const Json& tokens, const std::unordered_map<std::string, std::uint32_t>& ids) {
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    for (const Json& token : tokens) {
      const auto content = token.at("content").get<std::string>();
      const auto found_id = ids.find(content);
      const std::int64_t id = found_id == ids.end() ? checked(token.at("id")) : found_id->second;
      pieces_[id] = bytes_of(content);
      added_.insert(id);
      if (!is_unset(token, "special")) special_.insert(id);
      (is_unset(token, "normalized") ? raw : normalized)
          .push_back({content, id, !is_unset(token, "special"), !is_unset(token, "lstrip"), !is_unset(token, "rstrip"),
                      !is_unset(token, "single_word"), !is_unset(token, "normalized")});
    }
    raw_.emplace(std::move(raw));
    normalized_.emplace(std::move(normalized));
  }

  void read_trimming(const Json& processor) {
    const std::string type = type_of(processor);
    if (type != "RobertaProcessing" && type != "ByteLevel") return;
    trims_ = processor.value("trim_offsets", true);
    keeps_first_ = processor.value("add_prefix_space", true);
  }

  Ids run(std::string_view text, std::vector<Span>* spans) const {
    if (!other_.empty()) refuse(other_);
    Ids ids;
    const auto put = [&](std::int64_t id, const Span& span) {
      ids.push_back(id);
      if (spans != nullptr) spans->push_back(span);
    };
    raw_->split(text, [&](const Span& part, const AddedToken* token) {
      if (token != nullptr) return put(token->id, part);
      normalized_->split(text.substr(part.start, part.end - part.start),
                         [&](const Span& inner, const AddedToken* found) {
                           const Span span{part.start + inner.start, part.start + inner.end};
                           if (found != nullptr) return put(found->id, span);
                           words(text.substr(span.start, span.end - span.start), [&](std::int64_t id, const Span& at) {
                             put(id, {span.start + at.start, span.start + at.end});
                           });
                         });
    });
    return ids;
  }

  // Encode text between added tokens. Spans cover all characters of which an id has bytes. An added leading space
  // belongs to the first character.
  template <typename Put>
  void words(std::string_view text, const Put& put) const {
    const std::size_t before = prefix_space_ && text.front() != ' ' ? 1 : 0;
    const std::string padded = std::string(before, ' ') + std::string(text);
    const auto position = [&](std::size_t at) { return std::max(at, before) - before; };
    for (std::size_t start = 0; start < padded.size();) {
      const std::size_t end = word_end(padded, start);
      std::vector<Symbol> word = symbols(std::string_view(padded).substr(start, end - start));
      merges_.apply(word);
      for (const Symbol& symbol : word) {
        const std::size_t stop = start + symbol.length;
        put(symbol.id, Span{character_begin(text, position(start)),
                            character_end(text, std::max<std::size_t>(1, position(stop)))});
        start = stop;
      }
      start = end;
    }
  }

  std::vector<Symbol> symbols(std::string_view word) const {
    std::vector<Symbol> symbols;
    bool unknown = false;
    for (const char byte : word) {
      const auto id = bytes_[static_cast<unsigned char>(byte)];
      const bool fuses = !id && unknown && fuses_unk_;
      if (fuses) {
        ++symbols.back().length;
      } else if (id || unk_) {
        symbols.push_back({id ? *id : *unk_, 1});
      }
      unknown = !id && unk_.has_value();
    }
    return symbols;
  }

  // Remove spaces at the ends of pieces from their spans, as the library's post-processor does. The text of an added
  // token includes the white space around it.
  void trim(std::string_view text, const Ids& ids, std::vector<Span>& spans) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Span& span = spans[i];
      const bool added = added_.count(ids[i]) > 0;
      const std::string piece_text(added ? text.substr(span.start, span.end - span.start) : pieces_.at(ids[i]));
      const auto [begin, end] = added ? without_space(piece_text) : without_blanks(piece_text);
      std::size_t before = count_characters(std::string_view(piece_text).substr(0, begin));
      const std::size_t after = count_characters(std::string_view(piece_text).substr(end));
      if (keeps_first_ && before == 1 && (i == 0 || span.start == 0)) before = 0;  // the added leading space
      for (; before > 0 && span.start < span.end; --before) span.start += character_at(text, span.start).length;
      if (count_characters(text.substr(0, span.end)) < after) continue;
      for (std::size_t left = after; left > 0 && span.end > span.start; --left) {
        span.end = character_before(text, span.end);
      }
    }
  }
};

}  // namespace

std::unique_ptr<Side> read_byte_level(std::string_view data, const std::string& file, std::int64_t vocabulary) {
  const Json value = parse(data, file);
  try {
    check_decoder(value);
    return std::make_unique<ByteLevel>(value, file, vocabulary);
  } catch (const Json::exception& error) {
    throw BundleError(file + " is not a tokenizer.json (" + error.what() + "): copy or export the bundle again");
  }
}

}  // namespace txport::core
