#include "bundle/golden.hpp"

#include "bundle/strict_json.hpp"

namespace txport::core {

namespace {

Ids decode_ids(const Value& value) {
  Ids ids;
  for (const Value& item : value.items()) ids.push_back(item.integer());
  return ids;
}

}  // namespace

std::vector<Case> parse_golden(std::string_view data, const std::string& file) {
  const Json json = parse(data, file);
  check_format_version(json, file);
  const Value value(json, file);
  value.fields({"format_version", "cases"});
  std::vector<Case> cases;
  for (const Value& item : value["cases"].items()) {
    item.fields({"source", "source_ids", "target_ids"});
    cases.push_back({item["source"].text(), decode_ids(item["source_ids"]), decode_ids(item["target_ids"])});
  }
  return cases;
}

}  // namespace txport::core
