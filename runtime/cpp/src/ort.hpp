// The engine on ONNX Runtime, by its CPU provider or its CUDA provider.
#pragma once

#include <filesystem>
#include <memory>

#include "engine.hpp"
#include "engines.hpp"
#include "manifest.hpp"

namespace txport::core {

// A bundle on ONNX Runtime, with the first of the chosen lowerings that the installed version loads; `threads` of each
// operator, 0 for as many as there are cores.
// Throws BundleError: ONNX Runtime does not load it. InputError: it cannot run on that device.
std::unique_ptr<Engine> open_ort(const std::filesystem::path& directory, const Manifest& manifest, const Choice& choice,
                                 int threads);

}  // namespace txport::core
