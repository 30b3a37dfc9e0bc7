#include "text/sentencepiece_rules.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "bundle/protobuf.hpp"
#include "errors.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

constexpr const char* kFault = "is not a SentencePiece model";
constexpr std::size_t kMaxPieceBytes = 1024;
// Maximum nesting of user-defined pieces that are prefixes of each other: the size of the library's buffer for matches.
constexpr std::size_t kMaxNested = 64;
// Limits of the normalisation table: rules that match at one position (also a buffer of the library), key length, and
// size.
constexpr std::uint32_t kMaxRules = 32;
constexpr std::size_t kMaxKeyBytes = 256;
constexpr std::size_t kMaxReplacementBytes = 256;  // bytes that a rule writes; 33 in the library's own tables
constexpr std::size_t kMaxTableBytes = std::size_t{4} << 20U;
constexpr std::size_t kMaxVisits = 4;  // average visits per unit of the table; paths may share suffixes
// Tags of sentencepiece_model.proto.
constexpr std::uint64_t kPiece = 1U << 3U | 2U;
constexpr std::uint64_t kTrainer = 2U << 3U | 2U;
constexpr std::uint64_t kUnknownSurface = 44U << 3U | 2U;
constexpr std::uint64_t kNormalizer = 3U << 3U | 2U;
constexpr std::uint64_t kDenormalizer = 5U << 3U | 2U;
constexpr std::uint64_t kText = 1U << 3U | 2U;
constexpr std::uint64_t kTable = 2U << 3U | 2U;
constexpr std::uint64_t kType = 3U << 3U;
constexpr std::uint64_t kUserDefined = 4;
constexpr std::uint64_t kLastType = 6;
constexpr std::uint64_t kAlgorithm = 3U << 3U;
constexpr std::uint64_t kLastAlgorithm = 4;
constexpr std::uint64_t kFirstName = 44;
constexpr std::uint64_t kLastName = 48;

[[noreturn]] void refuse(const std::string& reason) { throw BundleError("has " + reason); }
[[noreturn]] void refuse_outside() { refuse("a normalisation table that leads out of itself"); }

// A double-array trie (Aoe 1989, as in Darts-clone): the child of a node for byte c is unit node ^ c, if that unit has
// the label c.
class Table {
 public:
  // `text` contains the replacement texts, each with NUL at its end.
  Table(std::vector<std::uint32_t> units, std::string_view text) : units_(std::move(units)), text_(text) {}

  // Follow all paths, byte by byte. For each node, track the maximum number of rules that match on a path to it.
  void check() const {
    std::map<std::size_t, std::uint32_t> nodes{{offset(units_[0]), 0}};
    std::size_t visits = 0;
    for (std::size_t bytes = 0; bytes < kMaxKeyBytes; ++bytes) {
      std::map<std::size_t, std::uint32_t> next;
      for (const auto& [node, rules] : nodes) visits += follow(node, rules, next);
      if (next.empty()) return;
      if (visits > kMaxVisits * units_.size()) break;
      nodes = std::move(next);
    }
    refuse("a normalisation table whose rules have no end");
  }

 private:
  std::vector<std::uint32_t> units_;
  std::string_view text_;

  static std::size_t offset(std::uint32_t unit) {
    return static_cast<std::size_t>(unit >> 10U) << ((unit & 0x200U) >> 6U);
  }

  // Check the text that a rule writes. The library crashes if it begins inside a character.
  void check_replacement(std::size_t leaf) const {
    if (leaf >= units_.size() || (units_[leaf] & 0x7FFFFFFFU) >= text_.size()) refuse_outside();
    const std::size_t start = units_[leaf] & 0x7FFFFFFFU;
    if ((static_cast<unsigned char>(text_[start]) & 0xC0U) == 0x80U) {
      refuse("a normalisation table that writes no UTF-8");
    }
    if (text_.substr(start, kMaxReplacementBytes + 1).find('\0') == std::string_view::npos) {
      refuse("a normalisation table with a rule that writes more than " + std::to_string(kMaxReplacementBytes) +
             " bytes");
    }
  }

