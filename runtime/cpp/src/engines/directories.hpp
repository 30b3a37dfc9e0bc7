// Which of a bundle's TensorRT engines fits this machine, and for each that does not, why. An engine is native code,
// and a bundle may come from a stranger: engines are in this user's cache, where tx-build writes them. Those in a
// bundle, where earlier versions wrote them, run only if the caller trusts them.
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

// The engines that fit, the best first, and why each other directory does not: (name, reason) in name order.
struct Candidates {
  std::vector<Built> fitting;
  std::vector<std::pair<std::string, std::string>> refused;
};

// The folder of this user's engines for a bundle, by the hashes of its graphs and weights.
std::filesystem::path own_engines(const Manifest& manifest);

// Directories of engines that may run: this user's, then those of the bundle if the caller trusts them. Throws
// BundleError: others can write this user's engines.
std::vector<std::filesystem::path> usable_directories(const std::filesystem::path& bundle, const Manifest& manifest,
                                                      bool trust_engines);

// Why the engines of a bundle do not run, and what to do.
std::string untrusted(const std::filesystem::path& bundle);

// Look at every directory of engines that may run, for this GPU and this installed library; no engine file is opened.
Candidates candidates(const std::filesystem::path& bundle, const Manifest& manifest, const Gpu& gpu,
                      const LibraryVersion& library, bool trust_engines);

// The engines to run. Throws BundleError: none fits; the message lists the engines, the GPU and the library, and how to
// build them.
Built best(const std::filesystem::path& bundle, const Manifest& manifest, const Gpu& gpu, const LibraryVersion& library,
           bool trust_engines);

// Directories of engines, sorted by name, without hidden ones, which a build is still writing.
std::vector<std::filesystem::path> engine_directories(const std::filesystem::path& folder);

}  // namespace txport::core
