// The C++ wrapper: the same answers, errors as exceptions of one family.

#include <doctest/doctest.h>

#include <algorithm>

#include "bundle/golden.hpp"
#include "repository.hpp"
#include "txport/txport.hpp"

TEST_CASE("C++ API") {
  std::string warnings;
  txport::TranslatorOptions how;
  how.warning = [&](const std::string& message) { warnings += message; };
  txport::Translator opened(kToyBundle.string(), how);
  txport::Translator translator = std::move(opened);  // the warning's address goes with it
  CHECK(txport::version() == TXPORT_VERSION);
  CHECK(translator.manifest() == contents(kToyBundle / "manifest.json"));
  CHECK(translator.engine().find("ONNX Runtime") == 0);
  CHECK_NOTHROW(translator.self_check());
  txport::Options options;
  options.scores = true;
  const auto results = translator.translate(std::vector<std::string>{"the cat sees a bird", "", "one"}, options);
  REQUIRE(results.size() == 3);
  CHECK(results[0].text == "the dog one ori tree or tree and");
  CHECK(results[0].scores.size() == results[0].ids.size());
  CHECK(translator.translate("one").ids == results[2].ids);
  CHECK(!results[0].alignment);
  CHECK(results[0].attention.values.empty());
  CHECK(translator.translate_ids({{4, 14, 15, 17, 7, 3}})[0].ids == results[0].ids);
  CHECK(translator.translate_ids({}).empty());
  txport::Options begun;
  begun.prefix = "a dog";
  const auto by_text = translator.translate("one", begun);
  CHECK(by_text.text.rfind("a dog", 0) == 0);
  begun.prefix = std::vector<std::int64_t>{by_text.ids[0], by_text.ids[1]};
  CHECK(translator.translate("one", begun).ids == by_text.ids);
  std::string text;
  for (int i = 0; i < 30; ++i) text += "cat ";
  CHECK(translator.translate(text).truncated);
  CHECK(translator.translate(text).finished);
  begun.max_length = 3;
  CHECK_FALSE(translator.translate(text, begun).finished);
  CHECK(warnings.find("31 tokens") != std::string::npos);
  std::string heard;
  translator.stream("the cat sees a bird", [&](const txport::Piece& piece) {
    heard += piece.text;
    return true;
  });
  CHECK(heard == results[0].text);
  int pieces = 0;
  translator.stream("the cat sees a bird", [&](const txport::Piece&) { return ++pieces < 3; });
  txport::Options extra;
  extra.attention = true;
  CHECK_THROWS_WITH_AS(translator.stream("one", extra),
                       "a stream has no alignments and no attention: use translate for these", txport::InputError);
  CHECK(pieces == 3);
  CHECK_THROWS_AS(translator.stream("one", [](const txport::Piece&) -> bool { throw std::runtime_error("mine"); }),
                  std::runtime_error);
}

