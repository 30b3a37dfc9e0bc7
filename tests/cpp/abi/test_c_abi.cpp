// The C ABI: what goes wrong gives a code and a message, whatever was passed in.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "repository.hpp"
#include "txport/txport.hpp"
#include "utf8.hpp"

namespace {

const std::string kBundle = kToyBundle.string();
constexpr const char* kText = "the cat sees a bird";
constexpr const char* kAnswer = "the dog one ori tree or tree and";

txport_translator* open_toy() {
  txport_translator* translator = nullptr;
  REQUIRE(txport_open(kBundle.c_str(), nullptr, &translator) == TXPORT_OK);
  return translator;
}

bool says(const char* words) { return std::strstr(txport_message(), words) != nullptr; }

struct Heard {
  int left;  // tokens until the callback stops
  std::string text;
  bool throws = false;
};

int hear(void* user, int64_t id, const char* text, size_t length, double score) {
  auto& heard = *static_cast<Heard*>(user);
  CHECK(id >= 0);
  CHECK(score <= 0);
  heard.text.append(text, length);
  if (heard.throws) throw 42;  // not even a std::exception
  return --heard.left == 0 ? 1 : 0;
}

}  // namespace

TEST_CASE("C ABI: the version") { CHECK(std::string(txport_version()) == TXPORT_VERSION); }

TEST_CASE("C ABI: translate, and look at what came out") {
  txport_translator* translator = open_toy();
  const char* json = nullptr;
  const char* engine = nullptr;
  CHECK(txport_manifest(translator, &json) == TXPORT_OK);
  CHECK(std::string(json) == contents(kToyBundle / "manifest.json"));
  CHECK(txport_engine(translator, &engine) == TXPORT_OK);
  CHECK(std::strstr(engine, "lowering ort") != nullptr);
  CHECK(txport_self_check(translator) == TXPORT_OK);

  const char* texts[] = {kText, "", "one\0two"};
  const size_t lengths[] = {std::strlen(kText), 0, 3};
  txport_options options = TXPORT_OPTIONS_INIT;
  options.scores = 1;
  options.full_length = 1;
  txport_result* result = nullptr;
  REQUIRE(txport_translate(translator, texts, lengths, 3, &options, &result) == TXPORT_OK);
  CHECK(txport_result_count(result) == 3);
  size_t length = 9;
  CHECK(std::string(txport_result_text(result, 0, &length)) == kAnswer);
  CHECK(length == std::strlen(kAnswer));
  CHECK(std::string(txport_result_text(result, 1, nullptr)).empty());
  size_t count = 0;
  size_t scored = 0;
  REQUIRE(txport_result_ids(result, 0, &count) != nullptr);
  REQUIRE(txport_result_scores(result, 0, &scored) != nullptr);
  CHECK(count == 72);  // all that the bundle makes, where 32 are the default
  CHECK(scored == count);
  CHECK(txport_result_truncated(result, 0) == 0);
  CHECK(txport_result_finished(result, 0) == (txport_result_ids(result, 0, nullptr)[count - 1] == 3 ? 1 : 0));
  CHECK(txport_result_finished(result, 1) == 1);
  CHECK(txport_result_text(result, 3, &length) == nullptr);
  CHECK(length == 0);
  CHECK(txport_result_ids(result, 3, &count) == nullptr);
  CHECK(count == 0);

  txport_result* alone = nullptr;
  const char* one[] = {"one"};
  REQUIRE(txport_translate(translator, one, nullptr, 1, nullptr, &alone) == TXPORT_OK);
  CHECK(std::string(txport_result_text(alone, 0, nullptr)) == txport_result_text(result, 2, nullptr));
  CHECK(txport_result_scores(alone, 0, nullptr) == nullptr);
  txport_result_free(alone);
  txport_result_free(result);

  const int64_t ids[] = {4, 14, 15, 17, 7, 3};
  const int64_t* sources[] = {ids};
  const size_t id_counts[] = {6};
  REQUIRE(txport_translate_ids(translator, sources, id_counts, 1, nullptr, &result) == TXPORT_OK);
  CHECK(std::string(txport_result_text(result, 0, nullptr)) == kAnswer);
  txport_result_free(result);
  REQUIRE(txport_translate(translator, nullptr, nullptr, 0, nullptr, &result) == TXPORT_OK);
  CHECK(txport_result_count(result) == 0);
  txport_result_free(result);
  txport_close(translator);
}

