// Any calls of the C ABI of an engine do what they say or are refused as the caller's fault. Buffers have the sizes
// that engine.h asks for, so that a sanitizer sees what goes beyond them.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "abi/engine.hpp"
#include "fused/engine.hpp"
#include "fused/random_model.hpp"
#include "fuzz/choices.hpp"
#include "txport/engine.h"

namespace {

using txport::core::Ids;

// Lists of words as long as this are longer than what fills up a block.
constexpr std::int64_t kVocabulary = 300;

// Two engines, which share nothing.
const txport_engine_handle& engine(std::size_t choice) {
  static const auto open = [](bool int8) {
    random_model::Options options;
    options.int8 = int8;
    options.source_vocabulary = options.target_vocabulary = kVocabulary;
    const random_model::RandomModel model(options, 1);
    return txport_engine_handle{txport::core::open_fused(model.file(), {2, false}), model.manifest.model};
  };
  static const std::array<txport_engine_handle, 2> engines{open(false), open(true)};
  return engines.at(choice);
}

struct Session {
  std::array<txport_engine_memory*, 2> memories{};
  std::array<txport_engine_state*, 2> states{};
  std::array<std::int64_t, 2> rows{};
  txport_beam_search* search = nullptr;
  std::array<txport_hypotheses*, 4> sentences{};

  Session() = default;
  ~Session() {
    txport_beam_search_free(search);
    for (txport_hypotheses* sentence : sentences) txport_hypotheses_free(sentence);
    for (txport_engine_memory* memory : memories) txport_engine_memory_free(memory);
    for (txport_engine_state* state : states) txport_state_free(state);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
};

// Whether a call was not refused; all else than the caller's fault is the engine's.
bool done(txport_code code) {
  if (code != TXPORT_OK && code != TXPORT_INPUT_ERROR) std::abort();
  return code == TXPORT_OK;
}

// `count` numbers as a caller has them.
Ids numbers(Choices& choices, std::int64_t count, std::int64_t usual) {
  Ids result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(choices.number(usual));
  return result;
}

// As many as there must be numbers for: what is more has to be refused before they are read.
std::int64_t few(std::int64_t count) { return count < 0 || count > 16 ? 0 : count; }

bool encode(Session& session, Choices& choices, std::size_t slot) {
  txport_engine_memory_free(std::exchange(session.memories.at(slot), nullptr));
  const std::int64_t batch = choices.number(2);
  const std::int64_t source = choices.number(4);
  const bool fits = batch > 0 && batch <= 16 && source > 0 && source <= 80;
  const Ids ids = numbers(choices, fits ? batch * source : 1, 5);
  const Ids lengths = numbers(choices, fits ? batch : 1, 2);
  return done(
      txport_engine_encode(&engine(slot), ids.data(), lengths.data(), batch, source, &session.memories.at(slot)));
}

bool allocate(Session& session, Choices& choices, std::size_t slot) {
  txport_state_free(std::exchange(session.states.at(slot), nullptr));
  const std::int64_t rows = choices.number(1);
  const std::int64_t source = choices.number(8);
  const std::int64_t target = choices.number(16);
  const auto logits = static_cast<std::int32_t>(choices.below(2));
  const std::int64_t top = choices.number(4);
  session.rows.at(slot) = rows;
  return done(txport_engine_allocate(&engine(slot), rows, source, target, logits, top, &session.states.at(slot)));
}

bool read(txport_engine_state* state, std::int64_t rows, Choices& choices) {
  const std::int64_t capacity = choices.number(64);
  const std::int64_t room = std::clamp<std::int64_t>(capacity, 0, 64) * (state == nullptr ? 0 : rows);
  const auto ids = std::make_unique<std::int64_t[]>(static_cast<std::size_t>(room));
  const auto finished = std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(state == nullptr ? 0 : rows));
  std::int64_t steps = 0;
  if (!done(txport_state_read(state, ids.get(), capacity, &steps, finished.get()))) return false;
  for (std::int64_t i = 0; i < steps * rows; ++i) {
    if (ids[static_cast<std::size_t>(i)] < 0 || ids[static_cast<std::size_t>(i)] >= kVocabulary) std::abort();
  }
  return true;
}

bool move(Session& session, Choices& choices, std::size_t slot) {
  const std::int64_t count = choices.number(2);
  const Ids rows = numbers(choices, few(count), 0);
  txport_engine_state* next = nullptr;
  if (!done(txport_state_moved(session.states.at(slot), count, rows.data(), choices.number(16), &next))) return false;
  txport_state_free(std::exchange(session.states.at(slot), next));
  session.rows.at(slot) = count;
  return true;
}

bool reorder(Session& session, Choices& choices, std::size_t slot) {
  const std::int64_t count = few(session.rows.at(slot)) + (choices.below(8) == 0 ? 1 : 0);
  const Ids rows = numbers(choices, few(count), 0);
  return done(txport_state_reorder(session.states.at(slot), count, rows.data()));
}

bool score(const Session& session, Choices& choices, std::size_t slot) {
  const std::int64_t count = choices.number(1);
  const Ids rows = numbers(choices, few(count), 0);
  const Ids ids = numbers(choices, few(count), 0);
  std::vector<double> found(rows.size());
  txport_engine_state* state = session.states.at(slot);
  return done(txport_state_log_probabilities(state, count, rows.data(), ids.data(), found.data()));
}

bool best(const Session& session, Choices& choices, std::size_t slot) {
  const std::int64_t k = choices.number(4);
  txport_engine_state* state = session.states.at(slot);
  const bool fits = state != nullptr && k > 0 && k <= kVocabulary;
  const auto rows = static_cast<std::size_t>(fits ? session.rows.at(slot) : 0);
  const std::size_t count = rows * static_cast<std::size_t>(fits ? k : 0);
  Ids ids(count, -1);
  std::vector<float> logits(count);
  std::vector<double> normaliser(rows);
  if (!done(txport_state_top(state, k, ids.data(), logits.data(), normaliser.data()))) return false;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= kVocabulary) std::abort();
  }
  return true;
}

