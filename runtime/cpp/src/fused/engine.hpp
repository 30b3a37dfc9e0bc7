// The fused engine: txport's engine for CPUs, with its own kernels. The encoder is one call, and so is a whole group of
// steps. Its threads live as long as the engine. See README.md.
#pragma once

#include <memory>
#include <string>

#include "../engine.hpp"
#include "bundle/parameters.hpp"
#include "cores.hpp"

namespace txport::core {

// Return the reason why this engine cannot run on this machine; empty if it can.
std::string fused_lacks();

// Map and pack the weights of a model whose manifest was checked. The file is not needed afterwards. Throws
// EngineError: the engine cannot run on this machine; BundleError: the weights cannot be read; ResourceError: not
// enough memory.
std::unique_ptr<Engine> open_fused(const ModelFile& file, const CpuShare& share);

}  // namespace txport::core
