// Alignments by hand, the cases of tests/runtime/text/test_alignment.py; and where SentencePiece found its pieces.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "bundle/manifest.hpp"
#include "errors.hpp"
#include "repository.hpp"
#include "text/alignment.hpp"
#include "text/pieces.hpp"
#include "text/tokenizer.hpp"
#include "utf8.hpp"

using namespace txport::core;
using nlohmann::json;

namespace {

const json& cases() {
  static const json all = json::parse(contents(kTests / "data" / "alignments.json"));
  return all;
}

// Spans in characters, as the file has them, of those of a text in bytes.
json in_characters(const std::vector<Span>& spans, const std::string& text) {
  json listed = json::array();
  for (const Span& span : spans) {
    listed.push_back({count_characters(text.substr(0, span.start)), count_characters(text.substr(0, span.end))});
  }
  return listed;
}

std::size_t byte_of(const std::string& text, std::size_t character) {
  std::size_t byte = 0;
  while (count_characters(text.substr(0, byte)) < character) ++byte;
  while (byte < text.size() && (static_cast<unsigned char>(text[byte]) & 0xC0U) == 0x80U) ++byte;
  return byte;
}

std::vector<Span> stripped_spans(const json& spans, const std::string& text) {
  std::vector<Span> made;
  for (const json& span : spans) made.push_back(stripped({byte_of(text, span[0]), byte_of(text, span[1])}, text));
  return made;
}

Ids tokens_of(const json& tokens) {
  Ids made;
  for (const json& token : tokens) made.push_back(token.is_null() ? kNotAligned : token.get<std::int64_t>());
  return made;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7U) bytes += static_cast<char>(value | 0x80U);
  return bytes + static_cast<char>(value);
}

}  // namespace

TEST_CASE("words of the shared cases") {
  for (const json& item : cases()["words"]) {
    const std::string name = item["name"];
    CAPTURE(name);
    const std::string source = item["source"];
    const std::string target = item["target"];
    Alignment alignment;
    alignment.tokens = tokens_of(item["tokens"]);
    alignment.source_spans = stripped_spans(item["source_spans"], source);
    alignment.target_spans = stripped_spans(item["target_spans"], target);
    alignment.source_words = words_of(source);
    alignment.target_words = words_of(target);
    align_words(alignment);
    CHECK(in_characters(alignment.source_spans, source) == item["stripped_source"]);
    CHECK(in_characters(alignment.target_spans, target) == item["stripped_target"]);
    CHECK(in_characters(alignment.source_words, source) == item["source_words"]);
    CHECK(in_characters(alignment.target_words, target) == item["target_words"]);
    CHECK(alignment.pharaoh == item["pharaoh"]);
  }
}

TEST_CASE("tokens of the shared cases") {
  for (const json& item : cases()["tokens"]) {
    const auto rows = item["attention"].get<std::vector<std::vector<float>>>();
    FloatMatrix attention{rows.size(), rows[0].size(), {}};
    for (const auto& row : rows) attention.values.insert(attention.values.end(), row.begin(), row.end());
    std::vector<bool> aligned(rows.size());
    for (const std::size_t row : item["aligned"]) aligned[row] = true;
    CHECK(align_tokens(attention, item["candidates"].get<std::vector<std::size_t>>(), aligned) ==
          tokens_of(item["expected"]));
  }
}

TEST_CASE("averages of the shared cases") {
  for (const json& item : cases()["averages"]) {
    const json& nested = item["cross"];
    CrossAttention cross{nested.size(), nested[0].size(), nested[0][0].size(), nested[0][0][0].size(), {}};
    for (const json& value : nested.flatten()) cross.values.push_back(value);
    const auto found = averaged(cross, item["heads"].get<std::vector<std::pair<std::int64_t, std::int64_t>>>());
    std::vector<float> expected;
    for (const json& value : item["expected"].flatten()) expected.push_back(value);
    CHECK(found.rows == cross.targets);
    CHECK(found.columns == cross.sources);
    CHECK(found.values == expected);
  }
}

TEST_CASE("spans are of each piece, in bytes") {
  const auto tokenizer = open_tokenizer(kToyBundle, Manifest::load(kToyBundle));
  for (const std::string text :
       {"the cat sees a bird", "caf\u00e9 \u6f22\u5b57 \U0001F642", "  two  spaces ", "", "\uff53\uff45ven"}) {
    CAPTURE(text);
    std::vector<Span> spans;
    CHECK(tokenizer->locate(text, spans) == tokenizer->encode(text));
    CHECK(spans.size() == tokenizer->encode(text).size());
    std::size_t last = 0;
    for (const Span& span : spans) {
      CHECK(last <= span.start);
      CHECK(span.start <= span.end);
      CHECK(span.end <= text.size());
      CHECK(!utf8_fault(text.substr(span.start, span.end - span.start)));
      last = span.end;
    }
  }
  const Ids ids = tokenizer->encode_prefix("the cat sees a bird");
  std::string joined;
  const std::string text = tokenizer->decode(ids);
  const std::vector<Span> spans = target_spans(*tokenizer, ids);
  for (const Span& span : spans) joined += text.substr(span.start, span.end - span.start);
  CHECK(spans.size() == ids.size());
  CHECK(joined == text);
}

TEST_CASE("the message of SentencePiece's pieces") {
  // {1: "ab", 2: {1: "a", 2: 7, 4: 0, 5: 300}, 3: float, 9: double, 2: {5: 301, 4: 300}}
  const std::string one =
      "\x0A\x01"
      "a"
      "\x10\x07\x20" +
      varint(0) + "\x28" + varint(300);
  const std::string two = "\x28" + varint(301) + "\x20" + varint(300);
  const std::string message = std::string("\x0A\x02") + "ab" + "\x12" + varint(one.size()) + one + "\x1D" + "1234" +
                              "\x49" + "12345678" + "\x12" + varint(two.size()) + two;
  const Pieces pieces = read_pieces(message);
  const std::vector<Span>& spans = pieces.spans;
  REQUIRE(spans.size() == 2);
  CHECK(pieces.texts == std::vector<std::string>{"a", ""});
  CHECK(pieces.ids == Ids{7, 0});
  CHECK(spans[0].start == 0);
  CHECK(spans[0].end == 300);
  CHECK(spans[1].start == 300);
  CHECK(spans[1].end == 301);
  for (std::size_t size = 0; size < message.size(); ++size) {
    const std::string fault = fault_of<BundleError>([&] { read_pieces(message.substr(0, size)); });
    const bool known = fault == "accepted" || fault == "SentencePiece failed: its pieces cannot be read";
    CHECK(known);
  }
  CHECK(fault_of<BundleError>([] { read_pieces("\x13"); }) != "accepted");
  CHECK(fault_of<BundleError>([] { read_pieces(std::string(11, '\xFF')); }) != "accepted");
}
