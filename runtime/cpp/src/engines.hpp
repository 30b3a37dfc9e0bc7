// Which library runs a bundle, on which device, and why.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine.hpp"
#include "manifest.hpp"

namespace txport::core {

// What will run a bundle.
struct Choice {
  std::string engine;                  // the library: "ort" is ONNX Runtime
  std::string device;                  // "cpu" or "cuda"
  std::vector<std::string> lowerings;  // the decoder steps that may be used, in the order in which they are tried
};

// Choose without loading any library; an empty `lowering` is the best one.
//
// ONNX Runtime runs `ort` best: its fused attention reads only the used part of a cache. `scatter` needs nothing
// special; `tensorscatter` needs opset 24, which ONNX Runtime has from 1.24 on.
// Throws InputError: the device or the lowering is unknown; BundleError: the bundle has not got the lowering.
Choice choose(const Manifest& manifest, const std::string& device, const std::string& lowering);

// Load the bundle's graphs. Throws BundleError: the library does not load them. InputError: the device is not there.
std::unique_ptr<Engine> open_engine(const std::filesystem::path& directory, const Manifest& manifest,
                                    const Choice& choice, int threads);

}  // namespace txport::core
