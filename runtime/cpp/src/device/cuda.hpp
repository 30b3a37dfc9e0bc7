// The device layer over CUDA's driver, by its C ABI alone: neither its headers nor the CUDA toolkit are needed.
#pragma once

#include <memory>

#include "device/device.hpp"

namespace txport::core {

// Device 0 and a stream of its own, which waits for no other. Its context is current from here on. Throws
// MissingLibrary: there is no GPU or no driver, or the driver is too old. The device throws EngineError where a CUDA
// call fails, and ResourceError where the GPU's memory is exhausted.
std::shared_ptr<Device> cuda_device();

}  // namespace txport::core
