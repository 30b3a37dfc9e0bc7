#include "bundle/strict_json.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::size_t kMaxDepth = 64;

const char* name_of(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "true or false";
  return value.is_number_integer() ? "an integer" : "a number";
}

// Checks the events of the parser for faults that the parser accepts.
class Strict : public nlohmann::json_sax<Json> {
 public:
  std::string fault;

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) return true;
    return refuse(std::to_string(value) + " does not fit 64 bits");
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    // The parser converts integers that are too long to floating-point numbers.
    if (text.find_first_of(".eE") != std::string::npos) return true;
    return refuse(text.substr(0, 40) + " does not fit 64 bits");
  }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t /*size*/) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& value) override {
    if (keys_.back().insert(value).second) return true;
    return refuse("the field " + quote(value) + " occurs twice in one object");
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    // Remove the prefix "[json.exception...] parse error at line 1, column 2: ".
    const std::string message = error.what();
    const auto colon = message.find(": ");
    fault =
        (colon == std::string::npos ? message : message.substr(colon + 2)) + " (byte " + std::to_string(position) + ")";
    return false;
  }

 private:
  std::vector<std::set<std::string>> keys_;

  bool refuse(std::string reason) {
    fault = std::move(reason);
    return false;
  }
  bool enter() {
    keys_.emplace_back();
    return keys_.size() <= kMaxDepth || refuse("it is nested too deeply");
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }
};

}  // namespace

Json parse(std::string_view data, const std::string& file) {
  Strict strict;
  // The parser treats a NUL as the end of its input, and skips a byte order mark.
  if (data.find('\0') != std::string_view::npos) strict.fault = "it has a NUL byte";
  if (data.substr(0, 3) == "\xEF\xBB\xBF") strict.fault = "it begins with a byte order mark";
  if (!strict.fault.empty() || !Json::sax_parse(data.begin(), data.end(), &strict)) {
    throw BundleError(file + " is not valid JSON: " + strict.fault);
  }
  Json value = Json::parse(data.begin(), data.end());
  if (!value.is_object()) throw BundleError(file + " must hold a JSON object, not " + name_of(value));
  return value;
}

void check_format_version(const Json& value, const std::string& file) {
  const auto version = value.find("format_version");
  if (version != value.end() && version->is_number_integer() && *version == 1) return;
  const std::string actual = version == value.end() ? "no" : version->dump().substr(0, 40);
  throw BundleError(file + " has format_version " + actual +
                    ", but this txport reads 1: copy or export the bundle again");
}

void Value::refuse(const char* expected) const {
  throw BundleError(where_ + " must be " + expected + ", not " + name_of(*json_));
}

const Value& Value::fields(std::initializer_list<const char*> names, std::initializer_list<const char*> added) const {
  if (!json_->is_object()) refuse("an object");
  for (const char* name : names) {
    if (!json_->contains(name)) {
      throw BundleError(where_ + " lacks the field '" + name + "': the file is incomplete or was edited by hand");
    }
  }
  for (const auto& item : json_->items()) {
    const auto is_key = [&](const char* name) { return item.key() == name; };
    if (std::none_of(names.begin(), names.end(), is_key) && std::none_of(added.begin(), added.end(), is_key)) {
      throw BundleError(where_ + " has the unknown field " + quote(item.key()) +
                        ": this version of txport does not support it");
    }
  }
  return *this;
}

Value Value::operator[](const char* name) const {
  const bool top = where_.size() >= 5 && where_.compare(where_.size() - 5, 5, ".json") == 0;
  return {json_->at(name), where_ + (top ? ": " : ".") + name};
}

std::vector<Value> Value::items() const {
  if (!json_->is_array()) refuse("an array");
  std::vector<Value> result;
  result.reserve(json_->size());
  for (std::size_t i = 0; i < json_->size(); ++i) {
    result.emplace_back((*json_)[i], where_ + "[" + std::to_string(i) + "]");
  }
  return result;
}

std::vector<Value> Value::items(std::size_t count) const {
  std::vector<Value> result = items();
  if (result.size() != count) {
    throw BundleError(where_ + " must be an array of " + std::to_string(count) + ", not of " +
                      std::to_string(result.size()));
  }
  return result;
}

std::vector<std::pair<std::string, Value>> Value::members() const {
  if (!json_->is_object()) refuse("an object");
  std::vector<std::pair<std::string, Value>> result;
  result.reserve(json_->size());
  for (const auto& item : json_->items()) {
    result.emplace_back(item.key(), Value(item.value(), where_ + "[" + quote(item.key()) + "]"));
  }
  return result;
}

std::int64_t Value::integer() const {
  if (!json_->is_number_integer()) refuse("an integer");
  return json_->get<std::int64_t>();
}

double Value::number() const {
  if (!json_->is_number()) refuse("a number");
  return json_->get<double>();
}

bool Value::boolean() const {
  if (!json_->is_boolean()) refuse("true or false");
  return json_->get<bool>();
}

std::string Value::text() const {
  if (!json_->is_string()) refuse("a string");
  return json_->get<std::string>();
}

std::string Value::literal(std::initializer_list<const char*> allowed) const {
  const bool fits = json_->is_string() && std::any_of(allowed.begin(), allowed.end(), [&](const char* item) {
                      return json_->get_ref<const std::string&>() == item;
                    });
  if (fits) return json_->get<std::string>();
  std::string names;
  for (const char* item : allowed) names += (names.empty() ? "" : ", ") + std::string(item);
  const std::string actual = json_->is_string() ? quote(json_->get<std::string>()) : json_->dump().substr(0, 80);
  throw BundleError(where_ + " is " + actual + ", not one of " + names);
}

}  // namespace txport::core
