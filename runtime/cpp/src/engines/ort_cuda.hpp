// ONNX Runtime's CUDA provider as programs of the device layer: it runs on the device's own buffers and stream.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "device/device.hpp"
#include "engine.hpp"
#include "engines/choice.hpp"

namespace txport::core {

// A bundle on ONNX Runtime's CUDA provider, its state on the GPU. `warn` is called, in the thread of a call, if its
// steps cannot be captured.
// Throws BundleError: ONNX Runtime does not load it. MissingLibrary: there is no GPU, or this ONNX Runtime has no CUDA
// provider.
std::unique_ptr<Engine> open_ort_cuda(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
                                      const std::function<void(const std::string&)>& warn);

// The same over any device: with `choice.device` cpu, one whose memory is the host's, as in tests.
std::unique_ptr<Engine> open_ort_on(std::shared_ptr<Device> device, const Bundle& bundle, const Manifest& manifest,
                                    const Choice& choice, const std::function<void(const std::string&)>& warn);

}  // namespace txport::core
