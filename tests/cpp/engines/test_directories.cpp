// The records that tests/data/engines describes: what Python accepts and refuses, C++ does too, and both choose alike.

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engines/directories.hpp"
#include "errors.hpp"
#include "patches.hpp"
#include "repository.hpp"

using namespace txport::core;

namespace {

const std::filesystem::path kRecords = kTests / "data" / "engines";

std::string record_of_tensorrt() { return contents(kRecords / "base.json"); }

bool contains(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("shared records of builds") {
  const Patches records(kRecords / "patches.json");
  for (const std::string& name : records.good) {
    CAPTURE(name);
    CHECK_NOTHROW(BuildRecord::parse(records.data(name)));
  }
  for (const std::string& name : records.bad) {
    CAPTURE(name);
    const std::string fault = fault_of<BundleError>([&] { BuildRecord::parse(records.data(name), "a/build.json"); });
    CAPTURE(fault);
    CHECK(records.says(name, "a/build.json", fault));
  }
}

TEST_CASE("the fields of a record") {
  const BuildRecord record = BuildRecord::parse(record_of_tensorrt());
  CHECK(record.library.title() == "TensorRT 8.6.0");
  CHECK(record.gpu.name == "NVIDIA H200");
  CHECK(record.id_type == "int32");
  CHECK(record.of_role("encoder").size() == 1);
  CHECK(record.of_role("decoder_step").front().profiles.front().target.has_value());
}

TEST_CASE("the choice among engines") {
  const Patches records(kRecords / "patches.json");
  const auto choices = Patches::Json::parse(contents(kRecords / "choices.json"));
  for (const auto& item : choices["cases"]) {
    const std::string name = item["name"];
    CAPTURE(name);
    const Scratch scratch;
    for (const auto& build : item["builds"].items()) {
      write(scratch.path() / kEnginesName / build.key() / kBuildName, records.value(build.value()).dump());
    }
    Manifest manifest = Manifest::load(kToyBundle);
    manifest.files.clear();
    for (const auto& file : choices["files"].items()) manifest.files[file.key()] = {1, file.value()};
    const Gpu gpu{item["gpu"]["name"], item["gpu"]["compute_capability"], item["gpu"]["multiprocessors"]};
    const LibraryVersion library{item["library"]["name"], item["library"]["version"]};
    const auto refused = candidates(scratch.path(), manifest, gpu, library, true).refused;
    const auto reasons = item["reasons"].get<std::map<std::string, std::string>>();
    CHECK(std::map<std::string, std::string>(refused.begin(), refused.end()) == reasons);
    if (!item["chosen"].is_null()) {
      CHECK(best(scratch.path(), manifest, gpu, library, true).directory.filename() ==
            item["chosen"].get<std::string>());
      continue;
    }
    const std::string fault = fault_of<BundleError>([&] { best(scratch.path(), manifest, gpu, library, true); });
    CHECK(contains(fault, gpu.name + ", compute capability " + gpu.compute_capability));
    CHECK(contains(fault, "run tx-build " + scratch.path().string() + " here"));
    CHECK(contains(fault, "there is none") == reasons.empty());
    for (const auto& [directory, reason] : reasons) CHECK(contains(fault, "engines/" + directory + ": " + reason));
  }
}

TEST_CASE("a folder that cannot be a record") {
  const Scratch scratch;
  std::filesystem::create_directories(scratch.path() / kEnginesName / "a" / kBuildName);
  write(scratch.path() / kEnginesName / "no directory", "");
  const auto found = candidates(scratch.path(), Manifest::load(kToyBundle), {"", "9.0"}, {"tensorrt", "8.6.0"}, true);
  REQUIRE(found.refused.size() == 1);
  CHECK(contains(found.refused[0].second, "build.json cannot be read"));
  CHECK(contains(fault_of<BundleError>([&] { BuildRecord::parse(std::string((1 << 20) + 1, ' ')); }), "larger than"));
}

TEST_CASE("engines of a bundle run only if they are trusted, and this user's if nobody else writes them") {
  const Scratch scratch;
  const auto bundle = scratch.bundle();
  Manifest manifest = Manifest::load(bundle);
  auto value = nlohmann::json::parse(record_of_tensorrt());
  value["bundle"] = nlohmann::json::object();
  for (const auto& [name, entry] : manifest.files) {
    if (name.rfind("onnx/", 0) == 0) value["bundle"][name] = entry.sha256;
  }
  write(bundle / kEnginesName / "made" / kBuildName, value.dump());
  const BuildRecord record = BuildRecord::parse(value.dump());
  const Gpu gpu{*record.gpu.name, record.gpu.compute_capabilities[0], record.gpu.multiprocessors.value_or(0)};
  CHECK(candidates(bundle, manifest, gpu, record.library, false).fitting.empty());
  const std::string fault = fault_of<BundleError>([&] { best(bundle, manifest, gpu, record.library, false); });
  CHECK(contains(fault, "there is none; run tx-build " + bundle.string() + " here; " + untrusted(bundle)));
  CHECK(best(bundle, manifest, gpu, record.library, true).directory == bundle / kEnginesName / "made");
  ::setenv("TXPORT_CACHE", (scratch.path() / "cache").c_str(), 1);
  const auto own = user_engines(manifest);
  CHECK(own.parent_path() == scratch.path() / "cache" / "engines");
  write(own / "made" / kBuildName, value.dump());
  std::filesystem::permissions(own, std::filesystem::perms::owner_all);
  CHECK(best(bundle, manifest, gpu, record.library, false).directory == own / "made");
  std::filesystem::permissions(own, std::filesystem::perms::group_write, std::filesystem::perm_options::add);
  CHECK(contains(fault_of<BundleError>([&] { best(bundle, manifest, gpu, record.library, false); }),
                 "other users can write the TensorRT engines in " + own.string()));
  ::unsetenv("TXPORT_CACHE");
}

TEST_CASE("an engine file that was changed is refused") {
  const Scratch scratch;
  BuildRecord record = BuildRecord::parse(record_of_tensorrt());
  for (EngineFile& engine : record.engines) {
    write(scratch.path() / engine.file, engine.role);
    engine.bytes = static_cast<std::int64_t>(engine.role.size());
    engine.sha256 = sha256(engine.role);
  }
  record.check_files(scratch.path());
  const auto refused = [&](const std::string& now) {
    write(scratch.path() / record.engines[0].file, now);
    return fault_of<BundleError>([&] { record.check_files(scratch.path()); });
  };
  CHECK(contains(refused("encoded"), "was changed (its SHA-256 differs): run tx-build again"));
  CHECK(contains(refused("new"), "has 3 bytes instead of 7: run tx-build again"));
  std::filesystem::remove(scratch.path() / record.engines[0].file);
  CHECK(contains(fault_of<BundleError>([&] { record.check_files(scratch.path()); }), "is missing or cannot be read"));
}

TEST_CASE("a machine without a driver says so") {
  if (::dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) return;
  const auto found = find_gpu();
  REQUIRE(std::holds_alternative<std::string>(found));
  CHECK(std::get<std::string>(found) == "there is no NVIDIA driver (libcuda.so.1)");
}

TEST_CASE("CUDA names its GPU") {
  if (std::getenv("TXPORT_TEST_CUDA") == nullptr) return;  // the driver in host memory is not in place
  const auto found = find_gpu();
  REQUIRE(std::holds_alternative<Gpu>(found));
  CHECK(std::get<Gpu>(found).name == "host memory");
  CHECK(std::get<Gpu>(found).compute_capability == "9.0");
  CHECK(std::get<Gpu>(found).multiprocessors == 132);
}
