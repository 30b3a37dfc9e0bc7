// The fused engine: a model on the CPU without a library, the encoder and whole groups of steps as one call each, on
// threads that stay. See README.md.
#pragma once

#include <memory>
#include <string>

#include "../engine.hpp"
#include "bundle/parameters.hpp"
#include "cores.hpp"

namespace txport::core {

// Why this engine cannot run on this machine, in words; empty if it can.
std::string fused_lacks();

// Maps and packs the weights of a model that was checked; the file is not needed afterwards. Throws EngineError:
// fused_lacks. BundleError: the weights cannot be read. ResourceError: not enough memory.
std::unique_ptr<Engine> open_fused(const ModelFile& file, const CpuShare& share);

}  // namespace txport::core
