// The C ABI of core::Translator.

#include "txport/txport.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "abi/guard.hpp"
#include "abi/options.hpp"
#include "errors.hpp"
#include "system/system.hpp"
#include "translator.hpp"

// A stream shares ownership of its translator, so either may be closed first.
struct txport_translator {
  std::shared_ptr<const txport::core::Translator> translator;
};

struct txport_result {
  // One translation. Spans and word pairs are copies of the alignment in the structs of the C ABI.
  struct Sentence {
    txport::core::Translation translation;
    std::array<std::vector<txport_span>, 4> spans;  // indexed by txport_spans
    std::vector<txport_word_pair> words;
    std::optional<txport::core::FloatMatrix> embedding;
    std::unique_ptr<txport_result> hypotheses;  // null for a single translation
  };
  std::vector<Sentence> sentences;
  std::optional<std::string> document{};
  std::vector<txport_part> parts{};  // of a document
};

struct txport_stream {
  std::shared_ptr<const txport::core::Translator> translator;
  txport::core::PieceStream pieces;
  txport::core::Piece last{};  // owner of the text of the last token
};

struct txport_pending {
  // A code and a message instead of an exception, since the waiting thread is not the decoding thread.
  struct Outcome {
    txport_code code = TXPORT_OK;
    std::string message;
    txport::core::Translation translation;
  };
  std::shared_ptr<txport::core::Ticket> ticket;
  std::future<Outcome> answer;                    // for requests without `done`
  const unsigned forked = txport::core::forks();  // value of forks() at construction
};

