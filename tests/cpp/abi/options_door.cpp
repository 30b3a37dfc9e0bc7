// The options of the C++ API for tests/cpp/test_options.py: translates standard input, line by line, with options given
// as name=value, or submits the lines if its last argument says so, and writes for each line the hypotheses, each with
// a semicolon behind it: ids and, after a bar, scores.

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
    {"generation", [](auto& options, const auto& value) { options.generation = value; }},
    {"beam", [](auto& options, const auto& value) { options.beam = std::stoi(value); }},
    {"n_best", [](auto& options, const auto& value) { options.n_best = std::stoi(value); }},
    {"length_penalty", [](auto& options, const auto& value) { options.length_penalty = std::stod(value); }},
    {"early_stopping", [](auto& options, const auto& value) { options.early_stopping = value; }},
    {"patience", [](auto& options, const auto& value) { options.patience = std::stod(value); }},
    {"repetition_penalty", [](auto& options, const auto& value) { options.repetition_penalty = std::stod(value); }},
    {"no_repeat_ngram", [](auto& options, const auto& value) { options.no_repeat_ngram = std::stoi(value); }},
    {"bad_words", [](auto& options, const auto& value) { options.bad_words.emplace_back(value); }},
    {"bad_words_ids", [](auto& options, const auto& value) { options.bad_words.emplace_back(ids_of(value)); }},
    {"suppress_ids", [](auto& options, const auto& value) { options.suppress = ids_of(value); }},
    {"begin_suppress_ids", [](auto& options, const auto& value) { options.begin_suppress = ids_of(value); }},
    {"end_ids_ids", [](auto& options, const auto& value) { options.end_ids = ids_of(value); }},
    {"forced_end", [](auto& options, const auto& value) { options.forced_end = std::stoll(value); }},
    {"renormalize", [](auto& options, const auto& /*value*/) { options.renormalize = true; }},
    {"sample", [](auto& options, const auto& /*value*/) { options.sample = true; }},
    {"temperature", [](auto& options, const auto& value) { options.temperature = std::stod(value); }},
    {"top_k", [](auto& options, const auto& value) { options.top_k = std::stoll(value); }},
    {"top_p", [](auto& options, const auto& value) { options.top_p = std::stod(value); }},
    {"min_p", [](auto& options, const auto& value) { options.min_p = std::stod(value); }},
    {"seed", [](auto& options, const auto& value) { options.seed = std::stoll(value); }},
    {"alternatives", [](auto& options, const auto& value) { options.alternatives = std::stoi(value); }},
    {"replace_unknowns", [](auto& options, const auto& /*value*/) { options.replace_unknowns = true; }},
    {"shortlist", [](auto& options, const auto& /*value*/) { options.shortlist = true; }},
};

void write(const txport::Translation& result) {
  for (const std::int64_t id : result.ids) std::cout << id << " ";
  std::cout << "|";
  for (const double score : result.scores) std::cout << " " << std::fixed << std::setprecision(6) << score;
  std::cout << ";";
}

std::vector<txport::Translation> submitted(const txport::Translator& translator, const std::vector<std::string>& lines,
                                           const txport::Options& options) {
  std::vector<txport::Pending> pending;
  for (const std::string& line : lines) pending.push_back(translator.submit(line, options));
  std::vector<txport::Translation> results;
  for (txport::Pending& each : pending) results.push_back(each.get());
  return results;
}

void translate(const std::string& bundle, const txport::Options& options, bool submits) {
  const txport::Translator translator(bundle);
  std::vector<std::string> lines;
  for (std::string line; std::getline(std::cin, line);) lines.push_back(line);
  const auto results = submits ? submitted(translator, lines, options) : translator.translate(lines, options);
  for (const txport::Translation& result : results) {
    if (result.hypotheses.empty()) write(result);
    for (const txport::Translation& each : result.hypotheses) write(each);
    std::cout << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  txport::Options options;
  const bool submits = std::string(argv[argc - 1]) == "submitted";
  try {
    for (int i = 2; i < argc - (submits ? 1 : 0); ++i) {
      const std::string argument = argv[i];
      const auto equals = argument.find('=');
      kSetters.at(argument.substr(0, equals))(options, argument.substr(equals + 1));
    }
    translate(argv[1], options, submits);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
