// The manifests that tests/data/manifests describes: what Python accepts and refuses, C++ does too, in the same words.

#include <doctest/doctest.h>
#ifndef _WIN32
#include <sys/stat.h>
#endif

#include <cstdlib>
#include <fstream>

#include "bundle/manifest.hpp"
#include "errors.hpp"
#include "patches.hpp"
#include "repository.hpp"

using namespace txport::core;

namespace {

bool contains(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

}  // namespace

TEST_CASE("shared manifests") {
  const Patches manifests(kTests / "data" / "manifests" / "patches.json");
  for (const std::string& name : manifests.good) {
    CAPTURE(name);
    CHECK_NOTHROW(Manifest::parse(manifests.data(name)));
  }
  for (const std::string& name : manifests.bad) {
    CAPTURE(name);
    const std::string fault = fault_of<BundleError>([&] { Manifest::parse(manifests.data(name), "a/manifest.json"); });
    CAPTURE(fault);
    CHECK(manifests.says(name, "a/manifest.json", fault));
  }
  CHECK(manifests.data("toy") == contents(kToyBundle / "manifest.json"));
}

TEST_CASE("the fields of the toy bundle") {
  const Manifest manifest = Manifest::load(kToyBundle);
  CHECK(manifest.made_by.name == "toy");
  CHECK(manifest.limits().source == 24);
  CHECK(manifest.tokens.eos == 3);
  CHECK(manifest.tokenizer.kind == "sentencepiece");
  CHECK(manifest.step("scatter").file == "onnx/decoder_step.scatter.onnx");
  CHECK(manifest.encoder().role == "encoder");
  CHECK(manifest.lowerings() == std::vector<std::string>{"ort", "scatter", "tensorscatter"});
  CHECK(manifest.usable_lowerings("") == manifest.lowerings());
  CHECK(manifest.usable_lowerings("scatter") == std::vector<std::string>{"scatter"});
  CHECK(contains(fault_of<InputError>([&] { manifest.usable_lowerings("fused"); }), "'fused' is unknown"));
  CHECK(manifest.text == contents(kToyBundle / "manifest.json"));
}

TEST_CASE("directories that are no bundles") {
  const Scratch scratch;
  CHECK(contains(fault_of<BundleError>([&] { Manifest::load(scratch.path() / "nothing"); }), "does not exist"));
  CHECK(contains(fault_of<BundleError>([&] { Manifest::load(scratch.path()); }), "has no manifest.json"));
  std::filesystem::create_directory(scratch.path() / "manifest.json");
  CHECK(contains(fault_of<BundleError>([&] { Manifest::load(scratch.path()); }), "cannot be read"));
}

#ifndef _WIN32
TEST_CASE("a named pipe is not opened") {
  const Scratch scratch;
  REQUIRE(::mkfifo((scratch.path() / "manifest.json").c_str(), 0600) == 0);
  CHECK(contains(fault_of<BundleError>([&] { Manifest::load(scratch.path()); }), "manifest.json is not a file"));
}
#endif

TEST_CASE("files of a bundle that were changed") {
  const Scratch scratch;
  const auto bundle = scratch.bundle();
  const auto weights = bundle / "onnx" / "weights.bin";
  const auto load = [&] { Manifest::load(bundle); };
  const auto check = [&] { Manifest::load(bundle).check_files(bundle, [](const std::string&) { return true; }); };
  CHECK_NOTHROW(check());
  SUBCASE("one is gone") {
    std::filesystem::remove(weights);
    CHECK(contains(fault_of<BundleError>(load), "weights.bin is missing"));
  }
  SUBCASE("one is longer") {
    std::ofstream(weights, std::ios::app) << "x";
    CHECK(contains(fault_of<BundleError>(load), "bytes instead of"));
  }
  SUBCASE("one has other bytes") {
    std::string data = contents(weights);
    data[data.size() / 2] = static_cast<char>(data[data.size() / 2] + 1);
    std::ofstream(weights, std::ios::binary) << data;
    CHECK_NOTHROW(load());
    CHECK(contains(fault_of<BundleError>(check), "SHA-256 differs"));
  }
  SUBCASE("one is a link that leaves the bundle") {
    std::filesystem::rename(weights, scratch.path() / "weights.bin");
    std::filesystem::create_symlink(scratch.path() / "weights.bin", weights);
    CHECK(contains(fault_of<BundleError>(load), "link that leaves the bundle"));
  }
  SUBCASE("one is a directory") {
    std::filesystem::remove(weights);
    std::filesystem::create_directory(weights);
    CHECK(contains(fault_of<BundleError>(load), "is not a file"));
  }
  SUBCASE("one is a loop of links") {
    std::filesystem::remove(weights);
    std::filesystem::create_symlink("weights.bin", weights);
    CHECK(contains(fault_of<BundleError>(load), "is missing or cannot be read"));
  }
}

TEST_CASE("a file that only people read may be missing, but not be changed") {
  const Scratch scratch;
  const auto bundle = scratch.path() / "bundle";
  std::filesystem::copy(kToyBundle, bundle, std::filesystem::copy_options::recursive);
  Manifest manifest = Manifest::load(bundle);
  manifest.files["README.md"] = {5, std::string(64, '0')};
  const auto nothing = [](const std::string& /*name*/) { return false; };
  manifest.check_files(Bundle(bundle), nothing);
  manifest.check_files(Bundle(kToyBundle.string() + ".txb"), nothing);
  std::ofstream(bundle / "README.md") << "other than it was";
  CHECK(contains(fault_of<BundleError>([&] { manifest.check_files(Bundle(bundle), nothing); }), "README.md"));
  manifest.files["notes.txt"] = {5, std::string(64, '0')};
  std::filesystem::remove(bundle / "README.md");
  CHECK(contains(fault_of<BundleError>([&] { manifest.check_files(Bundle(bundle), nothing); }), "notes.txt"));
}
