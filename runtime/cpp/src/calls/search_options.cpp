#include "calls/search_options.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "errors.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

template <typename Option, typename Setting>
void fill(Option& option, const Setting& setting) {
  if (!option && setting) option = *setting;
}

Ids bad_word(const std::variant<std::string, Ids>& word, std::int64_t vocabulary, const Tokenizer& tokenizer) {
  if (const auto* ids = std::get_if<Ids>(&word)) {
    check_ids(*ids, vocabulary, "a bad word");
    if (ids->empty()) throw InputError("bad_words has [], which has no tokens: leave it out");
    return *ids;
  }
  const auto& text = std::get<std::string>(word);
  check_utf8(text, "a bad word");
  Ids ids = tokenizer.encode_prefix(text);
  if (ids.empty()) throw InputError("bad_words has " + quote(text) + ", which has no tokens: leave it out");
  return ids;
}

Rules rules_of(const Options& options, std::int64_t vocabulary, const Tokenizer& tokenizer) {
  Rules rules;
  for (const auto& word : options.bad_words) rules.bad_words.push_back(bad_word(word, vocabulary, tokenizer));
  check_ids(rules.suppress = options.suppress, vocabulary, "suppress");
  check_ids(rules.begin_suppress = options.begin_suppress, vocabulary, "begin_suppress");
  check_ids(rules.end_ids = options.end_ids, vocabulary, "end_ids");
  rules.repetition_penalty = options.repetition_penalty.value_or(1);
  rules.no_repeat_ngram = options.no_repeat_ngram.value_or(0);
  rules.forced_end = options.forced_end;
  rules.renormalize = options.renormalize.value_or(false);
  if (rules.forced_end) check_ids({*rules.forced_end}, vocabulary, "forced_end");
  const std::set<std::int64_t> suppressed(rules.suppress.begin(), rules.suppress.end());
  if (static_cast<std::int64_t>(suppressed.size()) == vocabulary) {
    throw InputError("suppress contains all " + std::to_string(vocabulary) + " ids: leave out at least one");
  }
  return rules;
}

Sampling sampling_of(const Options& options) {
  return {options.temperature.value_or(1), options.top_k.value_or(0), options.top_p.value_or(1),
          options.min_p.value_or(0), static_cast<std::uint64_t>(options.seed)};
}

EarlyStopping stopping_of(const Options::Stopping& option) {
  if (option == "true") return EarlyStopping::kTrue;
  return option == "never" ? EarlyStopping::kNever : EarlyStopping::kFalse;
}

// Refuse options that contradict each other.
void check(const Search& search, const Limits& limits) {
  std::vector<std::string> kinds;
  if (search.beam > 1) kinds.emplace_back("beam");
  if (search.sampling) kinds.emplace_back("sample");
  if (search.alternatives > 0) kinds.emplace_back("alternatives");
  if (kinds.size() > 1) throw InputError(kinds[0] + " excludes " + kinds[1] + ": leave out one of them");
  if (!search.sampling && search.n_best > search.beam) {
    throw InputError("n_best " + std::to_string(search.n_best) + " is more than the beam of " +
                     std::to_string(search.beam) + ": raise beam, or lower n_best");
  }
  const std::int64_t rows = std::max({search.beam, search.alternatives, search.n_best});
  if (rows <= limits.batch) return;
  const std::string name = search.beam > 1 ? "beam" : search.alternatives > 0 ? "alternatives" : "n_best";
  throw InputError(name + " " + std::to_string(rows) + " is too large: this bundle supports at most " +
                   std::to_string(limits.batch) + " rows");
}

}  // namespace

Options with_settings(Options options, const Generation& generation, const Limits& limits) {
  if (options.generation != "model") return options;
  if (!generation.unsupported.empty()) {
    throw InputError("generation settings of the model are not supported: " + joined(generation.unsupported) +
                     ". Leave out the option generation, and set options");
  }
  fill(options.beam, generation.beam);
  fill(options.length_penalty, generation.length_penalty);
  fill(options.early_stopping, generation.early_stopping);
  fill(options.repetition_penalty, generation.repetition_penalty);
  fill(options.no_repeat_ngram, generation.no_repeat_ngram);
  if (options.bad_words.empty()) options.bad_words.assign(generation.bad_words.begin(), generation.bad_words.end());
  if (options.suppress.empty()) options.suppress = generation.suppress;
  if (options.begin_suppress.empty()) options.begin_suppress = generation.begin_suppress;
  if (options.end_ids.empty()) options.end_ids = generation.end_ids;
  fill(options.forced_end, generation.forced_end);
  fill(options.renormalize, generation.renormalize);
  fill(options.sample, generation.sample);
  fill(options.temperature, generation.temperature);
  fill(options.top_k, generation.top_k);
  fill(options.top_p, generation.top_p);
  fill(options.min_p, generation.min_p);
  fill(options.replace_unknowns, generation.replace_unknowns);
  if (options.min_length == 0) options.min_length = generation.min_length.value_or(0);
  if (!options.max_length && generation.max_length) {
    options.max_length = std::min(*generation.max_length, limits.target);
  }
  options.check();
  return options;
}

void check_effect(const Options& options, const Options& filled) {
  const auto refuse = [](bool wrong, const std::string& name, const std::string& why) {
    if (wrong) throw InputError(name + " has no effect " + why);
  };
  const auto is_set = [](const auto& option, auto neutral) { return option && *option != neutral; };
  if (!filled.sample.value_or(false)) {
    refuse(is_set(options.temperature, 1.0), "temperature", "without sample");
    refuse(is_set(options.top_k, 0), "top_k", "without sample");
    refuse(is_set(options.top_p, 1.0), "top_p", "without sample");
    refuse(options.min_p.has_value(), "min_p", "without sample");
    refuse(options.seed != 0, "seed", "without sample");
  }
  if (filled.beam.value_or(1) <= 1) {
    refuse(is_set(options.length_penalty, 1.0), "length_penalty", "without a beam of 2 or more");
    refuse(options.early_stopping && !(options.early_stopping == "false"), "early_stopping",
           "without a beam of 2 or more");
    refuse(is_set(options.renormalize, false), "renormalize", "without a beam of 2 or more");
  }
  if (!(filled.early_stopping == "true")) {
    refuse(is_set(options.patience, 1.0), "patience", "without early_stopping true");
  }
  refuse(options.full_length && options.max_length, "full_length", "with max_length");
}

void check_pieces(const Options& options) {
  if (options.replace_unknowns.value_or(false)) {
    throw InputError("a stream cannot replace unknown tokens: leave out replace_unknowns, or use `translate`");
  }
}

Search search_of(const Options& options, const Manifest& manifest, const Limits& limits, const Tokenizer& tokenizer) {
  Search search;
  search.beam = options.beam.value_or(1);
  search.n_best = options.n_best.value_or(1);
  search.length_penalty = options.length_penalty.value_or(1);
  search.early_stopping = stopping_of(options.early_stopping);
  search.patience = options.patience.value_or(1);
  if (options.sample.value_or(false)) search.sampling = sampling_of(options);
  search.alternatives = options.alternatives.value_or(0);
  search.shortlist = options.shortlist;
  search.rules = rules_of(options, manifest.model.target_vocabulary, tokenizer);
  check(search, limits);
  return search;
}

}  // namespace txport::core
