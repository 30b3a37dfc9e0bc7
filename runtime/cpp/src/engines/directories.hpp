// Search for TensorRT engines of a bundle that fit this machine. Engines are native code, and a bundle may come from an
// untrusted source. Therefore tx-build writes engines to this user's cache. Engines in a bundle, where earlier versions
// wrote them, run only if the caller trusts them.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "bundle/manifest.hpp"
#include "device/gpu.hpp"
#include "engines/build_record.hpp"

namespace txport::core {

inline constexpr const char* kEnginesName = "engines";

// A directory of engines and its record.
struct Built {
  std::filesystem::path directory;
  BuildRecord record;
};

// The engines that fit, the best first, and the other directories with the reason why they do not fit: (name, reason),
// sorted by name.
struct Candidates {
  std::vector<Built> fitting;
  std::vector<std::pair<std::string, std::string>> refused;
};

// Return the directory of this user's engines for a bundle. Its name depends on the hashes of the bundle's graphs and
// weights.
std::filesystem::path user_engines(const Manifest& manifest);

// Return the directories of engines that may run: first this user's, then those of the bundle if the caller trusts
// them. Throws BundleError: other users can write this user's engines.
std::vector<std::filesystem::path> usable_directories(const std::filesystem::path& bundle, const Manifest& manifest,
                                                      bool trust_engines);

// Return a message that explains why the engines of a bundle do not run, and what to do.
std::string untrusted(const std::filesystem::path& bundle);

// Check every directory of engines that may run against the GPU and the installed library. Engine files are not opened.
Candidates candidates(const std::filesystem::path& bundle, const Manifest& manifest, const Gpu& gpu,
                      const LibraryVersion& library, bool trust_engines);

// Return the engines to run. Throws BundleError: none fits. The message lists the engines, the GPU and the library, and
// explains how to build engines.
Built best(const std::filesystem::path& bundle, const Manifest& manifest, const Gpu& gpu, const LibraryVersion& library,
           bool trust_engines);

// Return the directories of engines in a folder, sorted by name. Hidden directories are skipped, since a build is still
// writing them.
std::vector<std::filesystem::path> engine_directories(const std::filesystem::path& folder);

}  // namespace txport::core