bool begin_search(Session& session, Choices& choices, std::size_t slot) {
  txport_beam_search_free(std::exchange(session.search, nullptr));
  txport_beam_settings settings = TXPORT_BEAM_SETTINGS_INIT;
  settings.beam = choices.number(2);
  settings.n_best = choices.number(1);
  settings.early_stopping = choices.number(1);
  settings.no_repeat_ngram = choices.number(0);
  settings.forced_end = choices.number(0);
  const Ids ends = numbers(choices, 1, 5);
  settings.end_ids = {ends.data(), choices.below(2)};
  settings.bad_words = &settings.end_ids;
  settings.bad_word_count = choices.below(2);
  return done(txport_beam_search_create(&engine(slot), &settings, &session.search));
}

bool begin_sentence(Session& session, Choices& choices) {
  txport_hypotheses*& sentence = session.sentences.at(choices.below(4));
  txport_hypotheses_free(std::exchange(sentence, nullptr));
  txport_beam_sentence fields = TXPORT_BEAM_SENTENCE_INIT;
  fields.limit = choices.number(4);
  fields.min_length = choices.number(0);
  const Ids prefix = numbers(choices, 2, 5);
  fields.prefix = {prefix.data(), choices.below(3)};
  fields.forced = choices.number(0);
  return done(txport_hypotheses_create(session.search, &fields, &sentence));
}

