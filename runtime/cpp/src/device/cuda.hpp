// The device layer on CUDA's driver, by its C ABI alone: neither its headers nor the CUDA toolkit are needed.
#pragma once

#include "device/device.hpp"

namespace txport::core {

// Makes queues on device 0, each a stream that waits for no other. Throws InputError: there is no GPU, or its driver is
// too old. What a queue is asked for throws DeviceError where CUDA refuses it, and InputError for want of memory.
MakeDevice cuda_devices();

}  // namespace txport::core
