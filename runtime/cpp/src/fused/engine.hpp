// The fused engine: a bundle on the CPU without a library, the encoder and whole groups of steps as one call each, on
// threads that stay. See README.md.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "cores.hpp"
#include "engine.hpp"

namespace txport::core {

// Why this engine cannot run a bundle on this machine, in words; empty if it can.
std::string fused_lacks(const Manifest& manifest);

// Maps and packs the weights. Throws EngineError: fused_lacks. BundleError: the weights cannot be read. ResourceError:
// not enough memory.
std::unique_ptr<Engine> open_fused(const std::filesystem::path& directory, const Manifest& manifest,
                                   const CpuShare& share);

}  // namespace txport::core