namespace {

using txport::abi::fail;
using txport::abi::guarded;
using txport::abi::read_options;
using txport::abi::required;
using txport::abi::unless_null;
using txport::core::CheckFailed;
using txport::core::Ids;
using txport::core::InputError;
using txport::core::Options;
using Sentence = txport_result::Sentence;
using txport::core::Translation;
using txport::core::Translator;

const Translator& required(const txport_translator* translator) {
  return *required(translator, "translator").translator;
}

std::optional<std::int64_t> unless_zero(std::int32_t value) {
  return value == 0 ? std::nullopt : std::optional<std::int64_t>(value);
}

std::string_view view_of(const char* text, std::size_t length) {
  return {text, length == SIZE_MAX ? std::strlen(text) : length};
}

// Return views of texts of the application. `name` is the name of the argument.
std::vector<std::string_view> views_of(const char* const* texts, const std::size_t* lengths, std::size_t count,
                                       const char* name) {
  if (count > 0) required(texts, name);
  std::vector<std::string_view> views;
  for (std::size_t i = 0; i < count; ++i) {
    if (texts[i] == nullptr) throw InputError(name + ("[" + std::to_string(i) + "] is NULL: give a text"));
    views.push_back(view_of(texts[i], lengths == nullptr ? SIZE_MAX : lengths[i]));
  }
  return views;
}

// Copy a field of txport_options to an option, according to its kind. Optional kinds get no value if the field is 0 or
// NULL.
template <typename T, int kind, typename Field>
void set(Options::Maybe<T, kind>& option, Field field, const txport_options& /*all*/) {
  if constexpr (std::is_same_v<T, bool>) {
    if (field != 0) option = field > 0;
  } else if constexpr (std::is_pointer_v<Field> && !std::is_same_v<T, std::string>) {
    if (field != nullptr) option = *field;
  } else if (field != Field{}) {
    option = field;
  }
}
void set(Options::Count& option, std::int64_t field, const txport_options& /*all*/) { option = field; }
void set(Options::Flag& option, std::int32_t field, const txport_options& /*all*/) { option = field != 0; }
void set(Options::Text& option, const char* field, const txport_options& /*all*/) { option = unless_null(field); }
Ids ids_of(const txport_ids& field) {
  if (field.count == 0) return {};
  required(field.values, "txport_ids.values");
  return {field.values, field.values + field.count};
}

void set(Options::List& option, const txport_ids& field, const txport_options& /*all*/) { option = ids_of(field); }
void set(Options::Words& option, const txport_words& field, const txport_options& /*all*/) {
  for (const std::string_view word : views_of(field.texts, nullptr, field.text_count, "bad_words.texts")) {
    option.emplace_back(std::string(word));
  }
  if (field.sequence_count > 0) required(field.sequences, "bad_words.sequences");
  for (std::size_t i = 0; i < field.sequence_count; ++i) option.emplace_back(ids_of(field.sequences[i]));
}
void set(Options::Prefix& option, const char* field, const txport_options& all) {
  if (all.prefix_count > 0) {
    required(all.prefix_ids, "prefix_ids");
    if (field != nullptr) throw InputError("prefix and prefix_ids are both set: give one of them");
    option = txport::core::Ids(all.prefix_ids, all.prefix_ids + all.prefix_count);
  } else {
    option = unless_null(field).value_or("");
  }
}

Options options_of(const txport_options* options) {
  constexpr std::size_t kFirst = offsetof(txport_options, alignments);  // size of the first version of the struct
  const txport_options fields = read_options(options, kFirst, "txport_options");
  Options result;
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a field and a member with the same name
#define TXPORT_OPTION(kind, name, help) set(result.name, fields.name, fields);
#include "txport/options.inc"
#undef TXPORT_OPTION
  return result;
}

txport::core::TranslatorOptions options_of(const txport_translator_options* options) {
  constexpr std::size_t kFirst = offsetof(txport_translator_options, engine);  // size of the first version
  const auto fields = read_options(options, kFirst, "txport_translator_options");
  txport::core::TranslatorOptions result;
  result.where.device = unless_null(fields.device).value_or("auto");
  result.where.engine = unless_null(fields.engine).value_or("auto");
  result.where.lowering = unless_null(fields.lowering).value_or("");
  result.where.trust_engines = fields.trust_engines != 0;
  result.verify = fields.verify != 0;
  result.threads = fields.threads;
  result.batch = unless_zero(fields.batch);
  if (fields.batch_tokens != 0) result.batch_tokens = fields.batch_tokens;
  if (fields.workers != 0) result.workers = fields.workers == -1 ? 0 : fields.workers;
  result.warn = txport::abi::listener(fields.warning, fields.warning_user);
  return result;
}

std::unique_ptr<txport_stream> open_stream(const txport_translator* translator, const char* text, std::size_t length,
                                           const txport_options* options) {
  const std::shared_ptr<const Translator> shared = required(translator, "translator").translator;
  const std::string_view view = view_of(&required(text, "text"), length);
  txport::core::PieceStream pieces(*shared, view, options_of(options));
  return std::make_unique<txport_stream>(txport_stream{shared, std::move(pieces)});
}

// Return copies of id sequences of the application. `name` is the name of the argument.
std::vector<Ids> ids_of(const std::int64_t* const* all, const std::size_t* lengths, std::size_t count, const char* name,
                        const char* lengths_name) {
  if (count > 0) required(all, name);
  if (count > 0) required(lengths, lengths_name);
  std::vector<Ids> ids;
  for (std::size_t i = 0; i < count; ++i) {
    if (all[i] == nullptr) throw InputError(name + ("[" + std::to_string(i) + "] is NULL: give ids"));
    ids.emplace_back(all[i], all[i] + lengths[i]);
  }
  return ids;
}

// Vectors that an application gives; `name` is the argument's.
txport::core::FloatMatrix matrix_of(const txport_features& features, const std::string& name) {
  const std::size_t size = features.count * features.size;
  if (features.size != 0 && size / features.size != features.count) throw InputError(name + " has too many vectors");
  if (size > 0) required(features.values, (name + ".values").c_str());
  return {features.count, features.size, {features.values, features.values + size}};
}

Sentence sentence_of(Translation translation) {
  Sentence output;
  if (translation.alignment) {
    const txport::core::Alignment& from = *translation.alignment;
    const std::array all{&from.source_spans, &from.target_spans, &from.source_words, &from.target_words};
    for (std::size_t which = 0; which < all.size(); ++which) {
      for (const txport::core::Span& span : *all[which]) output.spans[which].push_back({span.start, span.end});
    }
    for (const txport::core::WordPair& pair : from.words) output.words.push_back({pair.source, pair.target});
  }
  if (!translation.hypotheses.empty()) {
    output.hypotheses = std::make_unique<txport_result>();
    for (Translation& each : std::exchange(translation.hypotheses, {})) {
      output.hypotheses->sentences.push_back(sentence_of(std::move(each)));
    }
  }
  output.translation = std::move(translation);
  return output;
}

// Store a new result in *result, which the application owns.
void return_result(txport_result** result, std::vector<Sentence> sentences) {
  *result = std::make_unique<txport_result>(txport_result{std::move(sentences)}).release();
}

void return_result(txport_result** result, std::vector<Translation> translations) {
  std::vector<Sentence> sentences;
  sentences.reserve(translations.size());
  for (Translation& translation : translations) sentences.push_back(sentence_of(std::move(translation)));
  return_result(result, std::move(sentences));
}

void return_result(txport_result** result, txport::core::Document document) {
  auto output = std::make_unique<txport_result>();
  for (txport::core::Part& part : document.parts) {
    output->parts.push_back(
        {{part.source.start, part.source.end}, {part.target.start, part.target.end}, part.cut ? 1 : 0});
    output->sentences.push_back(sentence_of(std::move(part.translation)));
  }
  output->document = std::move(document.text);
  *result = output.release();
}

void return_result(txport_result** result, std::vector<txport::core::Score> scores) {
  std::vector<Sentence> sentences(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    sentences[i].translation.ids = std::move(scores[i].ids);
    sentences[i].translation.scores = std::move(scores[i].scores);
  }
  return_result(result, std::move(sentences));
}

void return_result(txport_result** result, std::vector<txport::core::FloatMatrix> embeddings) {
  std::vector<Sentence> sentences(embeddings.size());
  for (std::size_t i = 0; i < embeddings.size(); ++i) sentences[i].embedding = std::move(embeddings[i]);
  return_result(result, std::move(sentences));
}

// Return the address of a member, or null if there is no owner or no value.
template <typename Owner, typename T>
const T* member(const Owner* owner, T Owner::*name) noexcept {
  return owner == nullptr ? nullptr : &(owner->*name);
}
template <typename Owner, typename T>
const T* member(const Owner* owner, std::optional<T> Owner::*name) noexcept {
  return owner == nullptr || !(owner->*name) ? nullptr : &*(owner->*name);
}

// Return a sentence of a result, or null.
const Sentence* entry(const txport_result* result, std::size_t index) noexcept {
  return result == nullptr || index >= result->sentences.size() ? nullptr : &result->sentences[index];
}

const Translation* sentence(const txport_result* result, std::size_t index) noexcept {
  return member(entry(result, index), &Sentence::translation);
}

const txport::core::Alignment* alignment(const txport_result* result, std::size_t index) noexcept {
  return member(sentence(result, index), &Translation::alignment);
}

int flag_of(const txport_result* result, std::size_t index, bool Translation::*name) noexcept {
  const bool* value = member(sentence(result, index), name);
  return value != nullptr && *value ? 1 : 0;
}

const char* text_of(const std::string* text, std::size_t* length) noexcept {
  if (length != nullptr) *length = text == nullptr ? 0 : text->size();
  return text == nullptr ? nullptr : text->c_str();
}

const float* matrix_of(const txport::core::FloatMatrix* matrix, std::size_t* rows, std::size_t* columns) noexcept {
  if (rows != nullptr) *rows = matrix == nullptr ? 0 : matrix->rows;
  if (columns != nullptr) *columns = matrix == nullptr ? 0 : matrix->columns;
  return matrix == nullptr ? nullptr : matrix->values.data();
}

template <typename T>
const T* array_of(const std::vector<T>* values, std::size_t* length) noexcept {
  if (length != nullptr) *length = values == nullptr ? 0 : values->size();
  return values == nullptr ? nullptr : values->data();
}

// Call the callback with a token, and return whether to continue. Exceptions are caught, so that they do not end the
// process.
bool send_token(txport_token token, void* user, const txport::core::Piece& piece) {
  try {
    if (token(user, piece.id, piece.text.c_str(), piece.text.size(), piece.score.value_or(0)) == 0) return true;
    fail(TXPORT_CANCELLED, "the callback stopped the translation");
  } catch (...) {
    fail(TXPORT_CANCELLED, "the callback threw an exception");
  }
  return false;
}

// Delete a translator. The last owner may be a callback in the thread of its queue, which must end before the
// translator can be deleted; then a new thread deletes it.
void close(const Translator* translator) {
  if (translator->queue().is_own_thread()) {
    std::thread([translator] { delete translator; }).detach();
  } else {
    delete translator;
  }
}

using Listener = txport::core::Listener<Translation, txport::core::Piece>;

// Return the code of an error and store its message for this thread.
txport_code code_of(const std::exception_ptr& error) {
  return guarded([&]() -> txport_code { std::rethrow_exception(error); });
}

// Return a listener that calls the callbacks of the application. Their exceptions are ignored, since they must not
// throw.
Listener listener_of(const txport_request& request) {
  Listener listener;
  if (request.token != nullptr) {
    listener.part = [token = request.token, user = request.user](const txport::core::Piece& piece) {
      if (!send_token(token, user, piece)) throw txport::core::Cancelled(txport_message());
    };
  }
  const auto tell = [done = request.done, user = request.user](txport_code code, txport_result* result) {
    try {
      done(user, code, result);
    } catch (...) {
    }
  };
  listener.answer = [tell](Translation translation) {
    std::vector<Translation> one;
    one.push_back(std::move(translation));
    txport_result* result = nullptr;
    return_result(&result, std::move(one));
    tell(TXPORT_OK, result);
  };
  listener.failure = [tell](const std::exception_ptr& error) { tell(code_of(error), nullptr); };
  return listener;
}

using Outcome = txport_pending::Outcome;

// Let the listener store its outcome in a future, and return the future.
std::future<Outcome> future_of(Listener& listener) {
  const auto promise = std::make_shared<std::promise<Outcome>>();
  listener.answer = [promise](Translation translation) { promise->set_value({TXPORT_OK, "", std::move(translation)}); };
  listener.failure = [promise](const std::exception_ptr& error) {
    const txport_code code = code_of(error);
    promise->set_value({code, txport_message(), {}});
  };
  return promise->get_future();
}

// Submit a request: `start` passes it to the queue, with the listener and the time limit.
template <typename Start>
txport_code submit(const txport_request* request, txport_pending** pending, const Start& start) {
  const auto fields = read_options(request, sizeof(txport_request), "txport_request");
  if (pending != nullptr) *pending = nullptr;
  if (fields.done == nullptr) required(pending, "pending");
  auto output = std::make_unique<txport_pending>();
  Listener listener = listener_of(fields);
  if (fields.done == nullptr) output->answer = future_of(listener);
  output->ticket = start(std::move(listener), fields.seconds == 0 ? std::nullopt : std::optional(fields.seconds));
  if (pending != nullptr) *pending = output.release();
  return TXPORT_OK;
}

// Wait up to `seconds` (negative: without limit), and return whether the future is ready.
bool wait(const std::future<Outcome>& answer, double seconds) {
  constexpr double kMaxSeconds = 1e9;  // longer times exceed the range of clocks and are unlimited
  if (seconds >= 0 && seconds < kMaxSeconds) {
    return answer.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
  }
  answer.wait();
  return true;
}

// Call a function with the translator, and store its results in *result.
template <typename Answer>
txport_code answer(const txport_translator* translator, txport_result** result, const Answer& answers) noexcept {
  return guarded([&] {
    required(result, "result") = nullptr;
    return_result(result, answers(required(translator)));
    return TXPORT_OK;
  });
}

txport_translator* opened(const txport::core::Bundle& bundle, const txport_translator_options* options) {
  std::shared_ptr<const Translator> translator(new Translator(bundle, options_of(options)), close);
  return std::make_unique<txport_translator>(txport_translator{std::move(translator)}).release();
}

}  // namespace

