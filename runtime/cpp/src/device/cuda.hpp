// The device layer on CUDA's driver API. It uses only the C ABI, without CUDA's headers or toolkit.
#pragma once

#include <memory>

#include "device/device.hpp"

namespace txport::core {

// Open device 0 with a new stream, which does not synchronize with other streams. Its context becomes current. Throws
// MissingLibrary: there is no GPU or no driver, or the driver is too old. The device throws EngineError if a CUDA call
// fails, and ResourceError if GPU memory is exhausted.
std::shared_ptr<Device> cuda_device();

}  // namespace txport::core
