// The C ABI over core::Translator: exceptions become codes and a message of the thread.

#include "txport/txport.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "abi/handles.hpp"
#include "errors.hpp"
#include "translator.hpp"

namespace {

using txport::core::BundleError;
using txport::core::CheckFailed;
using txport::core::EngineError;
using txport::core::Handles;
using txport::core::InputError;
using txport::core::MissingLibrary;
using txport::core::ResourceError;
using txport::core::Translation;
using txport::core::Translator;

// What a stream's last token points to lives here; the translator must outlive the stream.
struct Stream {
  std::shared_ptr<Translator> translator;
  txport::core::PieceStream pieces;
  txport::core::Piece last{};
};

using Translations = std::vector<Translation>;
using Translators = Handles<txport_translator, Translator>;
using Results = Handles<txport_result, Translations>;
using Streams = Handles<txport_stream, Stream>;

// Never destroyed: other threads may still translate while the process exits.
Translators& translators() {
  static auto* const all = new Translators;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  return *all;
}
Results& results() {
  static auto* const all = new Results;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  return *all;
}
Streams& streams() {
  static auto* const all = new Streams;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  return *all;
}

// Of a fixed size, so that to say "out of memory" needs none.
constexpr std::size_t kMessageBytes = 4096;
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): of each thread, as errno is
thread_local std::array<char, kMessageBytes> message{};

txport_code fail(txport_code code, const char* words) noexcept {
  std::strncpy(message.data(), words, kMessageBytes - 1);
  message.back() = '\0';
  return code;
}

// Run a body that may throw.
template <typename Body>
txport_code guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const InputError& error) {
    return fail(TXPORT_INPUT_ERROR, error.what());
  } catch (const BundleError& error) {
    return fail(TXPORT_BUNDLE_ERROR, error.what());
  } catch (const CheckFailed& error) {
    return fail(TXPORT_CHECK_FAILED, error.what());
  } catch (const ResourceError& error) {
    return fail(TXPORT_RESOURCE_ERROR, error.what());
  } catch (const EngineError& error) {
    return fail(TXPORT_ENGINE_ERROR, error.what());
  } catch (const MissingLibrary& error) {
    return fail(TXPORT_MISSING_LIBRARY, error.what());
  } catch (const std::bad_alloc&) {
    return fail(TXPORT_RESOURCE_ERROR, "out of memory: use a smaller batch, or free some");
  } catch (const std::exception& error) {
    return fail(TXPORT_INTERNAL_ERROR, error.what());
  } catch (...) {
    return fail(TXPORT_INTERNAL_ERROR, "an exception of an unknown kind");
  }
}

// As `guarded`, for functions that have no code to return.
template <typename Body>
void quietly(const Body& body) noexcept {
  guarded([&] {
    body();
    return TXPORT_OK;
  });
}

template <typename T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) throw InputError(std::string("the argument ") + name + " is NULL: give one");
  return *pointer;
}

template <typename Handle, typename Object>
std::shared_ptr<Object> opened(const Handles<Handle, Object>& handles, const Handle* handle, const char* name) {
  given(handle, name);
  auto object = handles.find(handle);
  if (object == nullptr) throw InputError(std::string("the ") + name + " is not open: it was closed, or never opened");
  return object;
}

// A copy of options that may be null, or of an older header; a newer one's could ask for what we do not know.
template <typename T>
T read_options(const T* options, std::size_t smallest, const char* name) {
  T result{};
  if (options == nullptr) return result;
  if (options->size > sizeof(T)) {
    throw InputError(std::string(name) + ".size is " + std::to_string(options->size) + ", but txport " +
                     txport_version() + " knows " + std::to_string(sizeof(T)) +
                     ": the application was compiled for a newer txport, install that");
  }
  if (options->size < smallest) {
    throw InputError(std::string(name) + ".size is " + std::to_string(options->size) + ": set it to sizeof(" + name +
                     ")");
  }
  std::memcpy(&result, options, options->size);
  return result;
}

std::optional<std::int64_t> unless_zero(std::int32_t value) {
  return value == 0 ? std::nullopt : std::optional<std::int64_t>(value);
}

