// The engine on TensorRT 8.6 to 11: the step is captured as a CUDA graph, and its state never leaves the GPU.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "engines/directories.hpp"

namespace txport::core {

// The best of the bundle's TensorRT engines for this machine.
// Throws MissingLibrary: there is no GPU or no TensorRT. BundleError: no engine fits; the message explains how to build
// one.
Built find_trt(const std::filesystem::path& directory, const Manifest& manifest, bool trust_engines);

// Open those engines. `warn` is called, in the thread of a call, if their steps cannot be captured.
// Throws BundleError: a file was changed, cannot be opened, or has other tensors than the manifest specifies.
std::unique_ptr<Engine> open_trt(const Manifest& manifest, const Built& built,
                                 const std::function<void(const std::string&)>& warn);

}  // namespace txport::core
