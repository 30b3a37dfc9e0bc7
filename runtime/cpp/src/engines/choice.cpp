#include "engines/choice.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "errors.hpp"

#ifdef TXPORT_WITH_ORT
#include "engines/ort.hpp"
#include "engines/ort_session.hpp"
#endif
#ifdef TXPORT_WITH_TENSORRT
#include "engines/trt.hpp"
#endif
#ifdef TXPORT_WITH_FUSED
#include "fused/engine.hpp"
#endif

namespace txport::core {

namespace {

namespace fs = std::filesystem;

constexpr std::array kDevices{"auto", "cpu", "cuda", "trt"};
// Asked for as a lowering, since it stands for what runs the decoder step; it runs none of the bundle's graphs.
constexpr const char* kFused = "fused";
constexpr const char* kNoTable = "the bundle has no parameters for the fused engine";
constexpr const char* kNoCopies = "the fused engine has no copy mechanism";
constexpr const char* kNoFloat32 = "lowering ort has no float32 kernels on a GPU";

// ONNX Runtime, and the lowerings in the order in which it runs them best there.
Choice on_ort(const Manifest& manifest, const std::string& device, const std::string& lowering,
              const std::string& reason) {
  std::vector<std::string> lowerings = manifest.usable_lowerings(lowering);
  if (device == "cuda" && manifest.precision.type == "float32") {
    // GroupQueryAttention has kernels for 16 bits only: all caches would go to the CPU and back in each step.
    lowerings.erase(std::remove(lowerings.begin(), lowerings.end(), "ort"), lowerings.end());
  }
  if (lowerings.empty()) {
    const std::string reason =
        kNoFloat32 + std::string(": leave it out, export the bundle with --fp16, or use device cpu");
    if (lowering.empty()) throw BundleError(reason);
    throw InputError(reason);
  }
  const std::string why = lowering.empty() ? "ONNX Runtime runs " + lowerings[0] + " best of the bundle's lowerings"
                                           : "lowering " + lowering + " was requested";
  return {"ort", device, lowerings, reason + "; " + why, std::nullopt, nullptr};
}

// The fused engine, whether the bundle was verified with it or not.
Choice forced(const Manifest& manifest, const std::string& device, const Machine& machine) {
  if (device != "auto" && device != "cpu") {
    throw InputError("lowering " + std::string(kFused) + " is for the CPU: leave out the device " + device);
  }
  if (manifest.model.copies) {
    throw BundleError(kNoCopies + std::string(", which this model needs: leave out the lowering ") + kFused);
  }
  if (!manifest.parameters) {
    throw BundleError(kNoTable + std::string(": export it again with this version of txport, which writes them for "
                                             "models with LayerNorm"));
  }
  const std::string against = machine.against_fused(manifest);
  if (!against.empty()) throw MissingLibrary("the fused engine cannot be used: " + against);
  return {kFused, "cpu", {}, "lowering " + std::string(kFused) + " was requested", std::nullopt, nullptr};
}

// Why the fused engine is not chosen for a bundle; empty if it is.
std::string against_fused(const Manifest& manifest, const Machine& machine) {
  if (manifest.model.copies) return kNoCopies;
  if (!manifest.parameters) return kNoTable;
  if (manifest.verification && !manifest.verification->fused) {
    return "the bundle was not verified with the fused engine, as tx-verify BUNDLE does";
  }
  return machine.against_fused(manifest);
}

// The fused engine if it can run the bundle; if not, or if a lowering is asked for, ONNX Runtime.
Choice on_cpu(const Manifest& manifest, const std::string& lowering, const std::string& reason,
              const Machine& machine) {
  if (!lowering.empty()) return on_ort(manifest, "cpu", lowering, reason);
  const std::string against = against_fused(manifest, machine);
  if (!against.empty()) return on_ort(manifest, "cpu", "", reason + "; " + against);
  Choice instead = on_ort(manifest, "cpu", "", reason + "; the fused engine cannot run the bundle");
  return {kFused,       "cpu",
          {},           reason + "; the fused engine is the fastest there",
          std::nullopt, std::make_shared<Choice>(std::move(instead))};
}

// The engines that fit.
Choice tensorrt(const fs::path& directory, const Manifest& manifest, const std::string& lowering) {
#ifdef TXPORT_WITH_TENSORRT
  Built built = find_trt(directory, manifest);
  const std::string& has = built.record.lowering;
  if (!lowering.empty() && lowering != has) {
    throw BundleError("the TensorRT engines of " + directory.string() + " that fit have the lowering " + has +
                      ", not " + lowering + ": run tx-build " + directory.string() + " --lowering " + lowering);
  }
  const std::string reason = "engines/" + built.directory.filename().string() + " fits " +
                             std::get<Gpu>(find_gpu()).title() + " and " + built.record.library.title();
  return {"trt", "cuda", {has}, reason, std::move(built), nullptr};
#else
  (void)directory, (void)manifest, (void)lowering;
  throw MissingLibrary("this build of txport has no TensorRT: configure it with -DTXPORT_WITH_TENSORRT=ON, or use cpu");
#endif
}

// TensorRT, ONNX Runtime on the GPU, or the CPU; the reason names what rules out those before it.
Choice fastest(const fs::path& directory, const Manifest& manifest, const std::string& lowering,
               const Machine& machine) {
  const auto cpu = [&](const std::string& reason) {
    return on_cpu(manifest, lowering, "auto is the CPU: " + reason, machine);
  };
  if (manifest.precision.weights == "int8") return cpu("int8 weights are for it");
  const auto gpu = machine.gpu();
  if (const auto* why = std::get_if<std::string>(&gpu)) return cpu(*why);
  const std::string title = std::get<Gpu>(gpu).title();
  std::string against = "the bundle has no TensorRT engines";
  if (!engine_directories(directory).empty()) {
    try {
      Choice found = tensorrt(directory, manifest, lowering);
      found.fallback = std::make_shared<Choice>(cpu("TensorRT cannot be used"));
      return found;
    } catch (const Error& error) {
      against = error.what();
    }
  }
  if (!machine.cuda_provider()) return cpu(against + ", and onnxruntime-gpu is not installed for " + title);
  if (manifest.precision.type == "float32" && manifest.usable_lowerings(lowering) == std::vector<std::string>{"ort"}) {
    return cpu(against + ", and " + kNoFloat32);
  }
  Choice on_gpu = on_ort(manifest, "cuda", lowering, "auto is ONNX Runtime on " + title + ": " + against);
  on_gpu.fallback = std::make_shared<Choice>(cpu("ONNX Runtime cannot use the GPU"));
  return on_gpu;
}

// Run the encoder and a step once: a library may miss something only then, as cuDNN. The step's buffers are of the size
// that a first sentence needs.
void try_out(const Engine& engine) {
  engine.encode({engine.tokens().eos}, {1});
  engine.allocate(1, 1, engine.first_target(1), false);
  engine.synchronize();
}

std::unique_ptr<Engine> open_untried(const fs::path& directory, const Manifest& manifest, const Choice& choice,
                                     const CpuShare& share, const std::function<void(const std::string&)>& warn) {
#ifdef TXPORT_WITH_FUSED
  if (choice.engine == kFused) return open_fused(directory, manifest, share);
#endif
#ifdef TXPORT_WITH_TENSORRT
  if (choice.engine == "trt") return open_trt(manifest, *choice.built, warn);
#endif
#ifdef TXPORT_WITH_ORT
  return open_ort(directory, manifest, choice, share, warn);
#else
  (void)directory, (void)manifest, (void)choice, (void)share, (void)warn;
  throw MissingLibrary("this build of txport has no ONNX Runtime: configure it with -DTXPORT_WITH_ORT=ON");
#endif
}

std::unique_ptr<Engine> open_chosen(const fs::path& directory, const Manifest& manifest, const Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn) {
  auto engine = open_untried(directory, manifest, choice, share, warn);
  if (choice.device == "cuda") try_out(*engine);
  return engine;
}

}  // namespace

std::string against_fused_here(const Manifest& manifest) {
#ifdef TXPORT_WITH_FUSED
  return fused_lacks(manifest);
#else
  (void)manifest;
  return "this build of txport has no fused engine: configure it with -DTXPORT_WITH_FUSED=ON";
#endif
}

bool cuda_provider_is_here() {
#ifdef TXPORT_WITH_CUDA
  return has_cuda_provider();
#else
  return false;
#endif
}

Choice choose(const fs::path& directory, const Manifest& manifest, const std::string& device,
              const std::string& lowering, const Machine& machine) {
  if (std::find(kDevices.begin(), kDevices.end(), device) == kDevices.end()) {
    throw InputError("device " + quote(device) + " is not supported by this version of txport: use " +
                     joined(kDevices));
  }
  if (lowering == kFused) return forced(manifest, device, machine);
  if (device == "auto") return fastest(directory, manifest, lowering, machine);
  if (device == "trt") {
    manifest.usable_lowerings(lowering);  // refuses one that the bundle lacks
    return tensorrt(directory, manifest, lowering);
  }
  const std::string reason = "device " + device + " was requested";
  return device == "cpu" ? on_cpu(manifest, lowering, reason, machine) : on_ort(manifest, device, lowering, reason);
}

std::unique_ptr<Engine> open_engine(const fs::path& directory, const Manifest& manifest, Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn) {
  while (choice.fallback != nullptr) {
    try {
      return open_chosen(directory, manifest, choice, share, warn);
    } catch (const Error& error) {
      const std::string instead = choice.engine == kFused ? "ONNX Runtime" : "the CPU";
      if (warn) warn(std::string(error.what()) + "; " + instead + " is used instead");
    }
    choice = Choice(*choice.fallback);
  }
  return open_chosen(directory, manifest, choice, share, warn);
}

}  // namespace txport::core
