// ONNX Runtime's CUDA provider as a program of the device layer. It uses the buffers and the stream of the device.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "device/device.hpp"
#include "engine.hpp"
#include "engines/choice.hpp"

namespace txport::core {

// Open a bundle with ONNX Runtime's CUDA provider. Its states are on the GPU. `warn` is called if steps cannot be
// captured, in the thread of a call. Throws BundleError: ONNX Runtime cannot load the bundle; MissingLibrary: there is
// no GPU, or this ONNX Runtime has no CUDA provider.
std::unique_ptr<Engine> open_ort_cuda(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
                                      const std::function<void(const std::string&)>& warn);

// The same on any device. With `choice.device` cpu, the memory of the device must be host memory, as in tests.
std::unique_ptr<Engine> open_ort_on(std::shared_ptr<Device> device, const Bundle& bundle, const Manifest& manifest,
                                    const Choice& choice, const std::function<void(const std::string&)>& warn);

}  // namespace txport::core
