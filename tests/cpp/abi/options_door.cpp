// The options of the C++ API for tests/cpp/test_options.py: translates standard input, line by line, with options given
// as name=value, and writes for each line the ids and, after a bar, the scores.

#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>

#include "txport/txport.hpp"

namespace {

using Setter = void (*)(txport::Options&, const std::string&);

std::vector<std::int64_t> ids_of(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; words >> id;) ids.push_back(id);
  return ids;
}

const std::map<std::string, Setter> kSetters{
    {"max_length", [](auto& options, const auto& value) { options.max_length = std::stoi(value); }},
    {"full_length", [](auto& options, const auto& /*value*/) { options.full_length = true; }},
    {"min_length", [](auto& options, const auto& value) { options.min_length = std::stoi(value); }},
    {"prefix", [](auto& options, const auto& value) { options.prefix = value; }},
    {"prefix_ids", [](auto& options, const auto& value) { options.prefix = ids_of(value); }},
    {"scores", [](auto& options, const auto& /*value*/) { options.scores = true; }},
    {"strict", [](auto& options, const auto& /*value*/) { options.strict = true; }},
    {"alignments", [](auto& options, const auto& /*value*/) { options.alignments = true; }},
    {"attention", [](auto& options, const auto& /*value*/) { options.attention = true; }},
    {"source_language", [](auto& options, const auto& value) { options.source_language = value; }},
    {"target_language", [](auto& options, const auto& value) { options.target_language = value; }},
};

void translate(const std::string& bundle, const txport::Options& options) {
  const txport::Translator translator(bundle);
  std::vector<std::string> lines;
  for (std::string line; std::getline(std::cin, line);) lines.push_back(line);
  for (const txport::Translation& result : translator.translate(lines, options)) {
    for (const std::int64_t id : result.ids) std::cout << id << " ";
    std::cout << "|";
    for (const double score : result.scores) std::cout << " " << std::fixed << std::setprecision(6) << score;
    std::cout << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  txport::Options options;
  try {
    for (int i = 2; i < argc; ++i) {
      const std::string argument = argv[i];
      const auto equals = argument.find('=');
      kSetters.at(argument.substr(0, equals))(options, argument.substr(equals + 1));
    }
    translate(argv[1], options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
