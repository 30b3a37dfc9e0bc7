// The engine on ONNX Runtime, by its CPU provider or its CUDA provider.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "engines/choice.hpp"
#include "engines/ort_buffers.hpp"

namespace txport::core {

// A bundle on ONNX Runtime, with the first of the chosen lowerings that the installed version loads. `warn` is called,
// in the thread of a call, with what went wrong in the background.
// Throws BundleError: ONNX Runtime does not load it. MissingLibrary, EngineError: it cannot run on that device.
std::unique_ptr<Engine> open_ort(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
                                 const CpuShare& share, const std::function<void(const std::string&)>& warn);

// What the encoder makes of sentences, as Engine::encode, in host memory; null for an engine that is not ONNX Runtime's
// on the CPU.
template <typename Number>
std::shared_ptr<const OrtMemory> encode_on_host(const Engine& engine, const std::vector<Number>& sources,
                                                const Ids& source_lengths);

}  // namespace txport::core
