#include "text/alignment.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "utf8.hpp"

namespace txport::core {

namespace {

// Return the index of the first word that ends after the start of the span.
std::optional<std::size_t> word_of(const Span& span, const std::vector<Span>& words) {
  const auto found =
      std::find_if(words.begin(), words.end(), [&span](const Span& word) { return word.end > span.start; });
  if (found == words.end()) return std::nullopt;
  return static_cast<std::size_t>(found - words.begin());
}

}  // namespace

FloatMatrix averaged(const CrossAttention& cross, const std::vector<std::pair<std::int64_t, std::int64_t>>& heads) {
  std::vector<std::size_t> chosen;  // indices of heads, counted over all layers
  chosen.reserve(cross.layers * cross.heads);
  for (const auto& [layer, head] : heads) {
    chosen.push_back(static_cast<std::size_t>(layer) * cross.heads + static_cast<std::size_t>(head));
  }
  if (heads.empty()) {
    const std::size_t first = cross.layers - std::min(cross.layers, kLastLayers);
    for (std::size_t head = first * cross.heads; head < cross.layers * cross.heads; ++head) chosen.push_back(head);
  }
  const std::size_t size = cross.targets * cross.sources;
  FloatMatrix mean{cross.targets, cross.sources, std::vector<float>(size)};
  for (const std::size_t head : chosen) {
    const float* weights = cross.values.data() + head * size;
    for (std::size_t i = 0; i < size; ++i) mean.values[i] += weights[i];
  }
  for (float& value : mean.values) value /= static_cast<float>(chosen.size());
  return mean;
}

Ids align_tokens(const FloatMatrix& attention, const std::vector<std::size_t>& candidates,
                 const std::vector<bool>& aligned) {
  Ids tokens(attention.rows, kNotAligned);
  for (std::size_t row = 0; row < attention.rows && !candidates.empty(); ++row) {
    if (!aligned[row]) continue;
    const float* weights = attention.values.data() + row * attention.columns;
    const auto best = std::max_element(candidates.begin(), candidates.end(),
                                       [weights](std::size_t a, std::size_t b) { return weights[a] < weights[b]; });
    tokens[row] = static_cast<std::int64_t>(*best);
  }
  return tokens;
}

std::vector<double> times_of(const Ids& tokens, double rate) {
  std::vector<double> times;
  for (const std::int64_t token : tokens) {
    times.push_back(token == kNotAligned ? static_cast<double>(kNotAligned) : static_cast<double>(token) / rate);
  }
  return times;
}

std::vector<Span> words_of(std::string_view text) {
  std::vector<Span> words;
  std::optional<std::size_t> start;
  for (std::size_t position = 0; position < text.size();) {
    const Character character = character_at(text, position);
    if (character.is_space) {
      if (start) words.push_back({*start, position});
      start.reset();
    } else if (!start) {
      start = position;
    }
    position += character.length;
  }
  if (start) words.push_back({*start, text.size()});
  return words;
}

Span stripped(const Span& span, std::string_view text) {
  const std::vector<Span> words = words_of(text.substr(span.start, span.end - span.start));
  if (words.empty()) return {span.end, span.end};
  return {span.start + words.front().start, span.start + words.back().end};
}

void align_words(Alignment& alignment) {
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t i = 0; i < alignment.tokens.size(); ++i) {
    if (alignment.tokens[i] == kNotAligned) continue;
    const auto token = static_cast<std::size_t>(alignment.tokens[i]);
    const auto source = word_of(alignment.source_spans[token], alignment.source_words);
    const auto target = word_of(alignment.target_spans[i], alignment.target_words);
    if (source && target) pairs.emplace(*source, *target);
  }
  alignment.words.clear();
  alignment.pharaoh.clear();
  for (const auto& [source, target] : pairs) {
    alignment.words.push_back({source, target});
    alignment.pharaoh += alignment.pharaoh.empty() ? "" : " ";
    alignment.pharaoh += std::to_string(source) + "-" + std::to_string(target);
  }
}

}  // namespace txport::core