txport_code txport_open(const char* bundle, const txport_translator_options* options,
                        txport_translator** translator) noexcept {
  return guarded([&] {
    required(translator, "translator") = nullptr;
    *translator = opened(txport::core::Bundle(&required(bundle, "bundle")), options);
    return TXPORT_OK;
  });
}

txport_code txport_open_memory(const void* bundle, size_t size, const txport_translator_options* options,
                               txport_translator** translator) noexcept {
  return guarded([&] {
    required(translator, "translator") = nullptr;
    const auto* bytes = &required(static_cast<const char*>(bundle), "bundle");
    *translator = opened(txport::core::Bundle::of_memory({bytes, size}), options);
    return TXPORT_OK;
  });
}

void txport_close(txport_translator* translator) noexcept {
  // Streams may still use the translator.
  if (translator != nullptr) translator->translator->queue().close(false);
  delete translator;
}

txport_code txport_manifest(const txport_translator* translator, const char** json) noexcept {
  return guarded([&] {
    required(json, "json") = required(translator).manifest().text.c_str();
    return TXPORT_OK;
  });
}

txport_code txport_engine(const txport_translator* translator, const char** name) noexcept {
  return guarded([&] {
    required(name, "name") = required(translator).engine().name().c_str();
    return TXPORT_OK;
  });
}

