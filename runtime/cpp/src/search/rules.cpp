#include "search/rules.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace txport::core {

namespace {

bool has(const Ids& ids, std::int64_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

void append(Ids& to, const Ids& more) { to.insert(to.end(), more.begin(), more.end()); }

// Return each id once, ascending.
Ids distinct(Ids ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Return whether `ids` ends with `phrase` without its last id.
bool begun(const Ids& ids, const Ids& phrase) {
  return ids.size() + 1 >= phrase.size() && std::equal(phrase.rbegin() + 1, phrase.rend(), ids.rbegin());
}

// Add the ids that would complete an n-gram that `ids` already contains.
void add_repeats(const Ids& ids, std::size_t n, Ids& banned) {
  if (n == 0 || ids.size() < n) return;
  const auto before = static_cast<std::ptrdiff_t>(n - 1);
  for (auto first = ids.begin(); ids.end() - first > before; ++first) {
    if (std::equal(first, first + before, ids.end() - before)) banned.push_back(first[before]);
  }
}

}  // namespace

std::optional<std::int64_t> forced_token(const Slot& slot) {
  const auto position = static_cast<std::size_t>(slot.length);
  const Ids& prefix = slot.request.prefix;
  if (position < prefix.size()) return prefix[position];
  return slot.length == slot.limit - 1 ? slot.request.search.rules.forced_end : std::nullopt;
}

Constraints::Constraints(const Rules& rules, const SpecialTokens& tokens)
    : bos_(tokens.bos),
      eos_(tokens.eos),
      penalty_(rules.repetition_penalty),
      no_repeat_(static_cast<std::size_t>(rules.no_repeat_ngram)),
      ends_{tokens.eos},
      never_(rules.suppress),
      begin_suppress_(rules.begin_suppress) {
  for (const std::int64_t id : rules.end_ids) {
    if (!is_end(id)) ends_.push_back(id);
  }
  for (const Ids& word : rules.bad_words) {
    if (word.size() > 1) {
      phrases_.push_back(word);
    } else if (!is_end(word.front())) {  // as in Hugging Face, eos is never a bad word
      never_.push_back(word.front());
    }
  }
}

bool Constraints::is_end(std::int64_t token) const { return has(ends_, token); }

bool Constraints::may_change(std::int64_t token, const Ids& generated, const Request& request) const {
  return penalises() || has(banned_ids(generated, request), token);
}

template <typename Number>
void Constraints::apply(std::vector<Number>& scores, const Ids& generated, const Request& request) const {
  const auto at = [](std::int64_t id) { return static_cast<std::size_t>(id); };
  const Ids ids = affected_ids(generated, request);
  std::vector<Number> changed_scores;
  for (const std::int64_t id : ids) changed_scores.push_back(scores[at(id)]);
  change(ids, changed_scores, generated, request);
  for (std::size_t i = 0; i < ids.size(); ++i) scores[at(ids[i])] = changed_scores[i];
  const auto never = [](Number score) { return score == -std::numeric_limits<Number>::infinity(); };
  if (std::all_of(scores.begin(), scores.end(), never)) scores[at(eos_)] = 0;
}

template void Constraints::apply(std::vector<float>& scores, const Ids& generated, const Request& request) const;
template void Constraints::apply(std::vector<double>& scores, const Ids& generated, const Request& request) const;

Ids Constraints::affected_ids(const Ids& generated, const Request& request) const {
  Ids ids = banned_ids(generated, request);
  if (penalises()) append(ids, seen_ids(generated));
  return distinct(std::move(ids));
}

template <typename Number>
void Constraints::change(const Ids& ids, std::vector<Number>& scores, const Ids& generated,
                         const Request& request) const {
  const auto penalty = static_cast<Number>(penalty_);
  const Ids before = penalises() ? seen_ids(generated) : Ids{};
  const Ids never = distinct(banned_ids(generated, request));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Number& score = scores[i];
    if (std::binary_search(before.begin(), before.end(), ids[i])) score = score < 0 ? score * penalty : score / penalty;
    if (std::binary_search(never.begin(), never.end(), ids[i])) score = -std::numeric_limits<Number>::infinity();
  }
}

template void Constraints::change(const Ids&, std::vector<float>&, const Ids&, const Request&) const;
template void Constraints::change(const Ids&, std::vector<double>&, const Ids&, const Request&) const;

// Return the ids that must not be generated next.
Ids Constraints::banned_ids(const Ids& generated, const Request& request) const {
  Ids ids{bos_};
  append(ids, generated);
  Ids banned = never_;
  add_repeats(ids, no_repeat_, banned);
  for (const Ids& phrase : phrases_) {
    if (begun(ids, phrase)) banned.push_back(phrase.back());
  }
  if (static_cast<std::int64_t>(generated.size()) < request.min_length) append(banned, ends_);
  if (generated.size() == request.prefix.size()) append(banned, begin_suppress_);
  return banned;
}

// Return each id so far once, including bos.
Ids Constraints::seen_ids(const Ids& generated) const {
  Ids ids{bos_};
  append(ids, generated);
  return distinct(std::move(ids));
}

}  // namespace txport::core
