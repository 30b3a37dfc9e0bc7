#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bundle/archive.hpp"
#include "bundle/bundle.hpp"
#include "bundle/external_data.hpp"
#include "bundle/manifest.hpp"
#include "errors.hpp"
#include "repository.hpp"
#include "translator.hpp"

using namespace txport::core;

namespace {

namespace fs = std::filesystem;

const fs::path kPacked = kTests / "data" / "toy_bundle.txb";

Translator open(const Bundle& bundle) {
  TranslatorOptions how;
  how.where.engine = "ort";
  how.threads = 1;
  return Translator(bundle, how);
}

std::vector<Ids> ids_of(const Translator& translator) {
  std::vector<Ids> result;
  for (const Translation& translation : translator.translate({"the cat sees a bird", "", "a dog"}, {})) {
    result.push_back(translation.ids);
  }
  return result;
}

void write(const fs::path& path, const std::string& data) { std::ofstream(path, std::ios::binary) << data; }

}  // namespace

TEST_CASE("a bundle in one file, or in memory, is as the directory that it was packed from") {
  const std::string data = contents(kPacked);  // its bytes are on the heap, and so at a multiple of 16
  const auto expected = ids_of(open(kToyBundle));
  const Manifest manifest = Manifest::load(kToyBundle);
  for (const Bundle& bundle : {Bundle(kPacked), Bundle::of_memory(data)}) {
    CHECK_FALSE(bundle.is_directory());
    CHECK(Manifest::load(bundle).sha256 == manifest.sha256);
    manifest.check_files(bundle, [](const std::string&) { return true; });
    for (const auto& [name, entry] : manifest.files) CHECK(bundle.read(name, 1 << 20) == contents(kToyBundle / name));
    const Translator translator = open(bundle);
    CHECK(ids_of(translator) == expected);
    CHECK(translator.self_check().empty());
  }
  CHECK(Bundle(kPacked).place(kWeightsName).start % 4096 == 0);
  CHECK(Bundle::of_memory(data).place(kWeightsName).path.empty());
}

TEST_CASE("the bytes of an archive's member are lent, and there again afterwards") {
  const Bundle bundle(kPacked);
  const std::string expected = contents(kToyBundle / kWeightsName);
  for (int i = 0; i < 2; ++i) {
    const auto data = bundle.lent(kWeightsName, static_cast<std::int64_t>(expected.size()));
    CHECK(std::string(reinterpret_cast<const char*>(data.get()), expected.size()) == expected);
  }
  CHECK_THROWS_AS((void)bundle.lent(kWeightsName, 1), BundleError);
  CHECK(Bundle(kToyBundle).lent(kWeightsName, 1) == nullptr);
}

TEST_CASE("any changed or missing byte outside an archive's members is refused") {
  const std::string data = contents(kPacked);
  const auto members = read_archive(data, "it");
  CHECK(members.size() == Manifest::load(kToyBundle).files.size() + 1);
  std::vector<bool> inside(data.size());
  for (const auto& [name, bytes] : members) {
    const auto start = static_cast<std::size_t>(bytes.data() - data.data());
    for (std::size_t i = 0; i < bytes.size(); ++i) inside[start + i] = true;
  }
  std::string changed = data;
  for (std::size_t i = 0; i < data.size(); i += i + 1500 < data.size() ? 13 : 1) {
    changed[i] = static_cast<char>(changed[i] ^ 1 << i % 8);
    if (inside[i]) {
      CHECK_NOTHROW(read_archive(changed, "it"));
    } else {
      CHECK_THROWS_AS(read_archive(changed, "it"), BundleError);
    }
    changed[i] = data[i];
    CHECK_THROWS_AS(read_archive(std::string_view(data).substr(0, i), "it"), BundleError);
  }
}

TEST_CASE("what is wrong with a bundle in one file is said with its name") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "model.txb";
  const auto fault = [&](const std::string& data) {
    write(path, data);
    return fault_of<BundleError>([&] { Manifest::load(path); });
  };
  const std::string none = path.string() + " is not a bundle: give a directory of tx-export or a file of tx-pack";
  CHECK(fault("") == none);
  CHECK(fault("no archive at all, but longer than its end") == none);
  std::string data = contents(kPacked);
  CHECK(fault(data + "x") == none);
  data[0] = 'Q';
  CHECK(fault(data) == path.string() +
                           " is not a valid file of tx-pack, a member's header differs from the directory: copy it or "
                           "pack it again");
  CHECK(fault_of<InputError>([&] {
          Bundle::of_memory(std::string_view(data).substr(1));
        }).find("is not a multiple of 8") != std::string::npos);
}

TEST_CASE("a member that was changed is found by its hash") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "model.txb";
  std::string data = contents(kPacked);
  const auto golden = Bundle(kPacked).place(kGoldenName);
  data[golden.start] = '[';
  write(path, data);
  CHECK(fault_of<BundleError>([&] { open(path); }) ==
        path.string() + "/golden.json was changed (its SHA-256 differs): copy or export the bundle again");
}

TEST_CASE("a file that was replaced is not read on") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "model.txb";
  fs::copy_file(kPacked, path);
  fs::copy_file(kPacked, scratch.path() / "other");
  const Bundle bundle(path);
  CHECK(bundle.place(kWeightsName).path == fs::canonical(path));
  fs::rename(scratch.path() / "other", path);
  CHECK(fault_of<BundleError>([&] { (void)bundle.place(kWeightsName); }) ==
        path.string() + " was replaced or changed since it was opened: open it again");
}

TEST_CASE("external data of what is no ONNX model is not moved") {
  const std::string model = contents(kToyBundle / "onnx" / "encoder.onnx");
  CHECK(moved_external_data(model, "weights.bin", 0).size() == model.size());
  // A length beyond the end, a wire type that there is not, a number without an end; an offset that is no number.
  for (const char* text : {"\x3a\x05xx", "\x07", "\x80", "\x3a\x0d\x2a\x0b\x6a\x09\x0a\x06offset\x12"}) {
    CHECK_THROWS_AS(moved_external_data(text, "x", 1), BundleError);
  }
  CHECK(moved_external_data("", "x", 1).empty());
}
