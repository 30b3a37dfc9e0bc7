#include "engines/build_record.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "bundle/files.hpp"
#include "bundle/hash.hpp"
#include "bundle/rules.hpp"
#include "bundle/strict_json.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxRecordBytes = 1 << 20;
constexpr std::int64_t kMaxSize = (std::int64_t{1} << 31) - 1;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Split runs of digits separated by dots. Return an empty list for other texts.
std::vector<std::string_view> dotted_parts(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find('.', start), text.size());
    const std::string_view part = text.substr(start, end - start);
    if (part.empty() || !std::all_of(part.begin(), part.end(), is_digit)) return {};
    parts.push_back(part);
    start = end + 1;
  }
  return parts;
}

bool is_version(const std::string& text) {
  const std::size_t count = dotted_parts(text).size();
  return 2 <= count && count <= 4;
}

bool is_capability(const std::string& text) {
  const auto parts = dotted_parts(text);
  return parts.size() == 2 && parts[1].size() == 1;
}

bool is_plain_name(const std::string& name) {
  const auto plain = [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), plain);
}

std::optional<std::string> decode_optional(const Value& value) {
  return value.is_null() ? std::nullopt : std::optional(value.text());
}

Range decode_sizes(const Value& value) {
  value.fields({"min", "opt", "max"});
  return {value["min"].integer(), value["opt"].integer(), value["max"].integer()};
}

LibraryVersion decode_library(const Value& value) {
  value.fields({"name", "version"});
  return {value["name"].literal({"tensorrt", "tensorrt_rtx"}), value["version"].text()};
}

TargetGpu decode_gpu(const Value& value) {
  value.fields({"name", "compute_capabilities", "compatibility", "multiprocessors"});
  TargetGpu gpu{decode_optional(value["name"]), {}, "", std::nullopt};
  for (const Value& item : value["compute_capabilities"].items()) gpu.compute_capabilities.push_back(item.text());
  gpu.compatibility = value["compatibility"].literal({"exact", "same_compute_capability", "ampere_plus"});
  if (!value["multiprocessors"].is_null()) gpu.multiprocessors = value["multiprocessors"].integer();
  return gpu;
}

CudaVersions decode_cuda(const Value& value) {
  value.fields({"driver", "runtime"});
  return {decode_optional(value["driver"]), decode_optional(value["runtime"])};
}

EnginePrecision decode_engine_precision(const Value& value) {
  value.fields({"type", "proof", "layers"});
  EnginePrecision precision{
      value["type"].literal({"float32", "float16"}), value["proof"].literal({"inspector", "network"}), {}};
  for (const auto& [type, count] : value["layers"].members()) precision.layers[type] = count.integer();
  return precision;
}

BuildFlags decode_flags(const Value& value) {
  value.fields({"optimization_level", "workspace"}, {"caches"});
  BuildFlags flags{value["optimization_level"].integer(), std::nullopt, std::nullopt};
  if (!value["workspace"].is_null()) flags.workspace = value["workspace"].integer();
  if (value.has("caches") && !value["caches"].is_null()) {
    flags.caches = value["caches"].literal({"select", "scatter"});
  }
  return flags;
}

Profile decode_profile(const Value& value) {
  value.fields({"batch", "source", "target"}, {"beams"});
  Profile profile{decode_sizes(value["batch"]), decode_sizes(value["source"]), std::nullopt, std::nullopt};
  if (!value["target"].is_null()) profile.target = decode_sizes(value["target"]);
  if (value.has("beams") && !value["beams"].is_null()) profile.beams = value["beams"].integer();
  return profile;
}

EngineFile decode_engine(const Value& value) {
  value.fields({"role", "file", "bytes", "sha256", "profiles"});
  EngineFile engine{value["role"].literal({"encoder", "decoder_step", "decoder_beams"}),
                    value["file"].text(),
                    value["bytes"].integer(),
                    value["sha256"].text(),
                    {}};
  for (const Value& profile : value["profiles"].items()) engine.profiles.push_back(decode_profile(profile));
  return engine;
}

