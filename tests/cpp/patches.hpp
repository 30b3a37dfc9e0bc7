// Files as patches of one base: the manifests and the records of builds that every runtime must accept or refuse. What
// a patch may hold is said in tests/data/patches.py, which reads the same files by the same rules.
#pragma once

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bundle/hash.hpp"
#include "repository.hpp"

class Patches {
 public:
  using Json = nlohmann::ordered_json;  // the order of a file is that of the base

  explicit Patches(const std::filesystem::path& file) {
    const Json read = Json::parse(contents(file));
    base_ = Json::parse(contents(file.parent_path() / read["base"].get<std::string>()));
    for (const Json& patch : read["good"]) good.push_back(add(patch));
    for (const Json& patch : read["bad"]) bad.push_back(add(patch));
  }

  std::vector<std::string> good, bad;

  // Whether this is the message that a bad one must give, for a file of this name.
  bool says(const std::string& name, const std::string& file, const std::string& message) const {
    const std::string expected = file + patches_.at(name)["says"].get<std::string>();
    const auto begin = expected.size() < 3 ? std::string::npos : expected.size() - 3;
    if (expected.compare(begin, 3, "...") != 0) return message == expected;
    return message.compare(0, begin, expected, 0, begin) == 0;
  }

  // The file that a patch describes.
  std::string data(const std::string& name) const {
    const Json& patch = patches_.at(name);
    if (patch.contains("file")) return repeated(patch["file"]);
    Json patched = value(patch);
    const bool with_hash = patched.contains("sha256") && !of(patch, "put").contains("/sha256");
    if (with_hash) patched["sha256"] = kZeros;
    std::string text = dumped(patched, patch.value("style", "lines"));
    for (const Json& pair : of(patch, "text")) replace(text, pair[0], pair[1]);
    if (with_hash) text.replace(text.rfind(kZeros), kZeros.size(), txport::core::sha256(text));
    for (const Json& pair : of(patch, "bytes")) replace(text, latin_1(pair[0]), latin_1(pair[1]));
    return text.substr(0, patch.value("length", text.size()));
  }

  // What a patch makes of the base, or of the good patch that it names: one of a file, or one that a test makes up.
  Json value(const Json& patch) const {
    const std::string parent = patch.value("of", good.front());
    Json patched = patch.value("name", "") == parent ? base_ : value(patches_.at(parent));
    for (const auto& [path, source] : of(patch, "copy").items()) {
      const Json copied = patched.at(pointer(patched, source));
      patched[pointer(patched, path)] = copied;
    }
    for (const auto& [path, now] : of(patch, "put").items()) patched[pointer(patched, path)] = now;
    for (const Json& path : of(patch, "remove")) remove(patched, path);
    for (const Json& path : of(patch, "reverse")) reverse(patched[pointer(patched, path)]);
    return patched;
  }

 private:
  using Pointer = Json::json_pointer;

  std::string add(const Json& patch) {
    const std::string name = patch["name"];
    if (!patches_.emplace(name, patch).second) throw std::invalid_argument(name + " stands there twice");
    return name;
  }

  // A part of a patch; null, which has no items, where the patch has no such part.
  static const Json& of(const Json& patch, const char* part) {
    static const Json nothing;
    return patch.contains(part) ? patch[part] : nothing;
  }

  // A pointer in which names of an array's objects have become indices.
  static Pointer pointer(const Json& value, const std::string& path) {
    std::vector<std::string> steps;
    for (Pointer rest(path); !rest.empty(); rest.pop_back()) steps.push_back(rest.back());
    Pointer found;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      const Json& inner = value.at(found);
      if (inner.is_array() && step->find_first_not_of("0123456789-") != std::string::npos) {
        const auto item = std::find_if(inner.begin(), inner.end(), [&](const Json& e) { return e["name"] == *step; });
        if (item == inner.end()) throw std::invalid_argument("nothing is at " + path);
        *step = std::to_string(item - inner.begin());
      }
      found.push_back(*step);
    }
    return found;
  }

  static void remove(Json& value, const std::string& path) {
    const Pointer place = pointer(value, path);
    Json& holder = value[place.parent_pointer()];
    if (holder.is_array()) {
      holder.erase(std::stoul(place.back()));
    } else if (holder.erase(place.back()) == 0) {
      throw std::invalid_argument("nothing is at " + path);
    }
  }

  static void reverse(Json& value) {
    if (value.is_array()) {
      std::reverse(value.begin(), value.end());
      return;
    }
    std::vector<std::pair<std::string, Json>> items;
    for (const auto& item : value.items()) items.emplace_back(item.key(), item.value());
    value = Json::object();
    for (auto item = items.rbegin(); item != items.rend(); ++item) value[item->first] = item->second;
  }

  static std::string dumped(const Json& value, const std::string& style) {
    return value.dump(style == "one_line" ? -1 : 1, ' ', style == "escaped") + "\n";
  }

  static void replace(std::string& text, const std::string& old, const std::string& now) {
    auto at = text.find(old);
    if (at == std::string::npos) throw std::invalid_argument("the text has no " + old);
    for (; at != std::string::npos; at = text.find(old, at + now.size())) text.replace(at, old.size(), now);
  }

  static std::string repeated(const Json& pieces) {
    std::string whole;
    for (const Json& piece : pieces) {
      for (int i = 0; i < piece[1].get<int>(); ++i) whole += latin_1(piece[0]);
    }
    return whole;
  }

  // One byte for each character, all of which are below U+0100.
  static std::string latin_1(const std::string& text) {
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto lead = static_cast<unsigned char>(text[i]);
      bytes += lead < 0x80 ? text[i] : static_cast<char>((lead & 3) << 6 | (text[++i] & 0x3f));
    }
    return bytes;
  }

  inline static const std::string kZeros = std::string(64, '0');
  Json base_;
  std::map<std::string, Json> patches_;
};
