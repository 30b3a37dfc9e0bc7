// The ONNX Runtime engine, with the CPU or the CUDA provider.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "engines/choice.hpp"
#include "engines/ort_buffers.hpp"

namespace txport::core {

// Open a bundle with ONNX Runtime, with the first of the chosen lowerings that the installed version can load. `warn`
// is called for failures in the background, in the thread of a call. Throws BundleError: ONNX Runtime cannot load the
// bundle; MissingLibrary, EngineError: the device cannot be used.
std::unique_ptr<Engine> open_ort(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
                                 const CpuShare& share, const std::function<void(const std::string&)>& warn);

// Run the encoder as Engine::encode does, and return its output in host memory; null if the engine is not ONNX Runtime
// on the CPU.
template <typename Number>
std::shared_ptr<const OrtMemory> encode_on_host(const Engine& engine, const std::vector<Number>& sources,
                                                const Ids& source_lengths);

}  // namespace txport::core
