// Segmentation by unigram models against recorded results of two versions of SentencePiece
// (tests/foreign/tied_models.py).

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "repository.hpp"
#include "text/unigram.hpp"
#include "utf8.hpp"

using namespace txport::core;
using nlohmann::json;

namespace {

std::string bytes_of(const std::string& digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

// Spans of bytes as spans of characters.
json in_characters(const std::string& text, const std::vector<Span>& spans) {
  json result = json::array();
  const auto at = [&](std::size_t end) { return count_characters(std::string_view(text).substr(0, end)); };
  for (const Span& span : spans) result.push_back({at(span.start), at(span.end)});
  return result;
}

}  // namespace

TEST_CASE("unigram: ids and spans are those of the library with this arithmetic") {
  std::ifstream file(kTests / "data" / "tokenizer" / "score_sums.json");
  const json recorded = json::parse(file);
  std::size_t differing = 0;
  for (const json& item : recorded["cases"]) {
    for (const std::string sums : {"float64", "float32"}) {
      const Unigram unigram(bytes_of(item["model"].get<std::string>()), sums == "float32");
      for (std::size_t i = 0; i < item["texts"].size(); ++i) {
        const auto text = item["texts"][i].get<std::string>();
        const Pieces pieces = unigram.segment(text);
        CAPTURE(text);
        CHECK(json(pieces.ids) == item[sums][i]["ids"]);
        CHECK(in_characters(text, pieces.spans) == item[sums][i]["spans"]);
        CHECK(pieces.texts.size() == pieces.ids.size());
        differing += item["float64"][i]["ids"] != item["float32"][i]["ids"];
      }
    }
  }
  CHECK(differing > 60);
}
