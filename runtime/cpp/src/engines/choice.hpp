// Choice of the engine and device for a bundle.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "bundle/manifest.hpp"
#include "cores.hpp"
#include "device/gpu.hpp"
#include "engine.hpp"
#include "engines/directories.hpp"

namespace txport::core {

// The engine and device that an application requests.
struct EngineRequest {
  std::string device = "auto";  // auto, cpu or cuda
  std::string engine = "auto";  // auto, fused (txport's for CPUs), ort (ONNX Runtime) or trt (TensorRT)
  std::string lowering;         // lowering of the decoder step; empty: the best one
  bool trust_engines = false;   // whether TensorRT engines in the bundle, which are native code, may run
};

// The chosen engine and device.
struct Choice {
  std::string engine;                  // "ort" is ONNX Runtime, "trt" is TensorRT, "fused" is txport's engine
  std::string device;                  // "cpu" or "cuda"
  std::vector<std::string> lowerings;  // lowerings to try, in this order; empty for the fused engine
  std::string reason;                  // reason for the choice, with the same words as txport.runtime.engines.choice
  std::optional<Built> built;          // TensorRT engines
  // Choice to use if this one cannot be opened; null if that is an error.
  std::shared_ptr<const Choice> fallback;
};

// Return the reason why this build or processor cannot run a bundle with the fused engine; empty if it can.
std::string why_no_fused_engine(const Manifest& manifest);

// Return whether this build supports ONNX Runtime's CUDA provider and the installed ONNX Runtime has it.
bool has_usable_cuda_provider();

// Properties of this machine that determine the choice. Each function is called only if necessary. Tests replace them.
struct Machine {
  std::function<std::variant<Gpu, std::string>()> gpu = find_gpu;
  std::function<bool()> cuda_provider = has_usable_cuda_provider;
  std::function<std::string(const Manifest&)> why_no_fused_engine = core::why_no_fused_engine;
};

// Choose the engine and device. Loads TensorRT if it is requested or there are engines for the bundle, and ONNX Runtime
// if there is a GPU.
//
// On a GPU, engine "auto" is TensorRT if engines fit, otherwise ONNX Runtime's CUDA provider. Device "auto" is a GPU if
// one of them can be used, otherwise the CPU. On a CPU, the fused engine runs a bundle if all of these hold: this build
// has the engine, the bundle has parameters for it, the model has no copy mechanism, and the verification in the
// manifest, if there is one, includes the fused engine. Otherwise ONNX Runtime runs the bundle.
//
// ONNX Runtime is fastest with `ort`, whose fused attention reads only the used part of a cache. On a GPU, this
// attention exists in float16 only. `scatter` has no special requirements. `tensorscatter` needs opset 24, which ONNX
// Runtime supports from 1.25 on.
//
// Throws InputError: a value is unknown, or values contradict each other; BundleError: the bundle does not have the
// lowering or parameters for the fused engine, or there is no TensorRT engine that fits; MissingLibrary: there is no
// GPU, or a library is not installed.
Choice choose(const Bundle& bundle, const Manifest& manifest, const EngineRequest& request,
              const Machine& machine = {});

// Open the engine: load the bundle's graphs, TensorRT engines or parameters. If a GPU that "auto" chose or the fused
// engine cannot be used, call `warn`, replace `choice` with its fallback, and open that. Later, `warn` is called for
// failures in the background, in the thread of a call. Throws BundleError: the library cannot load the files;
// MissingLibrary, EngineError: the device cannot be used.
std::unique_ptr<Engine> open_engine(const Bundle& bundle, const Manifest& manifest, Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn);

}  // namespace txport::core