txport_code txport_self_check(const txport_translator* translator) noexcept {
  return guarded([&] {
    const std::string difference = required(translator).self_check();
    if (!difference.empty()) throw CheckFailed(difference);
    return TXPORT_OK;
  });
}

txport_code txport_translate(const txport_translator* translator, const char* const* texts, const std::size_t* lengths,
                             std::size_t count, const txport_options* options, txport_result** result) noexcept {
  return answer(translator, result, [&](const Translator& opened) {
    const auto sentences = views_of(texts, lengths, count, "texts");
    return opened.translate(sentences, options_of(options));
  });
}

txport_code txport_translate_document(const txport_translator* translator, const char* text, std::size_t length,
                                      const txport_options* options, txport_result** result) noexcept {
  return answer(translator, result, [&](const Translator& opened) {
    return opened.translate_document(view_of(&required(text, "text"), length), options_of(options));
  });
}

txport_code txport_translate_ids(const txport_translator* translator, const std::int64_t* const* sources,
                                 const std::size_t* lengths, std::size_t count, const txport_options* options,
                                 txport_result** result) noexcept {
  return answer(translator, result, [&](const Translator& opened) {
    const std::vector<Ids> ids = ids_of(sources, lengths, count, "sources", "lengths");
    return opened.translate_ids(ids, options_of(options));
  });
}