  // Add the children of a node to `next`, and return their number.
  std::size_t follow(std::size_t node, std::uint32_t rules, std::map<std::size_t, std::uint32_t>& next) const {
    if ((node | 255U) >= units_.size()) refuse_outside();
    std::size_t count = 0;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::size_t position = node ^ byte;
      const std::uint32_t unit = units_[position];
      if ((unit & 0x800000FFU) != byte) continue;
      ++count;
      const std::size_t child = position ^ offset(unit);
      const std::uint32_t matches = rules + (unit >> 8U & 1U);
      if (matches != rules) check_replacement(child);
      if (matches > kMaxRules) {
        refuse("a normalisation table with more than " + std::to_string(kMaxRules) + " rules for one place");
      }
      std::uint32_t& max_matches = next[child];
      max_matches = std::max(max_matches, matches);
    }
    return count;
  }
};

void check_table(std::string_view table) {
  if (table.empty()) return;
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(table.size(), 4); ++i) {
    size |= static_cast<std::uint32_t>(static_cast<unsigned char>(table[i])) << 8U * i;
  }
  if (table.size() > kMaxTableBytes || table.size() < 4 || size == 0 || size > table.size() - 4 || size % 4 != 0) {
    refuse("a normalisation table of a wrong size");
  }
  std::vector<std::uint32_t> units(size / 4);
  for (std::size_t i = 0; i < size; ++i) {
    units[i / 4] |= static_cast<std::uint32_t>(static_cast<unsigned char>(table[4 + i])) << 8U * (i % 4);
  }
  const std::string_view text = table.substr(4 + size);
  if (utf8_fault(text)) refuse("a normalisation table that writes no UTF-8");
  Table(std::move(units), !text.empty() && text.back() == '\0' ? text : std::string_view{}).check();
}

void check_utf8(std::string_view text) {
  if (utf8_fault(text)) refuse("a piece that is not UTF-8");
}

void check_piece(std::string_view message, std::vector<std::string_view>& defined) {
  std::vector<std::string_view> texts;
  bool is_defined = false;
  for (Fields fields(message, kFault); const auto field = fields.next();) {
    if (field->tag == kText) texts.push_back(field->bytes);
    if (field->tag != kType) continue;
    // protobuf would ignore other values, or cut them to 32 bits.
    if (field->value < 1 || field->value > kLastType) refuse("a piece of an unknown type");
    is_defined = is_defined || field->value == kUserDefined;
  }
  for (const std::string_view text : texts) {
    if (text.size() > kMaxPieceBytes || text.find('\0') != std::string_view::npos) {
      refuse("a piece of more than " + std::to_string(kMaxPieceBytes) + " bytes, or with the character NUL");
    }
    check_utf8(text);
  }
  if (is_defined) defined.insert(defined.end(), texts.begin(), texts.end());
}

void check_trainer(std::string_view message) {
  for (Fields fields(message, kFault); const auto field = fields.next();) {
    const bool is_known = 1 <= field->value && field->value <= kLastAlgorithm;
    if (field->tag == kAlgorithm && !is_known) refuse("an unknown algorithm");
    // What is written for unknown characters, and special pieces.
    const bool is_name = kFirstName <= field->number && field->number <= kLastName;
    if (is_name && field->tag == (field->number << 3U | 2U)) check_utf8(field->bytes);
    if (field->tag == kUnknownSurface && field->bytes.size() > kMaxPieceBytes) {
      refuse("a text for unknown tokens of more than " + std::to_string(kMaxPieceBytes) + " bytes");
    }
  }
}

void check_nesting(std::vector<std::string_view> defined) {
  std::sort(defined.begin(), defined.end());
  defined.erase(std::unique(defined.begin(), defined.end()), defined.end());
  std::vector<std::string_view> nested;
  for (const std::string_view text : defined) {
    while (!nested.empty() && text.substr(0, nested.back().size()) != nested.back()) nested.pop_back();
    nested.push_back(text);
    if (nested.size() > kMaxNested) {
      refuse("more than " + std::to_string(kMaxNested) + " user-defined pieces that begin with each other");
    }
  }
}

}  // namespace

void check_sentencepiece(std::string_view model) {
  std::vector<std::string_view> defined;
  for (Fields fields(model, kFault); const auto field = fields.next();) {
    if (field->tag == kPiece) check_piece(field->bytes, defined);
    if (field->tag == kTrainer) check_trainer(field->bytes);
    if (field->tag != kNormalizer && field->tag != kDenormalizer) continue;
    for (Fields inner(field->bytes, kFault); const auto each = inner.next();) {
      if (each->tag == kTable) check_table(each->bytes);
    }
  }
  check_nesting(std::move(defined));
}

}  // namespace txport::core