TEST_CASE("C++ API: documents") {
  std::string warnings;
  txport::TranslatorOptions how;
  how.warning = [&](const std::string& message) { warnings += message + "\n"; };
  const txport::Translator translator(kToyBundle.string(), how);
  const std::string text = "# the cat\r\n\r\n\tone. \u00a0One!\r\n- \u6f22\u3002one\n***\n";
  const txport::Document document = translator.translate_document(text);
  const std::vector<std::string> sentences{"the cat", "one.", "One!", "\u6f22\u3002", "one"};
  REQUIRE(document.parts.size() == sentences.size());
  std::size_t before = 0;
  std::size_t made = 0;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    const txport::Part& part = document.parts[i];
    CHECK(text.substr(part.source.start, part.source.end - part.source.start) == sentences[i]);
    CHECK(part.translation.ids == translator.translate(sentences[i]).ids);
    CHECK(document.text.substr(part.target.start, part.target.end - part.target.start) == part.translation.text);
    if (part.source.start != before) {  // else a space may have come between the sentences
      CHECK(document.text.substr(made, part.target.start - made) == text.substr(before, part.source.start - before));
    }
    CHECK_FALSE(part.cut);
    before = part.source.end;
    made = part.target.end;
  }
  CHECK(document.text.substr(made) == "\n***\n");
  CHECK(translator.translate_document("").text.empty());
  CHECK(translator.translate_document(" \n***").text == " \n***");
  CHECK(translator.translate_document(" \n***").parts.empty());
  warnings.clear();
  std::string words;
  for (int i = 0; i < 2000; ++i) words += "cat ";
  const txport::Document cut = translator.translate_document("one.\n" + words);
  REQUIRE(cut.parts.size() > 50);
  CHECK(warnings.find(
            "the sentence in line 2 has 2001 tokens, more than the 24 that this model supports: it was cut into " +
            std::to_string(cut.parts.size() - 1) + " parts\n") == 0);
  CHECK(std::count_if(cut.parts.begin(), cut.parts.end(), [](const auto& part) { return part.cut; }) ==
        static_cast<std::ptrdiff_t>(cut.parts.size()) - 1);
  txport::Options strict;
  strict.strict = true;
  CHECK_THROWS_AS(translator.translate_document(words, strict), txport::InputError);
  CHECK_THROWS_AS(translator.translate_document("\xff"), txport::InputError);
}

TEST_CASE("C++ API: several hypotheses") {
  txport::Translator translator(kToyBundle.string());
  txport::Options options;
  options.beam = 4;
  options.n_best = 3;
  options.scores = true;
  options.max_length = 12;
  const txport::Translation result = translator.translate("the cat sees a bird", options);
  REQUIRE(result.hypotheses.size() == 3);
  CHECK(result.ids == result.hypotheses[0].ids);
  CHECK(result.score == result.hypotheses[0].score);
  for (const txport::Translation& each : result.hypotheses) {
    double total = 0;
    for (const double score : each.scores) total += score;
    CHECK(*each.score == doctest::Approx(total / static_cast<double>(each.ids.size())));
    CHECK(*each.score <= *result.score);
    CHECK(each.hypotheses.empty());
  }
  options.length_penalty = 0;
  CHECK(*translator.translate("one", options).score < 0);
  CHECK_FALSE(translator.translate("one").score);
  CHECK(translator.translate("", options).hypotheses.empty());
  CHECK_THROWS_AS(translator.stream("one", options), txport::InputError);
  txport::Options sampled;
  sampled.sample = true;
  sampled.top_k = 1;
  CHECK(translator.translate("one", sampled).ids == translator.translate("one").ids);
  txport::Options banned;
  banned.bad_words = {"dog", txport::Options::Ids{translator.translate("one").ids[0]}};
  banned.suppress = {7};
  for (const txport::Translation& each : translator.translate({std::string("one"), std::string("the cat")}, banned)) {
    CHECK(each.text.find("dog") == std::string::npos);
    CHECK(std::count(each.ids.begin(), each.ids.end(), 7) == 0);
  }
}

TEST_CASE("C++ API: errors") {
  CHECK_THROWS_AS(txport::Translator("/nothing/here"), txport::BundleError);
  txport::TranslatorOptions how;
  how.device = "tpu";
  CHECK_THROWS_AS(txport::Translator(kToyBundle.string(), how), txport::InputError);
  const txport::Translator translator(kToyBundle.string());
  CHECK_THROWS_AS(translator.translate("\xFF"), txport::Error);
  CHECK_THROWS_AS(translator.translate_ids({{}}), txport::InputError);
  CHECK_THROWS_AS(translator.translate_ids({{4, 96, 3}}), txport::InputError);
  CHECK(fault_of<txport::InputError>([&] {
          translator.score({"one", "two"}, {"one"});
        }) == "there are 2 sentences and 1 translations: give one for each");
  CHECK(fault_of<txport::InputError>([&] { translator.score_ids({{5}}, {}); }) ==
        "there are 1 sentences and 0 translations: give one for each");
  txport::Options options;
  options.alignments = true;
  CHECK_THROWS_AS(translator.translate("one", options), txport::BundleError);
  CHECK_THROWS_AS(translator.embed({"one"}), txport::BundleError);
}