txport_code txport_translate_features(const txport_translator* translator, const txport_features* features,
                                      std::size_t count, const txport_options* options,
                                      txport_result** result) noexcept {
  return answer(translator, result, [&](const Translator& opened) {
    if (count > 0) required(features, "features");
    std::vector<txport::core::FloatMatrix> arrays;
    for (std::size_t i = 0; i < count; ++i) {
      arrays.push_back(matrix_of(features[i], "features[" + std::to_string(i) + "]"));
    }
    return opened.translate_features(std::move(arrays), options_of(options));
  });
}

txport_code txport_score(const txport_translator* translator, const char* const* texts, const std::size_t* lengths,
                         const char* const* targets, const std::size_t* target_lengths, std::size_t count,
                         const txport_options* options, txport_result** result) noexcept {
  return answer(translator, result, [&](const Translator& opened) {
    const auto translations = views_of(targets, target_lengths, count, "targets");
    return opened.score(views_of(texts, lengths, count, "texts"), {translations.begin(), translations.end()},
                        options_of(options));
  });
}

txport_code txport_score_ids(const txport_translator* translator, const std::int64_t* const* sources,
                             const std::size_t* lengths, const std::int64_t* const* targets,
                             const std::size_t* target_lengths, std::size_t count, txport_result** result) noexcept {
  return answer(translator, result, [&](const Translator& opened) {
    const std::vector<Ids> translations = ids_of(targets, target_lengths, count, "targets", "target_lengths");
    return opened.score_ids(ids_of(sources, lengths, count, "sources", "lengths"), translations);
  });
}