BuildRecord decode(const Value& value) {
  value.fields({"format_version", "made_by", "library", "gpu", "cuda", "version_compatible", "bundle", "lowering",
                "id_type", "precision", "flags", "engines", "build_seconds", "peak_memory"});
  BuildRecord record;
  record.format_version = value["format_version"].integer();
  const Value made_by = value["made_by"];
  made_by.fields({"name", "version"});
  record.made_by = {made_by["name"].text(), made_by["version"].text()};
  record.library = decode_library(value["library"]);
  record.gpu = decode_gpu(value["gpu"]);
  record.cuda = decode_cuda(value["cuda"]);
  record.version_compatible = value["version_compatible"].boolean();
  for (const auto& [name, digest] : value["bundle"].members()) record.bundle[name] = digest.text();
  record.lowering = value["lowering"].literal({"scatter", "tensorscatter"});
  record.id_type = value["id_type"].literal({"int32", "int64"});
  record.precision = decode_engine_precision(value["precision"]);
  record.flags = decode_flags(value["flags"]);
  for (const Value& engine : value["engines"].items()) record.engines.push_back(decode_engine(engine));
  record.build_seconds = value["build_seconds"].number();
  record.peak_memory = value["peak_memory"].integer();
  return record;
}

// Checks between the fields of one record. Each check throws BundleError.
class Rules {
 public:
  Rules(const BuildRecord& record, const std::string& file) : record_(record), file_(file) {}

  void check() const {
    require(is_version(record_.library.version), "library.version is " + quote(record_.library.version) +
                                                     ", which is not two to four numbers with dots between");
    check_gpu();
    require(!record_.bundle.empty(), "bundle is empty");
    for (const auto& [name, digest] : record_.bundle) {
      require(is_hash(digest), "bundle[" + quote(name) + "] is not a sha256 of 64 lower-case hexadecimal digits");
    }
    require(record_.of_role("encoder").size() == 1, "engines must have exactly one of role 'encoder'");
    require(!record_.of_role("decoder_step").empty(), "engines must have at least one of role 'decoder_step'");
    std::set<std::string> names;
    for (const EngineFile& engine : record_.engines) {
      require(is_plain_name(engine.file),
              "engines names the file " + quote(engine.file) + ", which is not a plain file name");
      require(names.insert(engine.file).second, "engines names the file " + quote(engine.file) + " twice");
    }
    for (const EngineFile& engine : record_.engines) check_engine(engine);
    check_buckets();
  }

 private:
  const BuildRecord& record_;
  const std::string& file_;

  void require(bool holds, const std::string& fault) const {
    if (!holds) throw BundleError(file_ + ": " + fault);
  }

  void check_gpu() const {
    const TargetGpu& gpu = record_.gpu;
    require(!gpu.compute_capabilities.empty(), "gpu.compute_capabilities is empty");
    for (const std::string& capability : gpu.compute_capabilities) {
      require(is_capability(capability),
              "gpu.compute_capabilities has " + quote(capability) + ", which is not like '9.0'");
    }
    require(gpu.compatibility != "exact" || (gpu.name && gpu.compute_capabilities.size() == 1),
            "gpu.compatibility is exact, which takes a name and exactly one compute capability");
    require((gpu.compatibility == "exact") == (gpu.multiprocessors.value_or(0) > 0),
            "gpu.multiprocessors must be a positive number if gpu.compatibility is exact, else null");
  }

  void check_engine(const EngineFile& engine) const {
    require(engine.bytes >= 1 && is_hash(engine.sha256),
            quote(engine.file) + " has no size or a sha256 that is not 64 lower-case hexadecimal digits");
    require(!engine.profiles.empty(), quote(engine.file) + " has no profiles");
    for (std::size_t i = 0; i < engine.profiles.size(); ++i) {
      const Profile& profile = engine.profiles[i];
      const std::string start = "profile " + std::to_string(i) + " of " + quote(engine.file);
      require(profile.target.has_value() != (engine.role == "encoder"),
              start + " has a target where it must have none, or none where it must");
      require(profile.beams.has_value() == (engine.role == "decoder_beams"),
              start + " has beams where it must have none, or none where it must");
      const std::int64_t beams = profile.beams.value_or(2);
      require(2 <= beams && beams <= kMaxSize,
              start + ": beams is " + std::to_string(beams) + ", which is not 2 or more");
      check_sizes(profile.batch, start + ": batch");
      check_sizes(profile.source, start + ": source");
      if (profile.target) check_sizes(*profile.target, start + ": target");
    }
  }

