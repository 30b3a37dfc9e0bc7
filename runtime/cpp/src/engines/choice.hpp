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
  std::string lowering;         // decoder step graph; empty: the best one
  bool trust_engines = false;   // allow TensorRT engines in the bundle, which are native code
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
std::string against_fused_here(const Manifest& manifest);

// Return whether this build supports ONNX Runtime's CUDA provider and the installed ONNX Runtime has it.
bool cuda_provider_is_here();

// Properties of this machine that determine the choice. Each function is called only if necessary. Tests replace them.
struct Machine {
  std::function<std::variant<Gpu, std::string>()> gpu = find_gpu;
  std::function<bool()> cuda_provider = cuda_provider_is_here;
  std::function<std::string(const Manifest&)> against_fused = against_fused_here;
};

// Choose the engine and device. Loads TensorRT if it is requested or the bundle has engines, and ONNX Runtime if there
// is a GPU.
//
// On a GPU, engine "auto" is TensorRT if engines for this machine exist, otherwise ONNX Runtime's CUDA provider. Device
// "auto" is a GPU if one of them can be used, otherwise the CPU. On a CPU, the fused engine is used if this build has
// it, and if the bundle has parameters and was verified with it; otherwise ONNX Runtime is used. ONNX Runtime is
// fastest with `ort`, whose fused attention reads only the used part of a cache; on a GPU this attention only exists in
// float16. `scatter` has no special requirements. `tensorscatter` needs opset 24, which ONNX Runtime supports from 1.25
// on. Throws InputError: a value is unknown, or values contradict each other; BundleError: the bundle does not have the
// lowering or a TensorRT engine for this machine; MissingLibrary: there is no GPU, or a library is not installed.
Choice choose(const Bundle& bundle, const Manifest& manifest, const EngineRequest& request,
              const Machine& machine = {});

// Open the engine: load the bundle's graphs, TensorRT engines or parameters. If a GPU that "auto" chose or the fused
// engine cannot be used, call `warn`, replace `choice` with its fallback, and open that. Later, `warn` is called for
// failures in the background, in the thread of a call. Throws BundleError: the library cannot load the files;
// MissingLibrary, EngineError: the device cannot be used.
std::unique_ptr<Engine> open_engine(const Bundle& bundle, const Manifest& manifest, Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn);

}  // namespace txport::core