TEST_CASE("C++ API: a bundle in one file, and its bytes") {
  const std::string packed = (kTests / "data" / "toy_bundle.txb").string();
  const std::string data = contents(packed);
  txport::TranslatorOptions how;
  how.engine = "ort";
  const txport::Translator from_file(packed, how);
  const txport::Translator from_memory(txport::BundleBytes{data.data(), data.size()}, how);
  for (const auto* translator : {&from_file, &from_memory}) {
    CHECK(translator->manifest() == contents(kToyBundle / "manifest.json"));
    CHECK(translator->translate("the cat sees a bird").text == "the dog one ori tree or tree and");
    CHECK_NOTHROW(translator->self_check());
  }
  CHECK_THROWS_AS(txport::Translator(txport::BundleBytes{data.data(), data.size() - 1}), txport::BundleError);
  CHECK_THROWS_AS(txport::Translator(txport::BundleBytes{data.data(), 0}), txport::BundleError);
  CHECK_THROWS_WITH_AS(txport::Translator(txport::BundleBytes{}), "the argument bundle is NULL: give one",
                       txport::InputError);
}

TEST_CASE("feature vectors through the C++ API") {
  const txport::Translator translator(kFeatureBundle.string());
  std::vector<txport::Matrix> arrays;  // of unequal lengths
  std::vector<std::vector<std::int64_t>> expected;
  std::int64_t longest = 0;
  for (const auto& each : txport::core::parse_golden(contents(kFeatureBundle / "golden.json"), "golden.json")) {
    arrays.push_back({each.vectors->rows, each.vectors->columns, each.vectors->values});
    expected.push_back(each.target_ids);
    longest = std::max(longest, static_cast<std::int64_t>(each.target_ids.size()));
  }
  REQUIRE(arrays.size() > 8);
  txport::Options options;
  options.max_length = static_cast<std::int32_t>(longest);
  options.alignments = true;
  const auto results = translator.translate_features(arrays, options);
  REQUIRE(results.size() == arrays.size());
  options.alignments = false;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const std::vector<std::int64_t>& ids = results[i].ids;
    REQUIRE(ids.size() >= expected[i].size());
    CHECK(std::vector(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(expected[i].size())) == expected[i]);
    REQUIRE(results[i].alignment);
    const txport::Alignment& alignment = *results[i].alignment;
    REQUIRE(alignment.times.size() == ids.size());
    for (std::size_t token = 0; token < ids.size(); ++token) {
      const std::int64_t vector = alignment.tokens[token];
      CHECK(vector < static_cast<std::int64_t>(arrays[i].rows));
      CHECK(alignment.times[token] == doctest::Approx(vector < 0 ? -1.0 : static_cast<double>(vector) / 50.0));
    }
    std::vector<std::int64_t> streamed;
    auto stream = translator.stream_features(arrays[i], options);
    while (const auto piece = stream.next()) streamed.push_back(piece->id);
    CHECK(streamed == ids);
    CHECK(translator.submit_features(arrays[i], options).get().ids == ids);
  }
  CHECK_THROWS_WITH_AS(translator.translate("text"),
                       "this bundle reads feature vectors, not text or ids: use translate_features",
                       txport::InputError);
  CHECK_THROWS_AS(translator.translate_features({{2, 6, {1.0F}}}), txport::InputError);
  const txport::Translator text(kToyBundle.string());
  CHECK_THROWS_WITH_AS(text.translate_features(arrays),
                       "this bundle reads text or ids, not feature vectors: use translate or translate_ids",
                       txport::InputError);
}
