// The device layer over CUDA's driver, by its C ABI alone: neither its headers nor the CUDA toolkit are needed.
#pragma once

#include "device/device.hpp"

namespace txport::core {

// Opens streams on device 0, none of which waits for another. Throws MissingLibrary: there is no GPU or no driver, or
// the driver is too old. The devices throw EngineError where a CUDA call fails, and ResourceError where the GPU's
// memory is exhausted.
MakeDevice cuda_devices();

}  // namespace txport::core
