// build.json, which describes a directory of TensorRT engines: the files, the bundle that they were built from, and the
// machines on which they run.
//
// The structs mirror the file field by field. The Python twin is txport.runtime.engines.build_record.
// tests/data/engines contains files that both must accept or refuse.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.hpp"

namespace txport::core {

inline constexpr std::int64_t kBuildFormatVersion = 1;
inline constexpr const char* kBuildName = "build.json";
// Outputs of engines whose names begin so are not read: tx-build adds them for TensorRT 8.6, against a wrong fusion.
inline constexpr const char* kScores = "self_scores_";

// Name and version of the library that built the engines.
struct LibraryVersion {
  std::string name;  // tensorrt or tensorrt_rtx
  std::string version;

  // Return name and version for messages: "TensorRT 10.3.0".
  std::string title() const;
  // Return the numbers of `version`, beginning with the major version.
  std::vector<std::int64_t> numbers() const;
};

// The GPU for which engines were built.
struct TargetGpu {
  std::optional<std::string> name;                // CUDA's name; no value if the engines were built without a GPU
  std::vector<std::string> compute_capabilities;  // "MAJOR.MINOR"; several only if the library can build for several
  std::string compatibility;                      // exact, same_compute_capability or ampere_plus
  std::optional<std::int64_t> multiprocessors;    // if exact: engines for 16 may fail on a GPU of the same name with 8
};

// CUDA versions at the build, for information only.
struct CudaVersions {
  std::optional<std::string> driver;
  std::optional<std::string> runtime;
};

// The precision in which the engines compute, and how that was verified.
struct EnginePrecision {
  std::string type;
  std::string proof;
  std::map<std::string, std::int64_t> layers;
};

// Options of the builder. `workspace` is in bytes; no value: TensorRT's default. `caches`: "select" or "scatter", the
// layers that write caches in the `scatter` lowering.
struct BuildFlags {
  std::int64_t optimization_level = 0;
  std::optional<std::int64_t> workspace;
  std::optional<std::string> caches;
};

// Sizes that one optimization profile accepts.
struct Profile {
  Range batch;  // rows; in beam search, sentences
  Range source;
  std::optional<Range> target;        // cache length in positions; no value for an encoder
  std::optional<std::int64_t> beams;  // rows of a sentence; only for beam search
};

// One serialized engine; `profiles[i]` is its optimization profile i.
struct EngineFile {
  std::string role;
  std::string file;
  std::int64_t bytes = 0;
  std::string sha256;
  std::vector<Profile> profiles;
};

struct BuildRecord {
  std::int64_t format_version = 0;
  MadeBy made_by;
  LibraryVersion library;
  TargetGpu gpu;
  CudaVersions cuda;
  bool version_compatible = false;            // later releases of the same major version can also load the engines
  std::map<std::string, std::string> bundle;  // file names of the bundle and their SHA-256
  std::string lowering;
  std::string id_type;  // type of tensors that are int64 in the manifest (TensorRT 8.6 has no 64-bit integers)
  EnginePrecision precision;
  BuildFlags flags;
  std::vector<EngineFile> engines;
  double build_seconds = 0;
  std::int64_t peak_memory = 0;  // peak memory of the build process in bytes

  // Read and validate directory/build.json. Throws BundleError: it cannot be read, has a newer format, or is
  // contradictory.
  static BuildRecord load(const std::filesystem::path& directory);

  // Decode and validate the bytes of a build.json. `file` is its name in messages. Throws BundleError as `load` does.
  static BuildRecord parse(std::string_view data, const std::string& file = kBuildName);

  // Return the engine files of a role.
  std::vector<EngineFile> of_role(const std::string& role) const;

  // Check the size and hash of every engine file. Throws BundleError: a file is missing or was changed.
  void check_files(const std::filesystem::path& directory) const;
};

}  // namespace txport::core
