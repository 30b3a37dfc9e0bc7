// The translator over the toy bundle, whose answers follow from its definition (tests/data/make_toy_bundle.py).

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "errors.hpp"
#include "repository.hpp"
#include "translator.hpp"

using namespace txport::core;

namespace {

constexpr std::int64_t kEos = 3;

// [96]: a parabola whose top is the id to be chosen; of its neighbours the higher is second.
std::vector<double> logits(const Ids& source, const Ids& fed) {
  std::int64_t total = 0;
  for (const std::int64_t id : source) total += 9 * id;
  for (std::size_t i = 0; i < fed.size(); ++i) total += 14 * fed[i] * static_cast<std::int64_t>(i + 1);
  std::vector<double> result(96);
  for (std::size_t id = 0; id < result.size(); ++id) {
    const double x = static_cast<double>(id);
    result[id] = 0.25 * x - std::pow(x - static_cast<double>(total % 47), 2);
  }
  return result;
}

// The ids that must come out for one source.
Ids answer(const Ids& source, std::size_t limit, std::size_t minimum, const Ids& prefix) {
  Ids ids;
  while (ids.size() < limit && (ids.size() <= prefix.size() || ids.back() != kEos)) {
    Ids fed{2};
    fed.insert(fed.end(), ids.begin(), ids.end());
    std::vector<double> allowed = logits(source, fed);
    if (ids.size() < minimum) allowed[kEos] = -1e9;
    const auto best = std::max_element(allowed.begin(), allowed.end()) - allowed.begin();
    ids.push_back(ids.size() < prefix.size() ? prefix[ids.size()] : best);
  }
  return ids;
}

std::vector<Ids> sources() {
  std::vector<Ids> result;
  for (std::int64_t i = 0; i < 40; ++i) {
    Ids source;
    for (std::int64_t t = 0; t < 1 + i * 7 % 23; ++t) source.push_back(4 + (i * 31 + t * 17) % 90);
    source.push_back(kEos);
    result.push_back(source);
  }
  return result;
}

TranslatorOptions with_lowering(const std::string& lowering) {
  TranslatorOptions options;
  options.where.lowering = lowering;
  return options;
}

}  // namespace

TEST_CASE("each lowering gives what the definition says, in any batch") {
  for (const char* lowering : {"ort", "scatter"}) {
    CAPTURE(lowering);
    for (const std::int64_t batch : {1, 3, 8}) {
      TranslatorOptions how = with_lowering(lowering);
      how.batch = batch;
      const Translator translator(kToyBundle, how);
      for (const auto& [limit, minimum, prefix] :
           {std::tuple<std::int64_t, std::int64_t, Ids>{72, 0, {}}, {9, 0, {}}, {60, 50, {}}, {40, 12, {5, 9, 3, 7}}}) {
        Options options;
        options.max_length = limit;
        options.min_length = minimum;
        options.prefix = prefix;
        const auto given = sources();
        const auto results = translator.translate_ids(given, options);
        for (std::size_t i = 0; i < given.size(); ++i) {
          CHECK(results[i].ids ==
                answer(given[i], static_cast<std::size_t>(limit), static_cast<std::size_t>(minimum), prefix));
        }
      }
    }
  }
}

TEST_CASE("the self-check") {
  const Translator translator(kToyBundle, {});
  CHECK(translator.self_check().empty());
}

TEST_CASE("a self-check that finds a difference") {
  const Scratch scratch;
  const auto bundle = scratch.bundle();
  const Translator translator(bundle, {});
  auto golden = nlohmann::json::parse(contents(bundle / "golden.json"));
  auto& beginning = golden["cases"][1]["target_ids"];
  beginning.erase(beginning.begin() + 1, beginning.end());
  golden["cases"][2]["target_ids"][0] = 77;
  std::ofstream(bundle / "golden.json") << golden;
  const std::string difference = translator.self_check();  // not case 1: an answer's beginning is enough
  CHECK(difference.find("case 2") != std::string::npos);
  CHECK(difference.find("expected [77") != std::string::npos);
}

TEST_CASE("texts: order, empty ones, scores and streams") {
  const Translator translator(kToyBundle, {});
  const std::vector<std::string_view> texts{"the cat sees a bird", "", " \t", "one",
                                            "a big red dog and a small blue bird"};
  Options options;
  options.scores = true;
  const auto results = translator.translate(texts, options);
  REQUIRE(results.size() == texts.size());
  CHECK(results[0].text == "the dog one ori tree or tree and");
  CHECK(results[1].text.empty());
  CHECK(results[1].scores->empty());
  CHECK(results[2].ids.empty());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    PieceStream stream(translator, texts[i], options);
    std::string text;
    Ids ids;
    while (const auto piece = stream.next()) {
      CHECK(*piece->score == doctest::Approx((*results[i].scores)[ids.size()]));
      text += piece->text;
      ids.push_back(piece->id);
    }
    CHECK(text == results[i].text);
    CHECK(ids == results[i].ids);
  }
}

TEST_CASE("sentences that are too long are cut with a warning, or refused") {
  std::vector<std::string> warnings;
  TranslatorOptions how;
  how.warn = [&](const std::string& words) { warnings.push_back(words); };
  const Translator translator(kToyBundle, how);
  std::string text;
  for (int i = 0; i < 30; ++i) text += "cat ";
  const auto results = translator.translate({"one", text}, {});
  CHECK(results[1].truncated);
  CHECK_FALSE(results[0].truncated);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] == "sentence 2 has 31 tokens, more than the 24 that this model supports: it was cut");
  Options options;
  options.strict = true;
  CHECK(fault_of<InputError>([&] { translator.translate({text}, options, "line", 7); }).find("line 7 has 31") == 0);
}

