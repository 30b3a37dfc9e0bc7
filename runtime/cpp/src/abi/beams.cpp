// Beam search in the C ABI of engines: search/beam.hpp on a state. Arguments are checked here.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi/engine.hpp"
#include "abi/guard.hpp"
#include "abi/options.hpp"
#include "search/beam.hpp"
#include "txport/engine.h"

namespace {

struct Settings {
  txport::core::Search search;
  std::int64_t vocabulary;
  txport::core::BeamSearch policy;

  Settings(const txport::core::Engine& engine, txport::core::Search chosen, std::int64_t size)
      : search(std::move(chosen)),
        vocabulary(size),
        policy(engine.tokens(), search, size, engine.recomputes_logits()) {}
};

}  // namespace

struct txport_beam_search {
  std::shared_ptr<const Settings> settings;
};

struct txport_hypotheses {
  std::shared_ptr<const Settings> settings;
  std::shared_ptr<txport::core::BeamSlot> slot;
};

namespace {

using namespace txport::core;
using txport::abi::guarded;
using txport::abi::read_options;
using txport::abi::required;
using txport::abi::within;

Ids ids_of(const txport_ids& field, std::int64_t vocabulary, const char* name) {
  if (field.count > 0) required(field.values, name);
  Ids ids(field.values, field.values + field.count);
  for (const std::int64_t id : ids) within(id, 0, vocabulary - 1, name);
  return ids;
}

std::vector<Ids> words_of(const txport_beam_settings& settings, std::int64_t vocabulary) {
  constexpr const char* kName = "txport_beam_settings.bad_words";
  if (settings.bad_word_count > 0) required(settings.bad_words, kName);
  std::vector<Ids> words;
  for (std::size_t i = 0; i < settings.bad_word_count; ++i) {
    words.push_back(ids_of(settings.bad_words[i], vocabulary, kName));
    if (words.back().empty()) throw InputError(std::string(kName) + " contains an entry without ids: leave it out");
  }
  return words;
}

double finite(double value, const char* name) {
  if (!std::isfinite(value)) throw InputError(std::string(name) + " is not a finite number");
  return value;
}

Search search_of(const txport_beam_settings& settings, std::int64_t vocabulary, std::int64_t batch) {
  constexpr EarlyStopping kStopping[] = {EarlyStopping::kFalse, EarlyStopping::kTrue, EarlyStopping::kNever};
  Search search;
  search.beam = within(settings.beam, 1, batch, "txport_beam_settings.beam");
  search.n_best = within(settings.n_best, 1, search.beam, "txport_beam_settings.n_best");
  search.length_penalty = finite(settings.length_penalty, "txport_beam_settings.length_penalty");
  search.early_stopping = kStopping[within(settings.early_stopping, 0, 2, "txport_beam_settings.early_stopping")];
  search.patience = finite(settings.patience, "txport_beam_settings.patience");
  Rules& rules = search.rules;
  rules.repetition_penalty = finite(settings.repetition_penalty, "txport_beam_settings.repetition_penalty");
  rules.no_repeat_ngram = within(settings.no_repeat_ngram, 0, INT32_MAX, "txport_beam_settings.no_repeat_ngram");
  rules.bad_words = words_of(settings, vocabulary);
  rules.suppress = ids_of(settings.suppress, vocabulary, "txport_beam_settings.suppress");
  rules.begin_suppress = ids_of(settings.begin_suppress, vocabulary, "txport_beam_settings.begin_suppress");
  rules.end_ids = ids_of(settings.end_ids, vocabulary, "txport_beam_settings.end_ids");
  const std::int64_t end = within(settings.forced_end, -1, vocabulary - 1, "txport_beam_settings.forced_end");
  if (end >= 0) rules.forced_end = end;
  rules.renormalize = settings.renormalize != 0;
  return search;
}

// Return the slots of the sentences of a state. Checks that the search can read the state's outputs.
Slots slots_of(const txport_engine_state& state, const std::shared_ptr<const Settings>& settings, std::int64_t count,
               txport_hypotheses* const* sentences) {
  const std::int64_t beam = settings->search.beam;
  required(sentences, "sentences");
  if (state.rows() % beam != 0 || count != state.rows() / beam) {
    throw InputError("count is " + std::to_string(count) + ", but the state has " + std::to_string(state.rows()) +
                     " rows, " + std::to_string(beam) + " per sentence");
  }
  if (state.outputs.top < settings->policy.top()) {
    throw InputError("the state was allocated with the best " + std::to_string(state.outputs.top) +
                     " candidates of each row, and the search needs " + std::to_string(settings->policy.top()));
  }
  Slots slots;
  for (std::int64_t i = 0; i < count; ++i) {
    if (sentences[i] == nullptr) {
      slots.push_back(nullptr);
      continue;
    }
    const auto& [owner, slot] = *sentences[i];
    if (owner != settings) throw InputError("a sentence belongs to another search: create it with this one");
    if (slot->done) throw InputError("a sentence is done: free its rows");
    if (slot->ruled && !state.outputs.logits && !state.handle.engine->recomputes_logits())
      throw InputError("the state was allocated without logits: rules need them");
    if (std::find(slots.begin(), slots.end(), slot) != slots.end()) throw InputError("a sentence is given twice");
    slots.push_back(slot);
  }
  return slots;
}

}  // namespace