txport_code txport_embed(const txport_translator* translator, const char* const* texts, const std::size_t* lengths,
                         std::size_t count, std::int32_t pooled, const txport_options* options,
                         txport_result** result) noexcept {
  return answer(translator, result, [&](const Translator& opened) {
    return opened.embed(views_of(texts, lengths, count, "texts"), options_of(options), pooled != 0);
  });
}

std::size_t txport_result_count(const txport_result* result) noexcept {
  return result == nullptr ? 0 : result->sentences.size();
}

const char* txport_result_text(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  return text_of(member(sentence(result, index), &Translation::text), length);
}

const std::int64_t* txport_result_ids(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  return array_of(member(sentence(result, index), &Translation::ids), length);
}

const double* txport_result_scores(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  return array_of(member(sentence(result, index), &Translation::scores), length);
}

const char* txport_result_document(const txport_result* result, std::size_t* length) noexcept {
  return text_of(member(result, &txport_result::document), length);
}

const txport_part* txport_result_part(const txport_result* result, std::size_t index) noexcept {
  return result == nullptr || index >= result->parts.size() ? nullptr : &result->parts[index];
}

const std::int64_t* txport_result_alignment(const txport_result* result, std::size_t index,
                                            std::size_t* length) noexcept {
  return array_of(member(alignment(result, index), &txport::core::Alignment::tokens), length);
}

const double* txport_result_times(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  const txport::core::Alignment* found = alignment(result, index);
  return array_of(found == nullptr || found->times.empty() ? nullptr : &found->times, length);
}

const txport_word_pair* txport_result_word_pairs(const txport_result* result, std::size_t index,
                                                 std::size_t* length) noexcept {
  return array_of(alignment(result, index) == nullptr ? nullptr : &entry(result, index)->words, length);
}

const char* txport_result_pharaoh(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  return text_of(member(alignment(result, index), &txport::core::Alignment::pharaoh), length);
}

const txport_span* txport_result_spans(const txport_result* result, std::size_t index, txport_spans which,
                                       std::size_t* length) noexcept {
  const auto number = static_cast<std::size_t>(which);
  const Sentence* found = alignment(result, index) == nullptr ? nullptr : entry(result, index);
  if (found != nullptr && number >= found->spans.size()) found = nullptr;
  return array_of(found == nullptr ? nullptr : &found->spans[number], length);
}

const float* txport_result_attention(const txport_result* result, std::size_t index, std::size_t* rows,
                                     std::size_t* columns) noexcept {
  return matrix_of(member(sentence(result, index), &Translation::attention), rows, columns);
}

const float* txport_result_embedding(const txport_result* result, std::size_t index, std::size_t* rows,
                                     std::size_t* columns) noexcept {
  return matrix_of(member(entry(result, index), &Sentence::embedding), rows, columns);
}

int txport_result_truncated(const txport_result* result, std::size_t index) noexcept {
  return flag_of(result, index, &Translation::truncated);
}

int txport_result_finished(const txport_result* result, std::size_t index) noexcept {
  return flag_of(result, index, &Translation::finished);
}

int txport_result_looped(const txport_result* result, std::size_t index) noexcept {
  return flag_of(result, index, &Translation::looped);
}

const double* txport_result_score(const txport_result* result, std::size_t index) noexcept {
  return member(sentence(result, index), &Translation::score);
}

const txport_result* txport_result_hypotheses(const txport_result* result, std::size_t index) noexcept {
  const Sentence* found = entry(result, index);
  return found == nullptr ? nullptr : found->hypotheses.get();
}

void txport_result_free(txport_result* result) noexcept { delete result; }

