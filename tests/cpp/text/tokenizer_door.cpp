// The tokenizers for tests/cpp/text/test_tokenizers_cpp.py: KIND FILE VOCABULARY as arguments, where FILE is "" for
// bytes; or DESCRIPTION DIRECTORY VOCABULARY UNK, where DESCRIPTION is a file with the field `tokenizer` of a manifest,
// whose files are in DIRECTORY. Each line of standard input is JSON, a text or a list of ids; what is written for it is
// [ids, spans] or a text.

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "text/tokenizer.hpp"

using namespace txport::core;
using nlohmann::json;

namespace {

json located(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<Span> spans;
  const Ids ids = tokenizer.locate(text, spans);
  if (ids != tokenizer.encode(text)) throw std::logic_error("encode and locate differ");
  json places = json::array();
  for (const Span& span : spans) places.push_back({span.start, span.end});
  return {ids, places};
}

std::optional<TokenizerSide> side_of(const json& value) {
  if (value.is_null()) return std::nullopt;
  return TokenizerSide{value["model"].get<std::string>(), value["vocabulary"].get<std::string>()};
}

AddedTokens added_of(const json& value) {
  AddedTokens added;
  for (const json& token : value["tokens"]) {
    const auto flag = [&](const char* name) { return token.value(name, false); };
    added.tokens.push_back({token["content"].get<std::string>(), token["id"].get<std::int64_t>(), flag("special"),
                            flag("lstrip"), flag("rstrip"), flag("single_word"), flag("normalized")});
  }
  added.rules = value["rules"].get<std::string>();
  added.spaces = value.value("spaces", added.spaces);
  added.prefix = value.value("prefix", added.prefix);
  return added;
}

Manifest manifest_of(int argc, char** argv) {
  Manifest manifest;
  manifest.model.source_vocabulary = manifest.model.target_vocabulary = std::stoll(argv[3]);
  if (argc == 4) {
    manifest.tokenizer.kind = argv[1];
    manifest.tokenizer.source = manifest.tokenizer.target = TokenizerSide{argv[2], std::nullopt};
    return manifest;
  }
  std::ifstream file(argv[1]);
  const json value = json::parse(file);
  manifest.tokens.unk = std::stoll(argv[4]);
  manifest.tokenizer.kind = value["kind"].get<std::string>();
  manifest.tokenizer.source = side_of(value["source"]);
  manifest.tokenizer.target = side_of(value["target"]);
  if (value.contains("added")) manifest.tokenizer.added = added_of(value["added"]);
  return manifest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  try {
    const Manifest manifest = manifest_of(argc, argv);
    const auto tokenizer = open_tokenizer(argc == 4 ? "" : argv[2], manifest);
    for (std::string line; std::getline(std::cin, line);) {
      const json value = json::parse(line);
      std::cout << (value.is_string() ? located(*tokenizer, value) : json(tokenizer->decode(value))) << "\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