  void check_sizes(const Range& sizes, const std::string& start) const {
    require(1 <= sizes.min && sizes.min <= sizes.opt && sizes.opt <= sizes.max && sizes.max <= kMaxSize,
            start + " must satisfy 1 <= min <= opt <= max");
  }

  void check_buckets() const {
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> seen;
    for (const EngineFile& engine : record_.engines) {
      if (engine.role == "encoder") continue;
      for (const Profile& profile : engine.profiles) {
        require(seen.emplace(profile.batch.max, profile.target->max, profile.beams.value_or(1)).second,
                "two profiles are for a batch of " + std::to_string(profile.batch.max) + " with a target of " +
                    std::to_string(profile.target->max));
      }
    }
  }
};

// Check the version first, since newer formats may differ in everything else.
void check_version(const Json& value, const std::string& file) {
  const auto found = value.find("format_version");
  if (found == value.end() || !found->is_number_integer() || found->get<std::int64_t>() < 1) {
    throw BundleError(file + " has no usable format_version: it is not the record of a build");
  }
  const auto version = found->get<std::int64_t>();
  if (version > kBuildFormatVersion) {
    throw BundleError(file + " has format_version " + std::to_string(version) + ", but this txport reads up to " +
                      std::to_string(kBuildFormatVersion) +
                      ": install a newer txport or build the engines again with this one");
  }
}

}  // namespace

std::string LibraryVersion::title() const { return (name == "tensorrt_rtx" ? "TensorRT-RTX " : "TensorRT ") + version; }

std::vector<std::int64_t> LibraryVersion::numbers() const {
  std::vector<std::int64_t> numbers;
  for (const std::string_view part : dotted_parts(version)) {
    std::int64_t number = std::numeric_limits<std::int64_t>::max();  // from_chars does not change it on overflow
    std::from_chars(part.data(), part.data() + part.size(), number);
    numbers.push_back(number);
  }
  return numbers;
}

BuildRecord BuildRecord::load(const fs::path& directory) {
  const fs::path path = directory / kBuildName;
  std::string data;
  try {
    data = read_file(path, kMaxRecordBytes + 1);
  } catch (const std::system_error& error) {
    throw BundleError(path.string() + " cannot be read (" + error.code().message() + ")");
  }
  return parse(data, path.string());
}

BuildRecord BuildRecord::parse(std::string_view data, const std::string& file) {
  if (data.size() > kMaxRecordBytes) {
    throw BundleError(file + " is larger than " + std::to_string(kMaxRecordBytes) +
                      " bytes: it is not the record of a build");
  }
  const Json json = core::parse(data, file);
  check_version(json, file);
  BuildRecord record = decode(Value(json, file));
  Rules(record, file).check();
  return record;
}

std::vector<EngineFile> BuildRecord::of_role(const std::string& role) const {
  std::vector<EngineFile> result;
  std::copy_if(engines.begin(), engines.end(), std::back_inserter(result),
               [&](const EngineFile& engine) { return engine.role == role; });
  return result;
}

void BuildRecord::check_files(const fs::path& directory) const {
  for (const EngineFile& engine : engines) {
    const fs::path path = directory / engine.file;
    try {
      const auto size = fs::file_size(path);
      if (size != static_cast<std::uintmax_t>(engine.bytes)) {
        throw BundleError(path.string() + " has " + std::to_string(size) + " bytes instead of " +
                          std::to_string(engine.bytes) + ": run tx-build again");
      }
      if (sha256_of(path) != engine.sha256) {
        throw BundleError(path.string() + " was changed (its SHA-256 differs): run tx-build again");
      }
    } catch (const std::system_error&) {  // from file system functions and from reading
      throw BundleError(path.string() + " is missing or cannot be read: run tx-build again");
    }
  }
}

}  // namespace txport::core