TEST_CASE("bad arguments") {
  const Translator translator(kToyBundle, {});
  const auto fault = [&](const Options& options, const Ids& source = {4, 3}) {
    return fault_of<InputError>([&] { translator.translate_ids({source}, options); });
  };
  Options options;
  options.max_length = 73;
  CHECK(fault(options).find("maximum length 73 is not between 1 and 72") != std::string::npos);
  options = {};
  options.min_length = 73;
  CHECK(fault(options).find("minimum length 73") != std::string::npos);
  CHECK(fault({}, {4, 96}).find("id 96, which is not between 0 and 95") != std::string::npos);
  CHECK(fault({}, {4, -1}).find("id -1") != std::string::npos);
  CHECK(fault({}, {}) == "sentence 1 has no ids except padding: give at least one");
  CHECK(fault({}, Ids(25, 4)).find("25 tokens") != std::string::npos);
  options = {};
  options.prefix = Ids(72, 5);
  CHECK(fault(options).find("leaves no room") != std::string::npos);
  options.prefix = Ids{96};
  CHECK(fault(options).find("the prefix has the id 96") == 0);
  options = {};
  options.target_language = "fra";
  CHECK(fault(options).find("no target language") != std::string::npos);
  CHECK(fault_of<InputError>([&] {
          translator.translate({"a", "b\xFF"}, {});
        }) == "sentence 2 is not UTF-8 (byte 2 is 0xff): convert the text, for example with iconv -t utf-8");
  CHECK(fault_of<InputError>([&] { Translator(kToyBundle, with_lowering("fusion")); }).find("'fusion' is unknown") !=
        std::string::npos);
  TranslatorOptions how;
  how.where.device = "tpu";
  CHECK(fault_of<InputError>([&] { Translator(kToyBundle, how); }).find("'tpu'") != std::string::npos);
  how = {};
  how.batch = 0;
  CHECK(fault_of<InputError>([&] { Translator(kToyBundle, how); }).find("batch") != std::string::npos);
  how.batch = 9;
  CHECK(fault_of<InputError>([&] { Translator(kToyBundle, how); }) ==
        "the batch 9 is not between 1 and 8, the maximum of this bundle");
}

TEST_CASE("what is no graph, and weights that fit no graph, are errors of the bundle") {
  const Scratch scratch;
  const auto bundle = scratch.bundle();
  const auto graph = bundle / "onnx" / "encoder.onnx";
  const std::string junk(static_cast<std::size_t>(std::filesystem::file_size(graph)), 'x');
  std::ofstream(graph, std::ios::binary) << junk;
  CHECK(fault_of<BundleError>([&] { Translator(bundle, {}); }).find("SHA-256 differs") != std::string::npos);
  // The same with a manifest that says so: it is no graph, whatever its hash.
  auto manifest = nlohmann::ordered_json::parse(contents(bundle / "manifest.json"));
  manifest["files"]["onnx/encoder.onnx"]["sha256"] = sha256(junk);
  std::ofstream(bundle / "manifest.json") << sign(manifest.dump());
  const std::string fault = fault_of<BundleError>([&] { Translator(bundle, {}); });
  CHECK(fault.find("txport does not load " + graph.string()) != std::string::npos);
  // A whole graph, but that of another role: other inputs and outputs than the manifest says.
  std::filesystem::copy_file(bundle / "onnx" / "decoder_step.ort.onnx", graph,
                             std::filesystem::copy_options::overwrite_existing);
  manifest["files"]["onnx/encoder.onnx"] = manifest["files"]["onnx/decoder_step.ort.onnx"];
  std::ofstream(bundle / "manifest.json") << sign(manifest.dump());
  CHECK(fault_of<BundleError>([&] { Translator(bundle, {}); }).find("other inputs or outputs") != std::string::npos);
}

TEST_CASE("a bundle that is deleted before its weights are packed goes on translating, and says that it is slower") {
  const Scratch scratch;
  const auto bundle = scratch.bundle();
  const std::vector<std::string_view> texts{"the cat sees a bird", "one", "a big red dog"};
  std::vector<std::string> warnings;
  TranslatorOptions options;
  options.where.device = "cpu";
  options.warn = [&](const std::string& warning) { warnings.push_back(warning); };
  const Translator translator(bundle, options);
  std::filesystem::remove_all(bundle);
  const auto found = translator.translate(texts, {});
  const auto expected = Translator(kToyBundle, {}).translate(texts, {});
  for (std::size_t i = 0; i < texts.size(); ++i) CHECK(found[i].ids == expected[i].ids);
  translator.translate({texts[0]}, {});
  // None if the machine was so busy that packing came first.
  CHECK(warnings.size() <= 1);
  for (const std::string& warning : warnings) {
    CHECK(warning.find("does not load") != std::string::npos);
    CHECK(warning.find("batches take longer") != std::string::npos);
  }
}

TEST_CASE("a bundle that is deleted while it is open goes on translating") {
  const Scratch scratch;
  const auto bundle = scratch.bundle();
  const Translator translator(bundle, {});
  const auto before = translator.translate({"the cat sees a bird"}, {});
  std::filesystem::remove_all(bundle);
  CHECK(translator.translate({"the cat sees a bird"}, {})[0].ids == before[0].ids);
  CHECK(fault_of<BundleError>([&] { translator.self_check(); }).find("golden.json is missing") != std::string::npos);
}
