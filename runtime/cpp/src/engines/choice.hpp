// Which library runs a bundle, on which device, and why.
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

// What an application asks for.
struct Asked {
  std::string device = "auto";  // auto, cpu or cuda
  std::string engine = "auto";  // auto, fused (our own for CPUs), ort (ONNX Runtime) or trt (TensorRT)
  std::string lowering;         // of the decoder step; empty for the best one
  bool trust_engines = false;   // whether TensorRT engines in the bundle, which are native code, may run
};

// What will run a bundle.
struct Choice {
  std::string engine;                  // "ort" is ONNX Runtime, "trt" is TensorRT, "fused" is our own
  std::string device;                  // "cpu" or "cuda"
  std::vector<std::string> lowerings;  // the decoder steps to try, in this order; none for the fused engine
  std::string reason;                  // why this choice, in words; those of txport.runtime.engines.choice
  std::optional<Built> built;          // TensorRT's engines
  // What takes its place if it cannot be opened; null if that is an error.
  std::shared_ptr<const Choice> fallback;
};

// Why this build or this processor cannot run a bundle by the fused engine; empty if it can.
std::string against_fused_here(const Manifest& manifest);

// Whether this build can use ONNX Runtime's CUDA provider, and the ONNX Runtime that is installed has it.
bool cuda_provider_is_here();

// What of this machine decides; each is asked only if it matters. Tests give other answers.
struct Machine {
  std::function<std::variant<Gpu, std::string>()> gpu = find_gpu;
  std::function<bool()> cuda_provider = cuda_provider_is_here;
  std::function<std::string(const Manifest&)> against_fused = against_fused_here;
};

// Choose. This loads TensorRT if it is asked for or the bundle has engines, and ONNX Runtime if there is a GPU.
//
// On a GPU, "auto" is TensorRT where engines fit, else ONNX Runtime's CUDA provider; the device "auto" is a GPU where
// one of them can be used, else the CPU. On a CPU the fused engine runs a bundle that has parameters for it and was
// verified with it, if this build has it; else ONNX Runtime does. ONNX Runtime runs `ort` best: its fused attention
// reads only the used part of a cache. On a GPU it has that attention for 16 bits only. `scatter` needs nothing
// special; `tensorscatter` needs opset 24, which ONNX Runtime has from 1.25 on. Throws InputError: a word is unknown,
// or they contradict each other. BundleError: the bundle lacks the lowering, or a TensorRT engine that fits.
// MissingLibrary: the device needs a GPU or a library that is not here.
Choice choose(const Bundle& bundle, const Manifest& manifest, const Asked& asked, const Machine& machine = {});

// Load the bundle's graphs, its engines or its parameters. If a GPU that "auto" chose, or the fused engine, cannot be
// used, `warn` is called and what comes after it takes its place, in `choice` too; later `warn` is called, in the
// thread of a call, with what went wrong in the background. Throws BundleError: the library does not load them.
// MissingLibrary, EngineError: the device cannot be used.
std::unique_ptr<Engine> open_engine(const Bundle& bundle, const Manifest& manifest, Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn);

}  // namespace txport::core