TEST_CASE("C ABI: options reach the search") {
  txport_translator_options how = TXPORT_TRANSLATOR_OPTIONS_INIT;
  std::string warnings;
  how.device = "cpu";
  how.lowering = "scatter";
  how.threads = 1;
  how.batch = 2;
  how.batch_tokens = 20;
  how.warning = [](void* user, const char* message) { *static_cast<std::string*>(user) += message; };
  how.warning_user = &warnings;
  txport_translator* translator = nullptr;
  REQUIRE(txport_open(kBundle.c_str(), &how, &translator) == TXPORT_OK);
  txport_translator_options too_many = how;
  too_many.batch = 9;
  txport_translator* refused = nullptr;
  CHECK(txport_open(kBundle.c_str(), &too_many, &refused) == TXPORT_INPUT_ERROR);
  txport_options options = TXPORT_OPTIONS_INIT;
  options.max_length = 5;
  options.prefix = "a dog";
  std::string text;
  for (int i = 0; i < 30; ++i) text += "cat ";
  const char* texts[] = {text.c_str()};
  txport_result* result = nullptr;
  REQUIRE(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_OK);
  CHECK(std::string(txport_result_text(result, 0, nullptr)).rfind("a dog", 0) == 0);
  size_t count = 0;
  txport_result_ids(result, 0, &count);
  CHECK(count == 5);
  CHECK(txport_result_truncated(result, 0) == 1);
  CHECK(txport_result_finished(result, 0) == 0);
  CHECK(warnings.find("31 tokens") != std::string::npos);
  txport_result_free(result);
  options.strict = 1;
  CHECK(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_INPUT_ERROR);
  CHECK(result == nullptr);
  options = TXPORT_OPTIONS_INIT;
  options.target_language = "fra";
  CHECK(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("target language 'fra'"));
  txport_close(translator);
}

TEST_CASE("C ABI: streams") {
  txport_translator* translator = open_toy();
  Heard all{-1, ""};
  txport_options options = TXPORT_OPTIONS_INIT;
  options.scores = 1;
  CHECK(txport_translate_stream(translator, kText, SIZE_MAX, &options, hear, &all) == TXPORT_OK);
  CHECK(all.text == kAnswer);
  Heard some{2, ""};
  CHECK(txport_translate_stream(translator, kText, std::strlen(kText), &options, hear, &some) == TXPORT_CANCELLED);
  CHECK(says("stopped the translation"));
  CHECK(all.text.rfind(some.text, 0) == 0);
  Heard thrower{5, "", true};
  CHECK(txport_translate_stream(translator, kText, SIZE_MAX, nullptr, hear, &thrower) == TXPORT_CANCELLED);
  CHECK(says("threw"));

  txport_stream* stream = nullptr;
  REQUIRE(txport_stream_open(translator, kText, SIZE_MAX, &options, &stream) == TXPORT_OK);
  txport_close(translator);  // the stream keeps what it needs
  std::string text;
  int64_t id = 0;
  const char* piece = nullptr;
  size_t length = 0;
  double score = 1;
  txport_code code = txport_stream_next(stream, &id, &piece, &length, &score);
  for (; code == TXPORT_OK; code = txport_stream_next(stream, &id, &piece, &length, &score)) text.append(piece, length);
  CHECK(code == TXPORT_END);
  CHECK(text == kAnswer);
  CHECK(score < 0);
  CHECK(txport_stream_next(stream, &id, nullptr, nullptr, nullptr) == TXPORT_END);
  txport_stream_close(stream);
}