bool search(Session& session, Choices& choices, std::size_t slot) {
  std::array<txport_hypotheses*, 4> given{};
  for (txport_hypotheses*& each : given) {
    const std::size_t which = choices.below(5);
    each = which < 4 ? session.sentences.at(which) : nullptr;
  }
  std::array<std::uint8_t, 4> ended{};
  std::int64_t steps = 0;
  const std::int64_t count = choices.number(1);
  if (count > 4) return false;
  if (!done(txport_state_search(session.states.at(slot), session.search, count, given.data(), choices.number(2), &steps,
                                ended.data()))) {
    return false;
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const std::int64_t* ids = nullptr;
    const double* scores = nullptr;
    std::int64_t length = 0;
    double score = 0;
    if (ended.at(i) == 0 || !done(txport_hypotheses_answer(given.at(i), 0, &ids, &scores, &length, &score))) continue;
    for (std::int64_t at = 0; at < length; ++at) {
      if (ids[at] < 0 || ids[at] >= kVocabulary || std::isnan(scores[at])) std::abort();
    }
  }
  return true;
}

bool change(Session& session, Choices& choices, std::size_t slot, bool place) {
  txport_engine_state* state = session.states.at(slot);
  const std::int64_t count = choices.number(1);
  const Ids rows = numbers(choices, few(count), 0);
  const Ids second = numbers(choices, few(count), 0);
  if (place) {
    const Ids limits = numbers(choices, few(count), 16);
    return done(txport_state_place(state, count, rows.data(),
                                   session.memories.at(choices.below(8) == 0 ? 1 - slot : slot), second.data(),
                                   limits.data()));
  }
  std::vector<std::uint8_t> finished;
  for (std::size_t i = 0; i < rows.size(); ++i) finished.push_back(static_cast<std::uint8_t>(choices.below(2)));
  return done(txport_state_override(state, count, rows.data(), second.data(), finished.data()));
}

bool restrict_rows(const Session& session, Choices& choices, std::size_t slot) {
  const std::int64_t count = choices.number(1);
  const Ids rows = numbers(choices, few(count), 0);
  Ids ends;
  Ids words;
  for (std::int64_t i = 0; i < few(count); ++i) {                            // mostly ascending
    std::uint64_t word = static_cast<std::uint64_t>(choices.number(1)) - 1;  // any number: sums may pass the last one
    const bool is_long = choices.below(4) == 0;
    for (std::size_t more = is_long ? choices.below(kVocabulary) : choices.below(6); more > 0; --more) {
      words.push_back(static_cast<std::int64_t>(word));
      word += 1 + (is_long ? 0 : choices.below(9));
    }
    ends.push_back(choices.below(16) == 0 ? -1 : static_cast<std::int64_t>(words.size()));
  }
  return done(txport_state_restrict(session.states.at(slot), count, rows.data(), ends.data(), words.data()));
}

bool call(Session& session, Choices& choices) {
  const std::size_t slot = choices.below(8) == 0 ? 1 : 0;
  txport_engine_state* state = session.states.at(slot);
  const std::int64_t rows = session.rows.at(slot);
  switch (choices.below(21)) {
    case 0:
      return encode(session, choices, slot);
    case 1:
      return allocate(session, choices, slot);
    case 2:
    case 3:
      return change(session, choices, slot, true);
    case 4:
    case 5:
      return change(session, choices, slot, false);
    case 6:
      return read(state, rows, choices);
    case 7:
      return move(session, choices, slot);
    case 8: {
      const std::int64_t count = choices.number(1);
      const Ids which = numbers(choices, few(count), 0);
      const auto logits = std::make_unique<float[]>(which.size() * kVocabulary);
      return done(txport_state_logits(state, count, which.data(), logits.get()));
    }
    case 9:
      return txport_engine_first_target(&engine(slot), choices.number(8)) >= 32;
    case 10:
      return reorder(session, choices, slot);
    case 11:
      return score(session, choices, slot);
    case 12:
      return best(session, choices, slot);
    case 13:
      return begin_search(session, choices, slot);
    case 14:
      return begin_sentence(session, choices);
    case 15:
    case 16:
      return search(session, choices, slot);
    case 17:
      return restrict_rows(session, choices, slot);
    default:
      return done(txport_state_step(state, choices.number(1))) && read(state, rows, choices);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  Choices choices(bytes, size);
  Session session;
  for (int calls = 0; choices.any() && calls < 200; ++calls) {
    static_cast<void>(call(session, choices));
  }
  return 0;
}
