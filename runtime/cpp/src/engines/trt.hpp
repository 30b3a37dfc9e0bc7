// The engine on TensorRT 8.6 to 11. Steps are captured as CUDA graphs, and states stay on the GPU.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "engines/directories.hpp"

namespace txport::core {

// Return the best TensorRT engines of a bundle for this machine. Throws MissingLibrary: there is no GPU or no TensorRT;
// BundleError: no engine fits. The message explains how to build one.
Built find_trt(const std::filesystem::path& directory, const Manifest& manifest, bool trust_engines);

// Open these engines. `warn` is called if steps cannot be captured, in the thread of a call. Throws BundleError: a file
// was changed, cannot be opened, or has other tensors than the manifest specifies.
std::unique_ptr<Engine> open_trt(const Manifest& manifest, const Built& built,
                                 const std::function<void(const std::string&)>& warn);

}  // namespace txport::core
