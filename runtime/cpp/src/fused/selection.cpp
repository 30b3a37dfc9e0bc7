#include "fused/selection.hpp"

namespace txport::core::fused {

namespace {

// Copying a column reads as much as using it does, and a column that is used may be of no use to most rows.
constexpr std::size_t kLeastSaved = 2;

}  // namespace

Selection::Selection(const Model& model, const std::vector<Words>& lists)
    : model_(model), projection_(model.projection), bounds_(model.bounds) {
  std::vector<std::int32_t> columns(model.vocabulary, -1);
  std::size_t count = 0;
  bool gathered = true;
  for (const Words& words : lists) {
    gathered = gathered && words != nullptr;
    if (!gathered) break;
    for (const std::int32_t id : *words) {
      std::int32_t& column = columns[static_cast<std::size_t>(id)];
      if (column < 0) ++count;
      column = 0;
    }
  }
  gathered = gathered && count * kLeastSaved <= model.vocabulary;
  for (std::size_t id = 0; id < columns.size() && gathered; ++id) {
    if (columns[id] < 0) continue;
    columns[id] = static_cast<std::int32_t>(ids_.size());
    ids_.push_back(static_cast<std::int32_t>(id));
  }
  for (const Words& words : lists) {
    const auto [at, is_new] = columns_.try_emplace(words);
    if (!is_new || !gathered || words->size() == count) continue;
    for (const std::int32_t id : *words) at->second.push_back(columns[static_cast<std::size_t>(id)]);
  }
  if (!gathered) return;
  memory_ = Block(lay_out(nullptr));
  lay_out(memory_.data());
}

void Selection::gather(const Member& member) const {
  const Member::Range mine = member.share(ids_.empty() ? 0 : projection_.panels);
  for (std::size_t p = mine.begin; p < mine.end; ++p) {
    gather_panel(model_.projection, ids_.data(), ids_.size(), p, projection_);
    if (bounds_.copy.panels > 0) gather_panel(model_.bounds, ids_.data(), ids_.size(), p, bounds_);
  }
}

Columns Selection::columns(const Words& words) const {
  if (words == nullptr) return {};
  const std::vector<std::int32_t>& of = ids_.empty() ? *words : columns_.at(words);
  return {of.data(), of.data() + of.size()};
}

std::size_t Selection::lay_out(std::byte* base) {
  Cursor at(base);
  projection_.panels = padded(ids_.size()) / kPanel;
  take_arrays(projection_, bounds_.copy.panels > 0 ? &bounds_ : nullptr, at);
  return at.bytes();
}

}  // namespace txport::core::fused