txport_code txport_translate_stream(const txport_translator* translator, const char* text, std::size_t length,
                                    const txport_options* options, txport_token token, void* user) noexcept {
  return guarded([&] {
    if (token == nullptr) throw InputError("the argument token is NULL: give a function");
    const auto stream = open_stream(translator, text, length, options);
    while (const auto piece = stream->pieces.next()) {
      if (!send_token(token, user, *piece)) return TXPORT_CANCELLED;
    }
    return TXPORT_OK;
  });
}

txport_code txport_stream_open(const txport_translator* translator, const char* text, std::size_t length,
                               const txport_options* options, txport_stream** stream) noexcept {
  return guarded([&] {
    required(stream, "stream") = nullptr;
    *stream = open_stream(translator, text, length, options).release();
    return TXPORT_OK;
  });
}

txport_code txport_stream_open_features(const txport_translator* translator, const txport_features* features,
                                        const txport_options* options, txport_stream** stream) noexcept {
  return guarded([&] {
    required(stream, "stream") = nullptr;
    const std::shared_ptr<const Translator> shared = required(translator, "translator").translator;
    txport::core::PieceStream pieces(*shared, matrix_of(required(features, "features"), "features"),
                                     options_of(options));
    *stream = std::make_unique<txport_stream>(txport_stream{shared, std::move(pieces)}).release();
    return TXPORT_OK;
  });
}

txport_code txport_stream_next(txport_stream* stream, std::int64_t* id, const char** text, std::size_t* length,
                               double* score) noexcept {
  return guarded([&] {
    txport_stream& opened = required(stream, "stream");
    required(id, "id");
    auto piece = opened.pieces.next();
    if (!piece) return TXPORT_END;
    opened.last = std::move(*piece);
    *id = opened.last.id;
    if (text != nullptr) *text = opened.last.text.c_str();
    if (length != nullptr) *length = opened.last.text.size();
    if (score != nullptr) *score = opened.last.score.value_or(0);
    return TXPORT_OK;
  });
}

void txport_stream_close(txport_stream* stream) noexcept { delete stream; }

txport_code txport_submit(const txport_translator* translator, const char* text, std::size_t length,
                          const txport_options* options, const txport_request* request,
                          txport_pending** pending) noexcept {
  return guarded([&] {
    return submit(request, pending, [&](Listener listener, std::optional<double> seconds) {
      const std::string_view view = view_of(&required(text, "text"), length);
      return required(translator).submit(view, options_of(options), std::move(listener), seconds);
    });
  });
}

txport_code txport_submit_features(const txport_translator* translator, const txport_features* features,
                                   const txport_options* options, const txport_request* request,
                                   txport_pending** pending) noexcept {
  return guarded([&] {
    return submit(request, pending, [&](Listener listener, std::optional<double> seconds) {
      auto array = matrix_of(required(features, "features"), "features");
      return required(translator).submit_features(std::move(array), options_of(options), std::move(listener), seconds);
    });
  });
}

txport_code txport_pending_wait(txport_pending* pending, double seconds, txport_result** result) noexcept {
  return guarded([&] {
    required(result, "result") = nullptr;
    std::future<Outcome>& answer = required(pending, "pending").answer;
    // A forked process does not have the decoding thread of its parent.
    if (pending->forked != txport::core::forks() && !(answer.valid() && wait(answer, 0))) {
      throw txport::core::EngineError("the request belongs to the parent process: submit it again in this one");
    }
    if (!answer.valid())
      throw InputError("the result was already returned, or it goes to `done`: wait for it only once");
    if (!wait(answer, seconds)) return TXPORT_WAITING;
    Outcome outcome = answer.get();
    if (outcome.code != TXPORT_OK) return fail(outcome.code, outcome.message.c_str());
    std::vector<Translation> one;
    one.push_back(std::move(outcome.translation));
    return_result(result, std::move(one));
    return TXPORT_OK;
  });
}

void txport_pending_cancel(txport_pending* pending) noexcept {
  if (pending != nullptr) pending->ticket->cancel();
}

void txport_pending_free(txport_pending* pending) noexcept { delete pending; }

txport_code txport_drain(const txport_translator* translator) noexcept {
  return guarded([&] {
    required(translator).queue().close(true);
    return TXPORT_OK;
  });
}
