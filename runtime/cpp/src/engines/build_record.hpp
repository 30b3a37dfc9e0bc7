// build.json: the contents of a directory of TensorRT engines, what they were built from and where they run.
//
// The structs mirror the file field by field, as txport.runtime.engines.build_record does in Python; tests/data/engines
// holds what both must accept and refuse.
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

// A library as it calls itself; its engines are for this version.
struct LibraryVersion {
  std::string name;  // tensorrt or tensorrt_rtx
  std::string version;

  // As people write it: "TensorRT 10.3.0".
  std::string title() const;
  // The numbers of `version`, the major one first.
  std::vector<std::int64_t> numbers() const;
};

// The GPU that engines are for.
struct TargetGpu {
  std::optional<std::string> name;                // as CUDA names it; nothing if they were built without a GPU
  std::vector<std::string> compute_capabilities;  // "MAJOR.MINOR"; several only where the library builds for several
  std::string compatibility;                      // exact, same_compute_capability or ampere_plus
  std::optional<std::int64_t> multiprocessors;    // if exact: engines for 16 may fail on 8 of the same name
};

// CUDA at the build, for people only.
struct CudaVersions {
  std::optional<std::string> driver;
  std::optional<std::string> runtime;
};

// What the engines compute in, and how that was proved.
struct EnginePrecision {
  std::string type;
  std::string proof;
  std::map<std::string, std::int64_t> layers;
};

// Options of the builder; `workspace` in bytes, nothing for its own choice; `caches`: "select" or "scatter", the layers
// that write caches in the `scatter` lowering.
struct BuildFlags {
  std::int64_t optimization_level = 0;
  std::optional<std::int64_t> workspace;
  std::optional<std::string> caches;
};

// Sizes that one optimization profile accepts.
struct Profile {
  Range batch;  // rows; of beam search, sentences
  Range source;
  std::optional<Range> target;        // the cache length in positions; nothing for an encoder
  std::optional<std::int64_t> beams;  // rows of a sentence; nothing for all but beam search
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
  bool version_compatible = false;            // later versions of the same major version may load the engines too
  std::map<std::string, std::string> bundle;  // file names of the bundle and their SHA-256
  std::string lowering;
  std::string id_type;  // of every tensor that the manifest calls int64 (TensorRT 8.6 has no 64-bit integers)
  EnginePrecision precision;
  BuildFlags flags;
  std::vector<EngineFile> engines;
  double build_seconds = 0;
  std::int64_t peak_memory = 0;  // the maximum number of bytes that the building process held at once

  // Read and validate directory/build.json.
  // Throws BundleError: it cannot be read, is of a newer format, or contradicts itself.
  static BuildRecord load(const std::filesystem::path& directory);

  // Decode and validate the bytes of a build.json; `file` is its name in messages. Throws BundleError, as `load`.
  static BuildRecord parse(std::string_view data, const std::string& file = kBuildName);

  // The engine files of a role.
  std::vector<EngineFile> of_role(const std::string& role) const;

  // Compare every engine file with its size and hash. Throws BundleError: one is missing or was changed.
  void check_files(const std::filesystem::path& directory) const;
};

}  // namespace txport::core
