// Which library runs a bundle, on which device, and why.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "engines/directories.hpp"

namespace txport::core {

// What will run a bundle.
struct Choice {
  std::string engine;                  // the library: "ort" is ONNX Runtime, "trt" is TensorRT
  std::string device;                  // "cpu" or "cuda"
  std::vector<std::string> lowerings;  // the decoder steps that may be used, in the order in which they are tried
  std::optional<Built> built;          // TensorRT's engines
  bool automatic = false;              // nobody asked for this device: the CPU may take its place
  std::vector<std::string> usable;     // there: the lowerings for the CPU
};

// Choose; of the libraries TensorRT is loaded if it is asked for or the bundle has engines, and ONNX Runtime where
// there is a GPU for it. An empty `lowering` is the best one.
//
// "auto" is TensorRT where engines fit, else ONNX Runtime's CUDA provider where it is installed and there is a GPU,
// else the CPU. ONNX Runtime runs `ort` best: its fused attention reads only the used part of a cache. `scatter` needs
// nothing special; `tensorscatter` needs opset 24, which ONNX Runtime has from 1.24 on. Throws InputError: the device
// or the lowering is unknown, or there is no GPU. BundleError: the bundle has not got the lowering, or no TensorRT
// engine that fits.
Choice choose(const std::filesystem::path& directory, const Manifest& manifest, const std::string& device,
              const std::string& lowering);

// What a bundle may use of the processor.
struct CpuShare {
  int threads = 0;    // of each operator; 0 for as many as there are cores
  bool many = false;  // sentences will come in numbers, not one by one
};

// Load the bundle's graphs, or its engines. What "auto" chose and cannot be started is said by `warn`, and the CPU
// takes its place; later it is told, in the thread of a call, what went wrong behind it. Throws BundleError: the
// library does not load them. InputError: the device is not there.
std::unique_ptr<Engine> open_engine(const std::filesystem::path& directory, const Manifest& manifest,
                                    const Choice& choice, const CpuShare& share,
                                    const std::function<void(const std::string&)>& warn);

}  // namespace txport::core
