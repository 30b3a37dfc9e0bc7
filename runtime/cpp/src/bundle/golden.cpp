#include "bundle/golden.hpp"

#include <cstdint>
#include <cstring>

#include "bundle/strict_json.hpp"

namespace txport::core {

namespace {

Ids decode_ids(const Value& value) {
  Ids ids;
  for (const Value& item : value.items()) ids.push_back(item.integer());
  return ids;
}

// Base64 (RFC 4648, section 4) of a number of bytes that is a multiple of four.
std::string decode_base64(const Value& value) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string text = value.text();
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char character : text.substr(0, text.find('='))) {
    const std::size_t digit = kDigits.find(character);
    if (digit == std::string_view::npos) value.refuse("base64");
    bits = bits << 6U | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> static_cast<unsigned>(count) & 0xFFU));
  }
  if (bytes.empty() || bytes.size() % sizeof(float) != 0) value.refuse("base64 of float32 numbers");
  return bytes;
}

// Each vector is little-endian float32 in base64.
std::shared_ptr<const FloatMatrix> decode_vectors(const Value& value) {
  auto result = std::make_shared<FloatMatrix>();
  for (const Value& row : value.items()) {
    const std::string bytes = decode_base64(row);
    const std::size_t size = bytes.size() / sizeof(float);
    if (result->rows > 0 && size != result->columns) row.refuse("as long as the others");
    result->columns = size;
    ++result->rows;
    for (std::size_t i = 0; i < size; ++i) {
      std::uint32_t bits = 0;
      for (std::size_t byte = sizeof(float); byte-- > 0;) {
        bits = bits << 8U | static_cast<unsigned char>(bytes[i * sizeof(float) + byte]);
      }
      std::memcpy(&result->values.emplace_back(), &bits, sizeof(float));
    }
  }
  return result->rows == 0 ? nullptr : result;
}

}  // namespace

std::vector<Case> parse_golden(std::string_view data, const std::string& file) {
  const Json json = parse(data, file);
  check_format_version(json, file);
  const Value value(json, file);
  value.fields({"format_version", "cases"});
  std::vector<Case> cases;
  for (const Value& item : value["cases"].items()) {
    item.fields({"source", "source_ids", "target_ids"}, {"vectors"});
    cases.push_back({item["source"].text(), decode_ids(item["source_ids"]), decode_ids(item["target_ids"]),
                     item.has("vectors") ? decode_vectors(item["vectors"]) : nullptr});
  }
  return cases;
}

}  // namespace txport::core
