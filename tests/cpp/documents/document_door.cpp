// Segments of documents for tests/cpp/documents/test_documents_cpp.py. Each line of standard input is JSON: a text, a
// language ("" for an unknown one), and how many characters a model takes. What is written for it is [segments, text,
// spans]: each segment as [start, end, text, breaks, cut], and the document in which each is written backwards.

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "documents/cuts.hpp"
#include "documents/layout.hpp"
#include "utf8.hpp"

using namespace txport::core;
using nlohmann::json;

namespace {

constexpr std::size_t kLooked = 1000;

json described(const Segment& segment) {
  json breaks = json::array();
  for (const Break& each : segment.breaks) breaks.push_back({each.position, utf8_of(each.layout)});
  return {segment.start, segment.end, utf8_of(segment.text), breaks, segment.cut};
}

json answer(const std::u32string& text, const std::string& language, std::size_t most) {
  std::vector<Segment> segments;
  for (const Segment& segment : split(text, abbreviations_of(language))) {
    if (segment.text.size() <= most) {
      segments.push_back(segment);
      continue;
    }
    const auto fitting = [most](std::u32string_view rest) { return std::min(most, rest.size()); };
    for (const Segment& part : cut(text, segment, fitting, kLooked)) segments.push_back(part);
  }
  json listed = json::array();
  std::vector<std::u32string> backwards;
  for (const Segment& segment : segments) {
    listed.push_back(described(segment));
    backwards.emplace_back(segment.text.rbegin(), segment.text.rend());
  }
  const auto joined = join(text, segments, backwards);
  json spans = json::array();
  for (const Span& span : joined.second) spans.push_back({span.start, span.end});
  return {listed, utf8_of(joined.first), spans};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const json asked = json::parse(line);
    std::cout << answer(characters_of(asked[0].get<std::string>()), asked[1], asked[2]) << "\n";
  }
  return 0;
}
