// The tokenizers for tests/cpp/text/test_tokenizers_cpp.py: KIND FILE VOCABULARY as arguments, where FILE is "" for
// bytes. Each line of standard input is JSON, a text or a list of ids; what is written for it is [ids, spans] or a
// text.

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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  Manifest manifest;
  manifest.model.source_vocabulary = manifest.model.target_vocabulary = std::stoll(argv[3]);
  manifest.tokenizer.kind = argv[1];
  manifest.tokenizer.source = manifest.tokenizer.target = TokenizerSide{argv[2], std::nullopt};
  try {
    const auto tokenizer = open_tokenizer("", manifest);
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