TEST_CASE("C ABI: null pointers") {
  txport_translator* translator = nullptr;
  txport_result* result = nullptr;
  txport_stream* stream = nullptr;
  const char* texts[] = {kText, nullptr};
  const int64_t* sources[] = {nullptr};
  const size_t lengths[] = {3};
  int64_t id = 0;
  const auto refused = [](txport_code code) { return code == TXPORT_INPUT_ERROR && says("NULL"); };
  CHECK(refused(txport_open(nullptr, nullptr, &translator)));
  CHECK(translator == nullptr);
  CHECK(refused(txport_open(kBundle.c_str(), nullptr, nullptr)));
  translator = open_toy();
  CHECK(refused(txport_manifest(translator, nullptr)));
  CHECK(refused(txport_manifest(nullptr, &texts[0])));
  CHECK(refused(txport_engine(translator, nullptr)));
  CHECK(refused(txport_self_check(nullptr)));
  CHECK(refused(txport_translate(nullptr, texts, nullptr, 1, nullptr, &result)));
  CHECK(refused(txport_translate(translator, nullptr, nullptr, 1, nullptr, &result)));
  CHECK(refused(txport_translate(translator, texts, nullptr, 2, nullptr, &result)));
  CHECK(refused(txport_translate(translator, texts, nullptr, 1, nullptr, nullptr)));
  CHECK(refused(txport_translate_ids(translator, nullptr, lengths, 1, nullptr, &result)));
  CHECK(refused(txport_translate_ids(translator, sources, nullptr, 1, nullptr, &result)));
  CHECK(refused(txport_translate_ids(translator, sources, lengths, 1, nullptr, &result)));
  txport_options options = TXPORT_OPTIONS_INIT;
  options.prefix_count = 2;
  CHECK(refused(txport_translate_ids(translator, sources, lengths, 0, &options, &result)));
  CHECK(refused(txport_translate_stream(translator, nullptr, 0, nullptr, hear, nullptr)));
  CHECK(refused(txport_translate_stream(translator, kText, 3, nullptr, nullptr, nullptr)));
  CHECK(refused(txport_stream_open(translator, kText, 3, nullptr, nullptr)));
  CHECK(refused(txport_stream_open(nullptr, kText, 3, nullptr, &stream)));
  CHECK(refused(txport_stream_next(nullptr, &id, nullptr, nullptr, nullptr)));
  CHECK(txport_result_count(nullptr) == 0);
  CHECK(txport_result_text(nullptr, 0, nullptr) == nullptr);
  CHECK(txport_result_ids(nullptr, 0, nullptr) == nullptr);
  CHECK(txport_result_scores(nullptr, 0, nullptr) == nullptr);
  CHECK(txport_result_truncated(nullptr, 0) == 0);
  CHECK(txport_result_finished(nullptr, 0) == 0);
  txport_result_free(nullptr);
  txport_stream_close(nullptr);
  txport_close(nullptr);
  txport_close(translator);
}

TEST_CASE("C ABI: documents") {
  txport_translator* translator = open_toy();
  txport_result* result = nullptr;
  CHECK(txport_translate_document(nullptr, "", 0, nullptr, &result) == TXPORT_INPUT_ERROR);
  CHECK(txport_translate_document(translator, nullptr, 0, nullptr, &result) == TXPORT_INPUT_ERROR);
  CHECK(txport_translate_document(translator, "", 0, nullptr, nullptr) == TXPORT_INPUT_ERROR);
  REQUIRE(txport_translate_document(translator, "- one\n", 6, nullptr, &result) == TXPORT_OK);
  std::size_t length = 0;
  const std::string text = txport_result_document(result, &length);
  CHECK(text.size() == length);
  CHECK(text == "- " + std::string(txport_result_text(result, 0, nullptr)) + "\n");
  REQUIRE(txport_result_part(result, 0) != nullptr);
  CHECK(txport_result_part(result, 0)->source.start == 2);
  CHECK(txport_result_part(result, 0)->source.end == 5);
  CHECK(txport_result_part(result, 1) == nullptr);
  txport_result_free(result);
  const char* one = "one";
  REQUIRE(txport_translate(translator, &one, nullptr, 1, nullptr, &result) == TXPORT_OK);
  CHECK(txport_result_document(result, &length) == nullptr);
  CHECK(length == 0);
  CHECK(txport_result_part(result, 0) == nullptr);
  txport_result_free(result);
  txport_close(translator);
  CHECK(txport_result_document(nullptr, nullptr) == nullptr);
  CHECK(txport_result_part(nullptr, 0) == nullptr);
}

