// Which of a bundle's TensorRT engines fits this machine, and for each that does not, why.
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

// Look at every directory of bundle/engines, for this GPU and this installed library; no engine file is opened.
Candidates candidates(const std::filesystem::path& bundle, const Manifest& manifest, const Gpu& gpu,
                      const LibraryVersion& library);

// The engines to run. Throws BundleError: none fits; the message lists what was found and what is here, and how to
// build them.
Built best(const std::filesystem::path& bundle, const Manifest& manifest, const Gpu& gpu,
           const LibraryVersion& library);

// Directories of engines, sorted by name; without those that a build is still writing, whose names begin with a dot.
std::vector<std::filesystem::path> engine_directories(const std::filesystem::path& bundle);

}  // namespace txport::core