std::optional<std::string> unless_null(const char* text) {
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

txport::core::Options options_of(const txport_options* options) {
  // The size of the first version of the struct.
  const auto asked = read_options(options, sizeof(txport_options), "txport_options");
  return {unless_zero(asked.max_length),
          asked.min_length,
          unless_null(asked.prefix),
          asked.scores != 0,
          asked.strict != 0,
          {unless_null(asked.source_language), unless_null(asked.target_language)}};
}

txport::core::TranslatorOptions options_of(const txport_translator_options* options) {
  constexpr std::size_t kFirst = offsetof(txport_translator_options, workers);  // the size of the first version
  const auto asked = read_options(options, kFirst, "txport_translator_options");
  txport::core::TranslatorOptions result;
  result.device = unless_null(asked.device).value_or("auto");
  result.lowering = unless_null(asked.lowering).value_or("");
  result.threads = asked.threads;
  result.batch = unless_zero(asked.batch);
  if (asked.batch_tokens != 0) result.batch_tokens = asked.batch_tokens;
  if (asked.workers != 0) result.workers = asked.workers == -1 ? 0 : asked.workers;
  if (asked.warning != nullptr) {
    result.warn = [warning = asked.warning, user = asked.warning_user](const std::string& words) {
      warning(user, words.c_str());
    };
  }
  return result;
}

std::string_view view_of(const char* text, std::size_t length) {
  return {text, length == SIZE_MAX ? std::strlen(text) : length};
}

std::shared_ptr<Stream> open_stream(const txport_translator* translator, const char* text, std::size_t length,
                                    const txport_options* options) {
  auto opened_translator = opened(translators(), translator, "translator");
  const std::string_view view = view_of(&given(text, "text"), length);
  txport::core::PieceStream pieces(*opened_translator, view, options_of(options));
  return std::make_shared<Stream>(Stream{std::move(opened_translator), std::move(pieces), {}});
}

// One sentence of a result, or a null pointer.
const Translation* sentence(const txport_result* result, std::size_t index) {
  const auto all = results().find(result);
  return all == nullptr || index >= all->size() ? nullptr : &(*all)[index];
}

template <typename T>
const T* array_of(const std::vector<T>* values, std::size_t* length) {
  if (length != nullptr) *length = values == nullptr ? 0 : values->size();
  return values == nullptr ? nullptr : values->data();
}

// The callback's answer: whether to go on. One that throws has broken its promise; that must not end the process.
bool take(txport_token token, void* user, const txport::core::Piece& piece) {
  try {
    if (token(user, piece.id, piece.text.c_str(), piece.text.size(), piece.score.value_or(0)) == 0) return true;
    fail(TXPORT_CANCELLED, "the callback asked to stop");
  } catch (...) {
    fail(TXPORT_CANCELLED, "the callback threw an exception");
  }
  return false;
}

}  // namespace

const char* txport_version(void) noexcept { return TXPORT_VERSION; }

const char* txport_message(void) noexcept { return message.data(); }

txport_code txport_open(const char* bundle, const txport_translator_options* options,
                        txport_translator** translator) noexcept {
  return guarded([&] {
    given(translator, "translator") = nullptr;
    given(bundle, "bundle");
    *translator = translators().add(std::make_shared<Translator>(bundle, options_of(options)));
    return TXPORT_OK;
  });
}

void txport_close(txport_translator* translator) noexcept {
  quietly([&] { translators().remove(translator); });
}

txport_code txport_manifest(const txport_translator* translator, const char** json) noexcept {
  return guarded([&] {
    given(json, "json") = opened(translators(), translator, "translator")->manifest().text.c_str();
    return TXPORT_OK;
  });
}

txport_code txport_engine(const txport_translator* translator, const char** name) noexcept {
  return guarded([&] {
    given(name, "name") = opened(translators(), translator, "translator")->engine().name().c_str();
    return TXPORT_OK;
  });
}

txport_code txport_self_check(const txport_translator* translator) noexcept {
  return guarded([&] {
    const std::string difference = opened(translators(), translator, "translator")->self_check();
    if (!difference.empty()) throw CheckFailed(difference);
    return TXPORT_OK;
  });
}

txport_code txport_translate(const txport_translator* translator, const char* const* texts, const std::size_t* lengths,
                             std::size_t count, const txport_options* options, txport_result** result) noexcept {
  return guarded([&] {
    given(result, "result") = nullptr;
    const auto opened_translator = opened(translators(), translator, "translator");
    if (count > 0) given(texts, "texts");
    std::vector<std::string_view> sentences;
    for (std::size_t i = 0; i < count; ++i) {
      if (texts[i] == nullptr) throw InputError("texts[" + std::to_string(i) + "] is NULL: give a text");
      sentences.push_back(view_of(texts[i], lengths == nullptr ? SIZE_MAX : lengths[i]));
    }
    *result =
        results().add(std::make_shared<Translations>(opened_translator->translate(sentences, options_of(options))));
    return TXPORT_OK;
  });
}