TEST_CASE("C ABI: a result does not need its translator") {
  txport_translator* translator = open_toy();
  txport_result* result = nullptr;
  const char* texts[] = {kText};
  REQUIRE(txport_translate(translator, texts, nullptr, 1, nullptr, &result) == TXPORT_OK);
  txport_close(translator);
  CHECK(txport_result_count(result) == 1);
  CHECK(std::string(txport_result_text(result, 0, nullptr)) == kAnswer);
  txport_result_free(result);
}

TEST_CASE("C ABI: options of another size") {
  txport_translator* translator = nullptr;
  struct Newer {
    txport_translator_options known;
    int more;
  } newer{};
  newer.known.struct_size = sizeof newer;
  CHECK(txport_open(kBundle.c_str(), &newer.known, &translator) == TXPORT_INPUT_ERROR);
  CHECK(says("compiled for a newer txport"));
  txport_translator_options unset{};
  CHECK(txport_open(kBundle.c_str(), &unset, &translator) == TXPORT_INPUT_ERROR);
  CHECK(says("sizeof(txport_translator_options)"));
  translator = open_toy();
  txport_result* result = nullptr;
  const char* texts[] = {kText};
  txport_options options{};
  options.struct_size = sizeof options + 8;
  CHECK(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("txport_options.struct_size"));
  options.struct_size = 4;
  CHECK(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_INPUT_ERROR);
  txport_close(translator);
}

TEST_CASE("C ABI: the options of before alignments") {
  txport_translator* translator = open_toy();
  txport_options options = TXPORT_OPTIONS_INIT;
  options.alignments = 1;
  txport_result* result = nullptr;
  const char* texts[] = {kText};
  CHECK(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_BUNDLE_ERROR);
  options.struct_size = offsetof(txport_options, alignments);  // what comes after is not the application's
  REQUIRE(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_OK);
  CHECK(std::string(txport_result_text(result, 0, nullptr)) == kAnswer);
  txport_result_free(result);
  txport_close(translator);
}

TEST_CASE("C ABI: how to search") {
  txport_translator* translator = open_toy();
  txport_options options = TXPORT_OPTIONS_INIT;
  txport_result* result = nullptr;
  const char* texts[] = {kText, ""};
  const auto translate = [&] { return txport_translate(translator, texts, nullptr, 2, &options, &result); };
  options.beam = 3;
  options.n_best = 2;
  REQUIRE(translate() == TXPORT_OK);
  const txport_result* found = txport_result_hypotheses(result, 0);
  CHECK(txport_result_count(found) == 2);
  CHECK(std::string(txport_result_text(found, 0, nullptr)) == txport_result_text(result, 0, nullptr));
  CHECK(*txport_result_score(found, 1) < *txport_result_score(result, 0));
  CHECK(txport_result_hypotheses(found, 0) == nullptr);
  CHECK(txport_result_hypotheses(result, 1) == nullptr);
  CHECK(txport_result_hypotheses(result, 2) == nullptr);
  CHECK(txport_result_score(result, 1) == nullptr);
  CHECK(txport_result_score(nullptr, 0) == nullptr);
  CHECK(txport_result_looped(result, 1) == 0);
  txport_result_free(result);
  options.struct_size = offsetof(txport_options, generation);  // what comes after is not the application's
  REQUIRE(translate() == TXPORT_OK);
  CHECK(std::string(txport_result_text(result, 0, nullptr)) == kAnswer);
  CHECK(txport_result_hypotheses(result, 0) == nullptr);
  CHECK(txport_result_score(result, 0) == nullptr);
  txport_result_free(result);
  const auto refused = [&](const txport_options& wrong, const char* words) {
    options = wrong;
    CHECK(translate() == TXPORT_INPUT_ERROR);
    CHECK(says(words));
  };
  txport_options wrong = TXPORT_OPTIONS_INIT;
  const txport_options none = wrong;
  wrong.early_stopping = "soon";
  refused(wrong, "early_stopping 'soon' is not one of 'true', 'false', 'never'");
  wrong = none;
  wrong.n_best = -1;
  refused(wrong, "n_best -1 is not 1 or more");
  wrong = none;
  wrong.suppress.count = 1;
  refused(wrong, "txport_ids.values is NULL");
  wrong = none;
  wrong.bad_words.text_count = 1;
  refused(wrong, "bad_words.texts is NULL");
  wrong = none;
  wrong.bad_words.sequence_count = 1;
  refused(wrong, "bad_words.sequences is NULL");
  wrong = none;
  const char* word = "\xff";
  wrong.bad_words = {&word, 1, nullptr, 0};
  refused(wrong, "a bad word");
  txport_close(translator);
}

