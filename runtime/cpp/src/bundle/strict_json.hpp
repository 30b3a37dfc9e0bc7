// JSON, strictly: every field must be present exactly once and of its declared type, and unknown fields are refused.
//
// The Python runtime applies the same rules; tests/data/manifests has files that both must accept or refuse.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace txport::core {

using Json = nlohmann::json;

// Parse a file's bytes, which must be one JSON object in UTF-8; `file` is its name in messages.
//
// Beyond the parser's own rules this refuses repeated keys, integers beyond 64 bits, a byte order mark and nesting
// that no file of ours has. Throws BundleError.
Json parse(std::string_view data, const std::string& file);

// Check that a file of ours other than the manifest is of the one format that we read. Throws BundleError.
void check_format_version(const Json& value, const std::string& file);

// A parsed value and its location ("manifest.json: graphs[0].name"), which messages start with. Each reader throws
// BundleError if the value is of another type.
class Value {
 public:
  Value(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  // Check that this is an object with exactly these fields, and any fields that were `added` after files had been
  // written.
  const Value& fields(std::initializer_list<const char*> names, std::initializer_list<const char*> added = {}) const;
  // Whether an object has the field.
  bool has(const char* name) const { return json_->contains(name); }
  // One field of an object that has it.
  Value operator[](const char* name) const;

  std::vector<Value> items() const;                            // of an array
  std::vector<Value> items(std::size_t count) const;           // of an array of exactly this size
  std::vector<std::pair<std::string, Value>> members() const;  // of an object with free keys

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
  // Throws BundleError: the value is not `expected`.
  [[noreturn]] void refuse(const char* expected) const;

 private:
  const Json* json_;
  std::string where_;
};

}  // namespace txport::core