txport_code txport_translate_ids(const txport_translator* translator, const std::int64_t* const* sources,
                                 const std::size_t* lengths, std::size_t count, const std::int64_t* prefix,
                                 std::size_t prefix_length, const txport_options* options,
                                 txport_result** result) noexcept {
  return guarded([&] {
    given(result, "result") = nullptr;
    const auto opened_translator = opened(translators(), translator, "translator");
    if (count > 0) given(sources, "sources");
    if (count > 0) given(lengths, "lengths");
    if (prefix_length > 0) given(prefix, "prefix");
    std::vector<txport::core::Ids> ids;
    for (std::size_t i = 0; i < count; ++i) {
      if (sources[i] == nullptr) throw InputError("sources[" + std::to_string(i) + "] is NULL: give ids");
      ids.emplace_back(sources[i], sources[i] + lengths[i]);
    }
    const txport::core::Ids begin(prefix, prefix + prefix_length);
    *result = results().add(
        std::make_shared<Translations>(opened_translator->translate_ids(ids, begin, options_of(options))));
    return TXPORT_OK;
  });
}

std::size_t txport_result_count(const txport_result* result) noexcept {
  std::size_t count = 0;
  quietly([&] {
    if (const auto all = results().find(result)) count = all->size();
  });
  return count;
}

const char* txport_result_text(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  const char* text = nullptr;
  if (length != nullptr) *length = 0;
  quietly([&] {
    const Translation* found = sentence(result, index);
    if (found == nullptr) return;
    text = found->text.c_str();
    if (length != nullptr) *length = found->text.size();
  });
  return text;
}

const std::int64_t* txport_result_ids(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  const std::int64_t* ids = nullptr;
  quietly([&] {
    const Translation* found = sentence(result, index);
    ids = array_of(found == nullptr ? nullptr : &found->ids, length);
  });
  return ids;
}

const double* txport_result_scores(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  const double* scores = nullptr;
  quietly([&] {
    const Translation* found = sentence(result, index);
    scores = array_of(found == nullptr || !found->scores ? nullptr : &*found->scores, length);
  });
  return scores;
}

int txport_result_truncated(const txport_result* result, std::size_t index) noexcept {
  int truncated = 0;
  quietly([&] {
    const Translation* found = sentence(result, index);
    truncated = found != nullptr && found->truncated ? 1 : 0;
  });
  return truncated;
}

void txport_result_free(txport_result* result) noexcept {
  quietly([&] { results().remove(result); });
}

txport_code txport_translate_stream(const txport_translator* translator, const char* text, std::size_t length,
                                    const txport_options* options, txport_token token, void* user) noexcept {
  return guarded([&] {
    if (token == nullptr) throw InputError("the argument token is NULL: give a function");
    const auto stream = open_stream(translator, text, length, options);
    while (const auto piece = stream->pieces.next()) {
      if (!take(token, user, *piece)) return TXPORT_CANCELLED;
    }
    return TXPORT_OK;
  });
}

txport_code txport_stream_open(const txport_translator* translator, const char* text, std::size_t length,
                               const txport_options* options, txport_stream** stream) noexcept {
  return guarded([&] {
    given(stream, "stream") = nullptr;
    *stream = streams().add(open_stream(translator, text, length, options));
    return TXPORT_OK;
  });
}

txport_code txport_stream_next(txport_stream* stream, std::int64_t* id, const char** text, std::size_t* length,
                               double* score) noexcept {
  return guarded([&] {
    const auto opened_stream = opened<txport_stream, Stream>(streams(), stream, "stream");
    given(id, "id");
    auto piece = opened_stream->pieces.next();
    if (!piece) return TXPORT_END;
    opened_stream->last = std::move(*piece);
    *id = opened_stream->last.id;
    if (text != nullptr) *text = opened_stream->last.text.c_str();
    if (length != nullptr) *length = opened_stream->last.text.size();
    if (score != nullptr) *score = opened_stream->last.score.value_or(0);
    return TXPORT_OK;
  });
}

void txport_stream_close(txport_stream* stream) noexcept {
  quietly([&] { streams().remove(stream); });
}
