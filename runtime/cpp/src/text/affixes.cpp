#include "text/affixes.hpp"

#include <algorithm>

#include "errors.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

using Table = std::map<std::string, std::int64_t>;

constexpr std::size_t kMaxNames = 8;

std::string some_of(const Table& table) {
  std::string names;
  std::size_t count = 0;
  for (const auto& [name, id] : table) {
    if (count++ == kMaxNames) {
      return names + " or one of " + std::to_string(table.size() - kMaxNames) + " more (tx-inspect lists them)";
    }
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

// The languages of one side, and the selected one.
class Side {
 public:
  Side(std::string name, const Table* table, const std::optional<std::string>& fallback,
       const std::optional<std::string>& requested)
      : name_(std::move(name)), table_(table) {
    const auto& chosen = requested ? requested : fallback;
    if (!chosen) return;
    if (table == nullptr || table->empty()) {
      throw InputError(name_ + " language " + quote(*chosen) + ": this bundle has no " + name_ +
                       " language to choose, leave it out");
    }
    const auto found = table->find(*chosen);
    if (found == table->end()) {
      throw InputError(name_ + " language " + quote(*chosen) + " is unknown to this bundle: use " + some_of(*table));
    }
    id_ = found->second;
  }

  const std::optional<std::int64_t>& id() const { return id_; }

  [[noreturn]] void must_choose() const {
    throw InputError("choose a " + name_ + " language of this bundle with --" + name_ +
                     "-language: " + some_of(*table_));
  }

 private:
  std::string name_;
  const Table* table_;
  std::optional<std::int64_t> id_;
};

Ids filled(const std::vector<Affix>& items, const Side& source, const Side& target, bool optional) {
  Ids ids;
  for (const Affix& item : items) {
    if (const auto* id = std::get_if<std::int64_t>(&item)) {
      ids.push_back(*id);
      continue;
    }
    const Side& side = std::get<std::string>(item) == kSourceLanguage ? source : target;
    if (side.id()) {
      ids.push_back(*side.id());
    } else if (!optional) {
      side.must_choose();
    }
  }
  return ids;
}

}  // namespace

Ids Affixes::wrap(const Ids& ids) const {
  Ids wrapped = source_prefix;
  wrapped.insert(wrapped.end(), ids.begin(), ids.end());
  wrapped.insert(wrapped.end(), source_suffix.begin(), source_suffix.end());
  return wrapped;
}

Affixes affixes(const TokenizerDescription& description, const LanguageChoice& choice) {
  const auto& languages = description.languages;
  const Side source("source", languages ? &languages->source : nullptr,
                    languages ? languages->source_default : std::nullopt, choice.source);
  const Side target("target", languages ? &languages->target : nullptr,
                    languages ? languages->target_default : std::nullopt, choice.target);
  const bool in_text = languages && languages->in_text;
  return {filled(description.source_prefix, source, target, in_text),
          filled(description.source_suffix, source, target, false),
          filled(description.target_prefix, source, target, false)};
}

Affixes affixes_of(std::string_view& text, const TokenizerDescription& description, const LanguageChoice& choice,
                   std::int64_t unk) {
  const auto& languages = description.languages;
  if (!languages || !languages->in_text) return affixes(description, choice);
  const auto& [before, after] = languages->marker;
  const bool any_name = languages->marker == kMariansMarker;
  const std::size_t start = any_name ? 0 : after_space(text, 0);
  const bool begins = text.substr(start, before.size()) == before;
  const std::size_t end = begins ? text.find(after, start + before.size()) : std::string_view::npos;
  if (end == std::string_view::npos) return affixes(description, choice);
  const std::string name(text.substr(start + before.size(), end - start - before.size()));
  const bool is_known = languages->target.count(name) == 1;
  if (!is_known && !any_name) return affixes(description, choice);
  text.remove_prefix(end + after.size());
  if (is_known) return affixes(description, {choice.source, name});
  TokenizerDescription changed = description;
  std::replace(changed.source_prefix.begin(), changed.source_prefix.end(), Affix(kTargetLanguage), Affix(unk));
  return affixes(changed, {choice.source, std::nullopt});
}

}  // namespace txport::core
