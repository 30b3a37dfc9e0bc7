// The C ABI over core::Translator: exceptions become codes and a message of the thread.

#include "txport/txport.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi/guard.hpp"
#include "errors.hpp"
#include "translator.hpp"

// A stream shares its translator, so that either may be closed first.
struct txport_translator {
  std::shared_ptr<const txport::core::Translator> translator;
};

struct txport_result {
  std::vector<txport::core::Translation> translations;
};

struct txport_stream {
  std::shared_ptr<const txport::core::Translator> translator;
  txport::core::PieceStream pieces;
  txport::core::Piece last{};  // pointers of the last token refer to it
};

namespace {

using txport::abi::fail;
using txport::abi::given;
using txport::abi::guarded;
using txport::core::CheckFailed;
using txport::core::InputError;
using txport::core::Options;
using txport::core::Translation;
using txport::core::Translator;

const Translator& given(const txport_translator* translator) { return *given(translator, "translator").translator; }

// A copy of options that may be null, or of an older header; a newer header may have fields that we do not know.
template <typename T>
T read_options(const T* options, std::size_t smallest, const char* name) {
  T result{};
  if (options == nullptr) return result;
  const std::string start = std::string(name) + ".struct_size is " + std::to_string(options->struct_size);
  if (options->struct_size > sizeof(T)) {
    throw InputError(start + ", but txport " + txport_version() + " knows " + std::to_string(sizeof(T)) +
                     ": the application was compiled for a newer txport, install that");
  }
  if (options->struct_size < smallest) throw InputError(start + ": set it to sizeof(" + name + ")");
  std::memcpy(&result, options, options->struct_size);
  return result;
}

std::optional<std::int64_t> unless_zero(std::int32_t value) {
  return value == 0 ? std::nullopt : std::optional<std::int64_t>(value);
}

std::optional<std::string> unless_null(const char* text) {
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

// One field of txport_options, by the kind of its option.
void set(Options::Limit& option, std::int32_t field, const txport_options& /*all*/) { option = unless_zero(field); }
void set(Options::Count& option, std::int32_t field, const txport_options& /*all*/) { option = field; }
void set(Options::Flag& option, std::int32_t field, const txport_options& /*all*/) { option = field != 0; }
void set(Options::Text& option, const char* field, const txport_options& /*all*/) { option = unless_null(field); }
void set(Options::Prefix& option, const char* field, const txport_options& all) {
  if (all.prefix_count > 0) {
    given(all.prefix_ids, "prefix_ids");
    if (field != nullptr) throw InputError("prefix and prefix_ids are both set: give one of them");
    option = txport::core::Ids(all.prefix_ids, all.prefix_ids + all.prefix_count);
  } else {
    option = unless_null(field).value_or("");
  }
}

Options options_of(const txport_options* options) {
  constexpr std::size_t kFirst = sizeof(txport_options);  // the size of the first version of the struct
  const txport_options fields = read_options(options, kFirst, "txport_options");
  Options result;
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a field and a member of one name
#define TXPORT_OPTION(kind, name, help) set(result.name, fields.name, fields);
#include "options.inc"
#undef TXPORT_OPTION
  return result;
}

txport::core::TranslatorOptions options_of(const txport_translator_options* options) {
  constexpr std::size_t kFirst = sizeof(txport_translator_options);  // the size of the first version of the struct
  const auto fields = read_options(options, kFirst, "txport_translator_options");
  txport::core::TranslatorOptions result;
  result.device = unless_null(fields.device).value_or("auto");
  result.lowering = unless_null(fields.lowering).value_or("");
  result.threads = fields.threads;
  result.batch = unless_zero(fields.batch);
  if (fields.batch_tokens != 0) result.batch_tokens = fields.batch_tokens;
  if (fields.workers != 0) result.workers = fields.workers == -1 ? 0 : fields.workers;
  if (fields.warning != nullptr) {
    result.warn = [warning = fields.warning, user = fields.warning_user](const std::string& words) {
      warning(user, words.c_str());
    };
  }
  return result;
}

std::string_view view_of(const char* text, std::size_t length) {
  return {text, length == SIZE_MAX ? std::strlen(text) : length};
}

std::unique_ptr<txport_stream> open_stream(const txport_translator* translator, const char* text, std::size_t length,
                                           const txport_options* options) {
  const std::shared_ptr<const Translator> shared = given(translator, "translator").translator;
  const std::string_view view = view_of(&given(text, "text"), length);
  txport::core::PieceStream pieces(*shared, view, options_of(options));
  return std::make_unique<txport_stream>(txport_stream{shared, std::move(pieces)});
}

// Hand out a new result.
void give(txport_result** result, std::vector<Translation> translations) {
  *result = std::make_unique<txport_result>(txport_result{std::move(translations)}).release();
}

// One sentence of a result, or a null pointer.
const Translation* sentence(const txport_result* result, std::size_t index) noexcept {
  return result == nullptr || index >= result->translations.size() ? nullptr : &result->translations[index];
}

template <typename T>
const T* array_of(const std::vector<T>* values, std::size_t* length) noexcept {
  if (length != nullptr) *length = values == nullptr ? 0 : values->size();
  return values == nullptr ? nullptr : values->data();
}

// Whether the callback wants more. One that throws breaks its contract, which must not end the process.
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

txport_code txport_open(const char* bundle, const txport_translator_options* options,
                        txport_translator** translator) noexcept {
  return guarded([&] {
    given(translator, "translator") = nullptr;
    given(bundle, "bundle");
    auto opened = std::make_shared<const Translator>(bundle, options_of(options));
    *translator = std::make_unique<txport_translator>(txport_translator{std::move(opened)}).release();
    return TXPORT_OK;
  });
}

void txport_close(txport_translator* translator) noexcept { delete translator; }

txport_code txport_manifest(const txport_translator* translator, const char** json) noexcept {
  return guarded([&] {
    given(json, "json") = given(translator).manifest().text.c_str();
    return TXPORT_OK;
  });
}

txport_code txport_engine(const txport_translator* translator, const char** name) noexcept {
  return guarded([&] {
    given(name, "name") = given(translator).engine().name().c_str();
    return TXPORT_OK;
  });
}

txport_code txport_self_check(const txport_translator* translator) noexcept {
  return guarded([&] {
    const std::string difference = given(translator).self_check();
    if (!difference.empty()) throw CheckFailed(difference);
    return TXPORT_OK;
  });
}

txport_code txport_translate(const txport_translator* translator, const char* const* texts, const std::size_t* lengths,
                             std::size_t count, const txport_options* options, txport_result** result) noexcept {
  return guarded([&] {
    given(result, "result") = nullptr;
    const Translator& opened = given(translator);
    if (count > 0) given(texts, "texts");
    std::vector<std::string_view> sentences;
    for (std::size_t i = 0; i < count; ++i) {
      if (texts[i] == nullptr) throw InputError("texts[" + std::to_string(i) + "] is NULL: give a text");
      sentences.push_back(view_of(texts[i], lengths == nullptr ? SIZE_MAX : lengths[i]));
    }
    give(result, opened.translate(sentences, options_of(options)));
    return TXPORT_OK;
  });
}

txport_code txport_translate_ids(const txport_translator* translator, const std::int64_t* const* sources,
                                 const std::size_t* lengths, std::size_t count, const txport_options* options,
                                 txport_result** result) noexcept {
  return guarded([&] {
    given(result, "result") = nullptr;
    const Translator& opened = given(translator);
    if (count > 0) given(sources, "sources");
    if (count > 0) given(lengths, "lengths");
    std::vector<txport::core::Ids> ids;
    for (std::size_t i = 0; i < count; ++i) {
      if (sources[i] == nullptr) throw InputError("sources[" + std::to_string(i) + "] is NULL: give ids");
      ids.emplace_back(sources[i], sources[i] + lengths[i]);
    }
    give(result, opened.translate_ids(ids, options_of(options)));
    return TXPORT_OK;
  });
}

std::size_t txport_result_count(const txport_result* result) noexcept {
  return result == nullptr ? 0 : result->translations.size();
}

const char* txport_result_text(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  const Translation* translation = sentence(result, index);
  if (length != nullptr) *length = translation == nullptr ? 0 : translation->text.size();
  return translation == nullptr ? nullptr : translation->text.c_str();
}

const std::int64_t* txport_result_ids(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  const Translation* translation = sentence(result, index);
  return array_of(translation == nullptr ? nullptr : &translation->ids, length);
}

const double* txport_result_scores(const txport_result* result, std::size_t index, std::size_t* length) noexcept {
  const Translation* translation = sentence(result, index);
  return array_of(translation == nullptr || !translation->scores ? nullptr : &*translation->scores, length);
}

int txport_result_truncated(const txport_result* result, std::size_t index) noexcept {
  const Translation* translation = sentence(result, index);
  return translation != nullptr && translation->truncated ? 1 : 0;
}

void txport_result_free(txport_result* result) noexcept { delete result; }

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
    *stream = open_stream(translator, text, length, options).release();
    return TXPORT_OK;
  });
}

txport_code txport_stream_next(txport_stream* stream, std::int64_t* id, const char** text, std::size_t* length,
                               double* score) noexcept {
  return guarded([&] {
    txport_stream& opened = given(stream, "stream");
    given(id, "id");
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
