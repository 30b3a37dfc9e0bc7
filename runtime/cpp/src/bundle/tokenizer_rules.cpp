#include "bundle/tokenizer_rules.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "errors.hpp"

namespace txport::core {

namespace {

std::int64_t vocabulary_of(const Manifest& manifest, const std::string& side) {
  return side == "source" ? manifest.model.source_vocabulary : manifest.model.target_vocabulary;
}

std::string outside(const Manifest& manifest, const std::string& side) {
  return "outside the " + side + " vocabulary of " + std::to_string(vocabulary_of(manifest, side));
}

bool fits(const Manifest& manifest, const std::string& side, std::int64_t id) {
  return 0 <= id && id < vocabulary_of(manifest, side);
}

std::string file_fault(const Manifest& manifest, const std::string& name, const std::optional<TokenizerSide>& side) {
  const std::string& kind = manifest.tokenizer.kind;
  const std::string field = "tokenizer." + name;
  if (side.has_value() == (kind == "none" || kind == "bytes")) {
    return field + " must be null for the kinds 'none' and 'bytes' and an object for every other kind";
  }
  if (!side) return "";
  if (side->vocabulary && kind == "tokenizers") return field + ".vocabulary must be null for kind 'tokenizers'";
  for (const auto& [part, file] :
       {std::pair{".model", std::optional(side->model)}, {".vocabulary", side->vocabulary}}) {
    if (file && manifest.files.count(*file) == 0) {
      return field + part + " names " + quote(*file) + ", which is not listed under files";
    }
  }
  return "";
}

std::string bytes_fault(const Manifest& manifest) {
  const std::int64_t required = TokenizerDescription::kFirstByte + 256;
  const std::int64_t smallest = std::min(manifest.model.source_vocabulary, manifest.model.target_vocabulary);
  if (manifest.tokenizer.kind != "bytes" || smallest >= required) return "";
  return "tokenizer.kind 'bytes' needs vocabularies of " + std::to_string(required) + " ids";
}

std::string list_fault(const Manifest& manifest, const std::string& name, const std::vector<Affix>& items) {
  const auto& languages = manifest.tokenizer.languages;
  const std::string side = name.substr(0, name.find('_'));
  for (const Affix& item : items) {
    if (const auto* id = std::get_if<std::int64_t>(&item)) {
      if (fits(manifest, side, *id)) continue;
      return "tokenizer." + name + " has the id " + std::to_string(*id) + ", " + outside(manifest, side);
    }
    const auto& word = std::get<std::string>(item);
    if (!languages || (word == kSourceLanguage ? languages->source : languages->target).empty()) {
      return "tokenizer." + name + " has " + quote(word) + ", but tokenizer.languages has no such language";
    }
  }
  return "";
}

bool contains(const std::vector<Affix>& items, const std::string& word) {
  return std::find(items.begin(), items.end(), Affix(word)) != items.end();
}

// Language ids must be in the vocabulary of every list that uses the placeholder.
std::string language_fault(const Manifest& manifest, const std::string& field,
                           const std::map<std::string, std::int64_t>& table,
                           const std::optional<std::string>& default_name) {
  const TokenizerDescription& tokenizer = manifest.tokenizer;
  const std::string word = field + "_language";
  std::set<std::string> sides;
  if (field == "source" || contains(tokenizer.source_prefix, word) || contains(tokenizer.source_suffix, word)) {
    sides.insert("source");
  }
  if (contains(tokenizer.target_prefix, word)) sides.insert("target");
  for (const std::string& side : sides) {
    for (const auto& [name, id] : table) {
      if (fits(manifest, side, id)) continue;
      return "tokenizer.languages." + field + "[" + quote(name) + "] is " + std::to_string(id) + ", " +
             outside(manifest, side);
    }
  }
  if (!default_name || table.count(*default_name) == 1) return "";
  return "tokenizer.languages." + field + "_default is " + quote(*default_name) +
         ", which is not in tokenizer.languages." + field;
}

std::string added_fault(const Manifest& manifest) {
  const TokenizerDescription& tokenizer = manifest.tokenizer;
  if (!tokenizer.added) return "";
  const bool has_vocabularies =
      tokenizer.source && tokenizer.source->vocabulary && tokenizer.target && tokenizer.target->vocabulary;
  if (tokenizer.kind != "bytes" && !has_vocabularies) {
    return "tokenizer.added must be null unless both sides have a vocabulary or the kind is 'bytes'";
  }
  std::set<std::string> seen;
  const std::int64_t size = std::min(manifest.model.source_vocabulary, manifest.model.target_vocabulary);
  for (const AddedToken& token : tokenizer.added->tokens) {
    if (token.content.empty()) return "tokenizer.added has an empty token";
    if (!seen.insert(token.content).second) {
      return "tokenizer.added has the token " + quote(token.content) + " twice";
    }
    if (token.id < 0 || token.id >= size) {
      return "tokenizer.added has the id " + std::to_string(token.id) + ", outside the vocabulary of " +
             std::to_string(size);
    }
  }
  return "";
}

}  // namespace

std::string tokenizer_fault(const Manifest& manifest) {
  const TokenizerDescription& tokenizer = manifest.tokenizer;
  std::vector<std::string> faults{file_fault(manifest, "source", tokenizer.source),
                                  file_fault(manifest, "target", tokenizer.target),
                                  bytes_fault(manifest),
                                  list_fault(manifest, "source_prefix", tokenizer.source_prefix),
                                  list_fault(manifest, "source_suffix", tokenizer.source_suffix),
                                  list_fault(manifest, "target_prefix", tokenizer.target_prefix)};
  if (const auto& languages = tokenizer.languages) {
    faults.push_back(language_fault(manifest, "source", languages->source, languages->source_default));
    faults.push_back(language_fault(manifest, "target", languages->target, languages->target_default));
  }
  faults.push_back(added_fault(manifest));
  const auto first = std::find_if(faults.begin(), faults.end(), [](const auto& fault) { return !fault.empty(); });
  return first == faults.end() ? "" : *first;
}

}  // namespace txport::core
