// The shared cases of tests/data/tokenizer, whose answers Hugging Face's MarianTokenizer gave.

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "errors.hpp"
#include "repository.hpp"
#include "text/affixes.hpp"
#include "text/sentencepiece_rules.hpp"
#include "text/tokenizer.hpp"

using namespace txport::core;
using nlohmann::json;

namespace {

const std::filesystem::path kCases = kTests / "data" / "tokenizer";

std::optional<std::string> optional_text(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
}

std::optional<TokenizerSide> side_of(const json& value) {
  return TokenizerSide{value["model"].get<std::string>(), optional_text(value["vocabulary"])};
}

std::vector<Affix> affixes_of_json(const json& value) {
  std::vector<Affix> items;
  for (const auto& item : value) {
    items.push_back(item.is_string() ? Affix(item.get<std::string>()) : Affix(item.get<std::int64_t>()));
  }
  return items;
}

// A manifest with one of the index's tokenizers.
Manifest manifest_of(const json& index, const std::string& name) {
  const json& value = index["tokenizers"][name];
  Manifest manifest;
  manifest.tokens.unk = index["unk"].get<std::int64_t>();
  manifest.model.source_vocabulary = manifest.model.target_vocabulary = index["vocabulary"].get<std::int64_t>();
  TokenizerDescription& tokenizer = manifest.tokenizer;
  tokenizer.kind = value["kind"].get<std::string>();
  tokenizer.source = side_of(value["source"]);
  tokenizer.target = side_of(value["target"]);
  tokenizer.source_prefix = affixes_of_json(value["source_prefix"]);
  tokenizer.source_suffix = affixes_of_json(value["source_suffix"]);
  tokenizer.target_prefix = affixes_of_json(value["target_prefix"]);
  if (const json& languages = value["languages"]; !languages.is_null()) {
    tokenizer.languages = Languages{languages["source"].get<std::map<std::string, std::int64_t>>(),
                                    languages["target"].get<std::map<std::string, std::int64_t>>(),
                                    optional_text(languages["source_default"]),
                                    optional_text(languages["target_default"]), languages["in_text"].get<bool>()};
  }
  return manifest;
}

}  // namespace

TEST_CASE("shared cases of tokenizers") {
  const json index = json::parse(contents(kCases / "index.json"));
  std::map<std::string, Manifest> manifests;
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  for (const auto& [name, value] : index["tokenizers"].items()) {
    manifests[name] = manifest_of(index, name);
    tokenizers[name] = open_tokenizer(kCases, manifests[name]);
  }
  REQUIRE(index["encode"].size() > 100);
  for (const json& item : index["encode"]) {
    CAPTURE(item.dump());
    const std::string name = item["tokenizer"].get<std::string>();
    const Manifest& manifest = manifests[name];
    const LanguageChoice choice{optional_text(item["source_language"]), optional_text(item["target_language"])};
    const std::string whole = item["text"].get<std::string>();
    std::string_view text = whole;
    if (item.contains("error")) {
      CHECK_THROWS_WITH_AS(affixes_of(text, manifest.tokenizer, choice, manifest.tokens.unk),
                           doctest::Contains(item["error"].get<std::string>().c_str()), InputError);
      continue;
    }
    const Affixes around = affixes_of(text, manifest.tokenizer, choice, manifest.tokens.unk);
    Ids ids = around.source_prefix;
    const Ids middle = tokenizers[name]->encode(text);
    ids.insert(ids.end(), middle.begin(), middle.end());
    ids.insert(ids.end(), around.source_suffix.begin(), around.source_suffix.end());
    CHECK(ids == item["ids"].get<Ids>());
    CHECK(around.target_prefix == item["target_prefix"].get<Ids>());
  }
  for (const json& item : index["prefix"]) {
    CAPTURE(item.dump());
    CHECK(tokenizers[item["tokenizer"]]->encode_prefix(item["text"].get<std::string>()) == item["ids"].get<Ids>());
  }
  for (const json& item : index["decode"]) {
    CAPTURE(item.dump());
    CHECK(tokenizers[item["tokenizer"]]->decode(item["ids"].get<Ids>()) == item["text"].get<std::string>());
  }
}

TEST_CASE("SentencePiece models that pass and that do not, in the words of Python") {
  const json shared = json::parse(contents(kTests / "data" / "hostile_pieces.json"));
  const auto bytes = [](const std::string& digits) {
    std::string result;
    for (std::size_t i = 0; i < digits.size(); i += 2) {
      result.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
    }
    return result;
  };
  for (const auto& [name, each] : shared["cases"].items()) {
    const std::string title = name;  // a lambda of C++17 captures no structured binding
    const std::string model = bytes(shared["model"]) + bytes(each["added"]);
    const std::string words = each["words"];
    std::string fault;
    try {
      check_sentencepiece(model);
    } catch (const BundleError& error) {
      fault = error.what();
    }
    CAPTURE(title);
    CAPTURE(fault);
    CHECK(fault.empty() == words.empty());
    CHECK(fault.find(words) != std::string::npos);
  }
}

TEST_CASE("tokenizers that cannot be") {
  const json index = json::parse(contents(kCases / "index.json"));
  const Scratch scratch;
  std::filesystem::copy(kCases, scratch.path(), std::filesystem::copy_options::recursive);
  Manifest manifest = manifest_of(index, "marian");
  const auto open = [&] { open_tokenizer(scratch.path(), manifest); };
  CHECK_NOTHROW(open());
  SUBCASE("more pieces than the model has ids") {
    manifest.model.target_vocabulary = 10;
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("more than the vocabulary of 10"), BundleError);
  }
  SUBCASE("a piece twice") {
    std::ofstream(scratch.path() / "vocabulary.json") << R"({"format_version": 1, "pieces": ["a", null, "a"]})";
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("'a' twice"), BundleError);
  }
  SUBCASE("a model that is none") {
    std::ofstream(scratch.path() / "source.model") << "no model";
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("is not a SentencePiece model"), BundleError);
  }
  SUBCASE("a model that is gone") {
    std::filesystem::remove(scratch.path() / "source.model");
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("is missing"), BundleError);
  }
  SUBCASE("a tokenizer.json that is none") {
    manifest.tokenizer.kind = "tokenizers";
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("is not valid JSON"), BundleError);
  }
}