txport_code txport_beam_search_create(const txport_engine_handle* engine, const txport_beam_settings* settings,
                                      txport_beam_search** search) noexcept {
  return guarded([&] {
    required(search, "search") = nullptr;
    const Engine& opened = *required(engine, "engine").engine;
    const auto read =
        read_options(&required(settings, "settings"), sizeof(txport_beam_settings), "txport_beam_settings");
    const std::int64_t vocabulary = engine->sizes.target_vocabulary;
    Search chosen = search_of(read, vocabulary, opened.limits().batch);
    *search = new txport_beam_search{std::make_shared<Settings>(opened, std::move(chosen), vocabulary)};
    return TXPORT_OK;
  });
}

void txport_beam_search_free(txport_beam_search* search) noexcept { delete search; }

txport_code txport_hypotheses_create(const txport_beam_search* search, const txport_beam_sentence* sentence,
                                     txport_hypotheses** hypotheses) noexcept {
  return guarded([&] {
    required(hypotheses, "hypotheses") = nullptr;
    const auto read =
        read_options(&required(sentence, "sentence"), sizeof(txport_beam_sentence), "txport_beam_sentence");
    const auto& settings = required(search, "search").settings;
    Request request;
    request.search = settings->search;
    request.min_length = within(read.min_length, 0, INT32_MAX, "txport_beam_sentence.min_length");
    request.prefix = ids_of(read.prefix, settings->vocabulary, "txport_beam_sentence.prefix");
    request.forced = static_cast<std::size_t>(
        within(read.forced, 0, static_cast<std::int64_t>(read.prefix.count), "txport_beam_sentence.forced"));
    request.scores = true;
    const std::int64_t limit = within(read.limit, 1, INT32_MAX, "txport_beam_sentence.limit");
    *hypotheses = new txport_hypotheses{settings, std::make_shared<BeamSlot>(0, std::move(request), limit)};
    return TXPORT_OK;
  });
}

void txport_hypotheses_free(txport_hypotheses* hypotheses) noexcept { delete hypotheses; }

txport_code txport_state_search(txport_engine_state* state, const txport_beam_search* search, std::int64_t count,
                                txport_hypotheses* const* sentences, std::int64_t more, std::int64_t* steps,
                                std::uint8_t* done) noexcept {
  return guarded([&] {
    const txport_engine_state& searched = txport::abi::idle(state);
    const auto& settings = required(search, "search").settings;
    const Slots slots = slots_of(searched, settings, count, sentences);
    within(more, 0, kMaxSteps, "more");
    required(done, "done");
    required(steps, "steps") = settings->policy.choose_and_step(*searched.state, slots, more);
    std::transform(slots.begin(), slots.end(), done,
                   [](const auto& slot) { return static_cast<std::uint8_t>(slot && slot->done); });
    return TXPORT_OK;
  });
}

txport_code txport_hypotheses_answer(const txport_hypotheses* hypotheses, std::int64_t index, const std::int64_t** ids,
                                     const double** scores, std::int64_t* count, double* score) noexcept {
  return guarded([&] {
    const BeamSlot& slot = *required(hypotheses, "hypotheses").slot;
    if (!slot.done) throw InputError("the sentence is not done: continue the search");
    const auto found = static_cast<std::int64_t>(slot.finished.size());
    required(count, "count") = 0;
    if (within(index, 0, INT64_MAX, "index") >= std::min(found, slot.request.search.n_best)) return TXPORT_OK;
    const Hypothesis& answer = slot.finished[static_cast<std::size_t>(index)];
    required(ids, "ids") = answer.ids.data();
    required(scores, "scores") = answer.scores->data();
    required(score, "score") = *answer.score;
    *count = static_cast<std::int64_t>(answer.ids.size());
    return TXPORT_OK;
  });
}