TEST_CASE("C ABI: a bundle without the optional graphs") {
  txport_translator* translator = open_toy();
  const std::string start = kBundle + " has no graph of the role '";
  const auto refused = [&](txport_code code, const std::string& role) {
    CHECK(code == TXPORT_BUNDLE_ERROR);
    CHECK(says((start + role + "', which ").c_str()));
    CHECK(says("need: export it again with tx-export --with-attention"));
  };
  txport_result* result = nullptr;
  const char* texts[] = {kText};
  const int64_t ids[] = {5, 3};
  const int64_t* sources[] = {ids};
  const size_t lengths[] = {2};
  txport_options options = TXPORT_OPTIONS_INIT;
  options.attention = 1;
  refused(txport_translate(translator, texts, nullptr, 1, &options, &result), "decoder");
  refused(txport_translate_ids(translator, sources, lengths, 1, &options, &result), "decoder");
  refused(txport_score(translator, texts, nullptr, texts, nullptr, 1, nullptr, &result), "decoder");
  refused(txport_score_ids(translator, sources, lengths, sources, lengths, 1, &result), "decoder");
  refused(txport_embed(translator, texts, nullptr, 1, 1, nullptr, &result), "encoder_attention");
  CHECK(result == nullptr);
  // What there is nothing of.
  REQUIRE(txport_translate(translator, texts, nullptr, 1, nullptr, &result) == TXPORT_OK);
  for (const std::size_t index : {std::size_t{0}, std::size_t{1}}) {
    size_t length = 1;
    size_t columns = 1;
    CHECK(txport_result_alignment(result, index, &length) == nullptr);
    CHECK(length == 0);
    CHECK(txport_result_word_pairs(result, index, nullptr) == nullptr);
    CHECK(txport_result_pharaoh(result, index, nullptr) == nullptr);
    CHECK(txport_result_spans(result, index, TXPORT_TARGET_WORDS, nullptr) == nullptr);
    CHECK(txport_result_attention(result, index, nullptr, &columns) == nullptr);
    CHECK(columns == 0);
    CHECK(txport_result_embedding(result, index, nullptr, nullptr) == nullptr);
  }
  txport_result_free(result);
  txport_close(translator);
}

