// Strict JSON: every field must be present exactly once and have its declared type, and unknown fields are refused.
//
// The Python runtime applies the same rules; tests/data/manifests contains files that both must accept or refuse.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace txport::core {

using Json = nlohmann::json;

// Parse the bytes of a file, which must be one JSON object in UTF-8. `file` is its name in messages.
//
// In addition to the rules of the parser, this refuses repeated keys, integers of more than 64 bits, a byte order mark
// and deep nesting. Throws BundleError.
Json parse(std::string_view data, const std::string& file);

// Check that a JSON file other than the manifest has the supported format version. Throws BundleError.
void check_format_version(const Json& value, const std::string& file);

// A parsed value and its location ("manifest.json: graphs[0].name"), with which messages start. Each reader throws
// BundleError if the value has another type.
class Value {
 public:
  Value(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  // Check that this is an object with exactly these fields. The fields in `added` are optional, because older files do
  // not have them.
  const Value& fields(std::initializer_list<const char*> names, std::initializer_list<const char*> added = {}) const;
  // Return whether an object has the field.
  bool has(const char* name) const { return json_->contains(name); }
  // Return a field, which must exist.
  Value operator[](const char* name) const;

  std::vector<Value> items() const;                            // elements of an array
  std::vector<Value> items(std::size_t count) const;           // elements of an array of exactly this size
  std::vector<std::pair<std::string, Value>> members() const;  // fields of an object with arbitrary names

  std::int64_t integer() const;
  double number() const;
  bool boolean() const;
  std::string text() const;
  std::string literal(std::initializer_list<const char*> allowed) const;

  bool is_boolean() const { return json_->is_boolean(); }
  bool is_null() const { return json_->is_null(); }
  bool is_integer() const { return json_->is_number_integer(); }
  bool is_text() const { return json_->is_string(); }
  const std::string& where() const { return where_; }
  // Throw BundleError: the value is not `expected`.
  [[noreturn]] void refuse(const char* expected) const;

 private:
  const Json* json_;
  std::string where_;
};

}  // namespace txport::core
