#include "text/vocabulary.hpp"

#include "bundle/manifest.hpp"
#include "bundle/strict_json.hpp"
#include "errors.hpp"

namespace txport::core {

Vocabulary::Vocabulary(const Bundle& bundle, const std::string& file, std::int64_t size, std::int64_t unk) : unk_(unk) {
  const std::string path = bundle.name(file);
  const Json json = parse(bundle.read(file), path);
  check_format_version(json, path);
  const Value value(json, path);
  value.fields({"format_version", "pieces"});
  for (const Value& item : value["pieces"].items()) {
    const auto id = static_cast<std::int64_t>(pieces_.size());
    pieces_.push_back(item.is_null() ? std::nullopt : std::optional(item.text()));
    if (pieces_.back() && !ids_.emplace(*pieces_.back(), id).second) {
      throw BundleError(path + " has the piece " + quote(*pieces_.back()) + " twice, the second time at " +
                        std::to_string(id) + ": export again");
    }
  }
  if (static_cast<std::int64_t>(pieces_.size()) > size) {
    throw BundleError(path + " has " + std::to_string(pieces_.size()) + " pieces, more than the vocabulary of " +
                      std::to_string(size) + ": it belongs to another model, export the bundle again");
  }
}

Ids Vocabulary::ids(const std::vector<std::string>& pieces) const {
  Ids ids;
  ids.reserve(pieces.size());
  for (const std::string& piece : pieces) {
    const auto found = ids_.find(piece);
    ids.push_back(found == ids_.end() ? unk_ : found->second);
  }
  return ids;
}

std::vector<std::string> Vocabulary::pieces(const Ids& ids) const {
  std::vector<std::string> texts;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= static_cast<std::int64_t>(pieces_.size())) continue;
    const auto& piece = pieces_[static_cast<std::size_t>(id)];
    if (piece) texts.push_back(*piece);
  }
  return texts;
}

}  // namespace txport::core