TEST_CASE("C ABI: scores and embeddings of null pointers") {
  txport_translator* translator = open_toy();
  txport_result* result = nullptr;
  const char* texts[] = {kText};
  const char* missing[] = {nullptr};
  const int64_t ids[] = {5, 3};
  const int64_t* sources[] = {ids};
  const size_t lengths[] = {2};
  CHECK(txport_score(nullptr, texts, nullptr, texts, nullptr, 1, nullptr, &result) == TXPORT_INPUT_ERROR);
  CHECK(txport_score(translator, texts, nullptr, texts, nullptr, 1, nullptr, nullptr) == TXPORT_INPUT_ERROR);
  CHECK(txport_score(translator, texts, nullptr, nullptr, nullptr, 1, nullptr, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("the argument targets is NULL"));
  CHECK(txport_score(translator, texts, nullptr, missing, nullptr, 1, nullptr, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("targets[0] is NULL: give a text"));
  CHECK(txport_score_ids(translator, sources, lengths, sources, nullptr, 1, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("the argument target_lengths is NULL"));
  CHECK(txport_embed(translator, missing, nullptr, 1, 0, nullptr, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("texts[0] is NULL: give a text"));
  CHECK(txport_embed(translator, texts, nullptr, 1, 0, nullptr, nullptr) == TXPORT_INPUT_ERROR);
  txport_close(translator);
}

TEST_CASE("C and C++ API: weights that were changed are refused if their hash is compared") {
  const Scratch scratch;
  const auto bundle = scratch.bundle();
  const auto weights = bundle / "onnx" / "weights.bin";
  std::string data = contents(weights);
  data[data.size() / 2] = static_cast<char>(data[data.size() / 2] ^ 1);
  std::ofstream(weights, std::ios::binary) << data;
  txport_translator* translator = nullptr;
  txport_translator_options how = TXPORT_TRANSLATOR_OPTIONS_INIT;
  REQUIRE(txport_open(bundle.c_str(), &how, &translator) == TXPORT_OK);
  txport_close(translator);
  how.verify = 1;
  CHECK(txport_open(bundle.c_str(), &how, &translator) == TXPORT_BUNDLE_ERROR);
  CHECK(says("weights.bin was changed"));
  CHECK(txport_open(kBundle.c_str(), &how, &translator) == TXPORT_OK);
  txport_close(translator);
  txport::TranslatorOptions options;
  options.verify = true;
  CHECK_THROWS_AS(txport::Translator(bundle.string(), options), txport::BundleError);
}

TEST_CASE("C ABI: messages are printable text") {
  std::string long_name;
  for (int i = 0; i < 3000; ++i) long_name += "\xC3\xA9";
  for (const std::string& name :
       {std::string("no\x1B[31m\x7F\xC2\x9B\xFF\r\xE2\x80\xAE bundle"), long_name, "x" + long_name}) {
    txport_translator* translator = nullptr;
    CHECK(txport_open(name.c_str(), nullptr, &translator) != TXPORT_OK);
    const std::string_view message = txport_message();
    CHECK(!txport::core::utf8_fault(message));
    CHECK(message.find_first_of("\x1B\x7F\r") == std::string_view::npos);
    CHECK(message.find("\xC2\x9B") == std::string_view::npos);
    CHECK(message.find("\xE2\x80\xAE") == std::string_view::npos);
  }
  CHECK(says("\xC3\xA9"));
}

TEST_CASE("C ABI: values that cannot be") {
  txport_translator* translator = nullptr;
  txport_translator_options how = TXPORT_TRANSLATOR_OPTIONS_INIT;
  for (int32_t* field : {&how.threads, &how.batch, &how.batch_tokens}) {
    *field = -1;
    CHECK(txport_open(kBundle.c_str(), &how, &translator) == TXPORT_INPUT_ERROR);
    *field = 0;
  }
  how.workers = -2;  // -1 is: by the cores
  CHECK(txport_open(kBundle.c_str(), &how, &translator) == TXPORT_INPUT_ERROR);
  how.workers = 0;
  how.device = "cuda\xFF";
  CHECK(txport_open(kBundle.c_str(), &how, &translator) == TXPORT_INPUT_ERROR);
  txport_translator* toy = open_toy();
  CHECK(txport_open("/nothing/here", nullptr, &translator) == TXPORT_BUNDLE_ERROR);
  txport_close(toy);
  txport_close(nullptr);
  txport_result_free(nullptr);
  CHECK(says("/nothing/here does not exist"));  // closing and freeing keep the message
  CHECK(txport_open((kTests / "data").c_str(), nullptr, &translator) == TXPORT_BUNDLE_ERROR);
  CHECK(translator == nullptr);
  translator = open_toy();
  txport_result* result = nullptr;
  const char* texts[] = {"a", "b\xFF"};
  CHECK(txport_translate(translator, texts, nullptr, 2, nullptr, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("sentence 2 is not UTF-8"));
  txport_options options = TXPORT_OPTIONS_INIT;
  options.prefix = "\xC3";
  CHECK(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("the prefix is not UTF-8"));
  const int64_t ids[] = {5};
  options = TXPORT_OPTIONS_INIT;
  options.prefix = "a";
  options.prefix_ids = ids;
  options.prefix_count = 1;
  CHECK(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_INPUT_ERROR);
  CHECK(says("both set"));
  for (int32_t* field : {&options.max_length, &options.min_length}) {
    options = TXPORT_OPTIONS_INIT;
    *field = -1;
    CHECK(txport_translate(translator, texts, nullptr, 1, &options, &result) == TXPORT_INPUT_ERROR);
  }
  CHECK(result == nullptr);
  txport_close(translator);
}
