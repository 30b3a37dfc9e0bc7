// Any bytes are a tokenizer.json, or are refused; and any text has ids whose text it is, with places inside it. The
// first byte says which of both the others are.

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "errors.hpp"
#include "text/byte_level.hpp"
#include "utf8.hpp"

using namespace txport::core;

namespace {

constexpr std::int64_t kVocabulary = 400;

// All bytes, some merges of them and a token.
std::unique_ptr<Side> tokenizer(bool prefix_space) {
  nlohmann::json vocabulary = nlohmann::json::object();
  std::int64_t next = 0;
  const auto add = [&](const std::string& piece) { vocabulary[piece] = next++; };
  for (unsigned code = 0x21; code < 0x144; ++code) {
    if ((code > 0x7E && code < 0xA1) || code == 0xAD) continue;
    std::string piece(1, static_cast<char>(code));
    if (code >= 0x80) piece = {static_cast<char>(0xC0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3FU))};
    add(piece);
  }
  nlohmann::json merges = nlohmann::json::array();
  for (const auto& [left, right] : {std::pair("a", "a"), {"aa", "a"}, {"\u0120", "a"}, {"\u00c3", "\u00a9"}}) {
    merges.push_back({left, right});
    add(std::string(left) + right);
  }
  const nlohmann::json bytes{{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}};
  const nlohmann::json token{{"id", next}, {"content", "<s>"}, {"special", false}};
  const nlohmann::json file{{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}},
                            {"added_tokens", {token}},
                            {"pre_tokenizer", bytes},
                            {"post_processor", bytes},
                            {"decoder", bytes}};
  return read_byte_level(file.dump(), "tokenizer.json", kVocabulary);
}

void check(const Side& side, const std::string& text, bool whole) {
  std::vector<Span> spans;
  const Ids ids = side.locate(text, spans);
  if (ids != side.encode(text) || ids.size() != spans.size()) std::abort();
  for (const Span& span : spans) {
    if (span.start > span.end || span.end > text.size()) std::abort();
  }
  if (const std::string back = side.decode(ids); whole && back != text) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  static const auto plain = tokenizer(false);
  static const auto with_space = tokenizer(true);
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  if (bytes[0] % 2 == 0) {
    const std::string text = replace_faults(rest);
    check(*plain, text, true);
    check(*with_space, text, false);
    return 0;
  }
  try {
    check(*read_byte_level(rest, "tokenizer.json", kVocabulary), "a <s> b\xC3\xA9  1", false);
  } catch (const BundleError&) {
  } catch (const InputError&) {
  }
  return 0;
}
