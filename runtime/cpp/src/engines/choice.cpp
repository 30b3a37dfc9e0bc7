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

constexpr const char* kFused = "fused";
constexpr const char* kOrt = "ort";
constexpr const char* kTrt = "trt";
constexpr std::array kDevices{"auto", "cpu", "cuda"};
constexpr std::array kEngines{"auto", kFused, kOrt, kTrt};
constexpr const char* kNoParameters = "the bundle has no parameters for the fused engine";
constexpr const char* kNoCopies = "the fused engine has no copy mechanism";
constexpr const char* kNoEngines = "there are no TensorRT engines for the bundle";
constexpr const char* kNoDirectory = "TensorRT engines can only be used with a bundle that is a directory";
constexpr const char* kNoFloat32 = "lowering ort has no float32 kernels on a GPU";

// Return the choice of ONNX Runtime, with the lowerings in the order of their speed on this device.
Choice on_ort(const Manifest& manifest, const std::string& device, const std::string& lowering,
              const std::string& reason) {
  std::vector<std::string> lowerings = manifest.usable_lowerings(lowering);
  if (device == "cuda" && manifest.precision.type == "float32") {
    // GroupQueryAttention only has float16 kernels: in float32, all caches would be copied to the CPU and back in each
    // step.
    lowerings.erase(std::remove(lowerings.begin(), lowerings.end(), "ort"), lowerings.end());
  }
  if (lowerings.empty() && manifest.lowerings().size() == 1) {
    throw BundleError(
        "the bundle has only the lowering ort, which has no float32 kernels on a GPU: export it with --fp16 or with "
        "more lowerings, or use device cpu");
  }
  if (lowerings.empty()) {
    throw InputError(kNoFloat32 + std::string(": leave it out, export the bundle with --fp16, or use device cpu"));
  }
  const std::string why = lowering.empty() ? "ONNX Runtime runs " + lowerings[0] + " best of the bundle's lowerings"
                                           : "lowering " + lowering + " was requested";
  return {kOrt, device, lowerings, reason + "; " + why, std::nullopt, nullptr};
}

template <typename Names>
void check_word(const std::string& name, const std::string& value, const Names& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  throw InputError(name + " " + quote(value) + " is not supported by this version of txport: use " + joined(allowed));
}

void check_words(const EngineRequest& request) {
  for (const auto& [name, value] : {std::pair("device", request.device), std::pair("lowering", request.lowering)}) {
    if (value == kFused || value == kTrt) {
      throw InputError(std::string(name) + " " + quote(value) + " is an engine: give engine " + value + " instead");
    }
  }
  check_word("device", request.device, kDevices);
  check_word("engine", request.engine, kEngines);
}

// Return the choice of the fused engine, which was requested. The bundle need not have been verified with it.
Choice requested_fused(const Manifest& manifest, const EngineRequest& request, const Machine& machine) {
  if (request.device == "cuda") throw InputError("engine fused is for the CPU: leave out the device cuda");
  if (!request.lowering.empty()) {
    throw InputError("engine fused runs no graph of the bundle: leave out the lowering " + request.lowering);
  }
  if (manifest.model.copies) {
    throw BundleError(kNoCopies + std::string(", which this model needs: leave out the engine fused"));
  }
  if (!manifest.parameters) {
    throw BundleError(kNoParameters +
                      std::string(": export it again with this version of txport, which writes them for "
                                  "models with LayerNorm or RMSNorm and without Shaw's positions"));
  }
  const std::string obstacle = machine.why_no_fused_engine(manifest);
  if (!obstacle.empty()) throw MissingLibrary("the fused engine cannot be used: " + obstacle);
  return {kFused, "cpu", {}, "engine fused was requested", std::nullopt, nullptr};
}

// Return the reason why "auto" does not choose the fused engine for a bundle; empty if it does.
std::string why_not_fused(const Manifest& manifest, const Machine& machine) {
  if (manifest.model.copies) return kNoCopies;
  if (!manifest.parameters) return kNoParameters;
  if (manifest.verification) {
    const std::vector<std::string>& engines = manifest.verification->engines;
    if (std::find(engines.begin(), engines.end(), kFused) == engines.end()) {
      return "the bundle was not verified with the fused engine: run tx-verify BUNDLE";
    }
  }
  return machine.why_no_fused_engine(manifest);
}

// Return the choice of ONNX Runtime if it or a lowering is requested, or if the fused engine cannot run the bundle.
// Otherwise return the choice of the fused engine.
Choice on_cpu(const Manifest& manifest, const EngineRequest& request, const std::string& reason,
              const Machine& machine) {
  if (request.engine == kOrt) return on_ort(manifest, "cpu", request.lowering, reason + "; engine ort was requested");
  if (!request.lowering.empty()) return on_ort(manifest, "cpu", request.lowering, reason);
  const std::string obstacle = why_not_fused(manifest, machine);
  if (!obstacle.empty()) return on_ort(manifest, "cpu", "", reason + "; " + obstacle);
  Choice fallback = on_ort(manifest, "cpu", "", reason + "; the fused engine cannot run the bundle");
  return {kFused,       "cpu",
          {},           reason + "; the fused engine is the fastest there",
          std::nullopt, std::make_shared<Choice>(std::move(fallback))};
}

// Return the choice of TensorRT with engines for this machine.
Choice tensorrt(const Bundle& bundle, const Manifest& manifest, const EngineRequest& request) {
  const std::string& lowering = request.lowering;
#ifdef TXPORT_WITH_TENSORRT
  if (!bundle.is_directory()) {
    throw BundleError(kNoDirectory + std::string(", and ") + bundle.name() +
                      " is an archive: unzip it, and run tx-build");
  }
  Built built = find_trt(bundle.directory(), manifest, request.trust_engines);
  const std::string& built_lowering = built.record.lowering;
  if (!lowering.empty() && lowering != built_lowering) {
    throw BundleError("the TensorRT engines for " + bundle.name() + " that fit this machine were built with lowering " +
                      built_lowering + ", not " + lowering + ": run tx-build " + bundle.name() + " --lowering " +
                      lowering);
  }
  const std::string reason = "engines/" + built.directory.filename().string() + " fits " +
                             std::get<Gpu>(find_gpu()).title() + " and " + built.record.library.title();
  return {kTrt, "cuda", {built_lowering}, reason, std::move(built), nullptr};
#else
  (void)bundle, (void)manifest, (void)lowering;
  throw MissingLibrary(
      "this build of txport has no TensorRT: configure it with -DTXPORT_WITH_TENSORRT=ON, or use engine auto");
#endif
}

// Return the choice of TensorRT for engine "auto", or the reason why it is not used.
std::variant<Choice, std::string> fitting_engines(const Bundle& bundle, const Manifest& manifest,
                                                  const EngineRequest& request) {
  if (request.engine == kOrt) return "engine ort was requested";
  if (!bundle.is_directory()) return kNoDirectory;
  try {
    if (usable_directories(bundle.directory(), manifest, request.trust_engines).empty()) {
      if (engine_directories(bundle.directory() / kEnginesName).empty()) return kNoEngines;
      return untrusted(bundle.directory());
    }
    return tensorrt(bundle, manifest, request);
  } catch (const Error& error) {
    return error.what();
  }
}

// Return the first choice that can be used: TensorRT, ONNX Runtime on the GPU, the CPU. The reason explains why the
// earlier ones are not used.
Choice fastest(const Bundle& bundle, const Manifest& manifest, const EngineRequest& request, const Machine& machine) {
  const auto cpu = [&](const std::string& reason) {
    return on_cpu(manifest, request, "auto chose the CPU: " + reason, machine);
  };
  if (manifest.precision.weights == "int8") return cpu("int8 weights are for CPUs");
  const auto gpu = machine.gpu();
  if (const auto* obstacle = std::get_if<std::string>(&gpu)) return cpu(*obstacle);
  const std::string title = std::get<Gpu>(gpu).title();
  auto engines = fitting_engines(bundle, manifest, request);
  if (auto* choice = std::get_if<Choice>(&engines)) {
    choice->fallback = std::make_shared<Choice>(cpu("TensorRT cannot be used"));
    return std::move(*choice);
  }
  const std::string& obstacle = std::get<std::string>(engines);
  if (!machine.cuda_provider()) return cpu(obstacle + ", and onnxruntime-gpu is not installed for " + title);
  if (manifest.precision.type == "float32" &&
      manifest.usable_lowerings(request.lowering) == std::vector<std::string>{"ort"}) {
    return cpu(obstacle + ", and " + kNoFloat32);
  }
  Choice on_gpu = on_ort(manifest, "cuda", request.lowering, "auto chose ONNX Runtime on " + title + ": " + obstacle);
  on_gpu.fallback = std::make_shared<Choice>(cpu("ONNX Runtime cannot use the GPU"));
  return on_gpu;
}

// Run the encoder and allocate a state, which test-runs the step: missing libraries such as cuDNN may cause errors only
// then. The buffers have the size that a first sentence needs.
void test_run(const Engine& engine, const Manifest& manifest) {
  if (const auto size = manifest.model.feature_size) {
    engine.encode_features(std::vector<float>(static_cast<std::size_t>(*size)), {1});
  } else {
    engine.encode({engine.tokens().eos}, {1});
  }
  engine.allocate(1, 1, engine.first_target(1), {});
  engine.synchronize();
}

std::unique_ptr<Engine> open_untested(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
                                      const CpuShare& share, const std::function<void(const std::string&)>& warn) {
#ifdef TXPORT_WITH_FUSED
  if (choice.engine == kFused) return open_fused(manifest.model_file(bundle), share);
#endif
#ifdef TXPORT_WITH_TENSORRT
  if (choice.engine == kTrt) return open_trt(manifest, *choice.built, warn);
#endif
#ifdef TXPORT_WITH_ORT
  return open_ort(bundle, manifest, choice, share, warn);
#else
  (void)bundle, (void)manifest, (void)choice, (void)share, (void)warn;
  throw MissingLibrary(
      "this build of txport has no ONNX Runtime: configure it with -DTXPORT_WITH_ORT=ON, or choose another engine");
#endif
}

std::unique_ptr<Engine> open_chosen(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn) {
  auto engine = open_untested(bundle, manifest, choice, share, warn);
  if (choice.device == "cuda") test_run(*engine, manifest);
  return engine;
}

}  // namespace

std::string why_no_fused_engine(const Manifest& manifest) {
#ifdef TXPORT_WITH_FUSED
  return manifest.parameters ? fused_lacks() : kNoParameterTable;
#else
  (void)manifest;
  return "this build of txport has no fused engine: configure it with -DTXPORT_WITH_FUSED=ON";
#endif
}

bool has_usable_cuda_provider() {
#ifdef TXPORT_WITH_CUDA
  return has_cuda_provider();
#else
  return false;
#endif
}

Choice choose(const Bundle& bundle, const Manifest& manifest, const EngineRequest& request, const Machine& machine) {
  check_words(request);
  if (request.engine == kFused) return requested_fused(manifest, request, machine);
  if (request.engine == kTrt) {
    if (request.device == "cpu") throw InputError("engine trt is for a GPU: leave out the device cpu");
    manifest.usable_lowerings(request.lowering);  // refuses a lowering that the bundle does not have
    return tensorrt(bundle, manifest, request);
  }
  if (request.device == "auto") return fastest(bundle, manifest, request, machine);
  const std::string reason = "device " + request.device + " was requested";
  if (request.device == "cpu") return on_cpu(manifest, request, reason, machine);
  auto engines = fitting_engines(bundle, manifest, request);
  if (auto* choice = std::get_if<Choice>(&engines)) return std::move(*choice);
  return on_ort(manifest, "cuda", request.lowering, reason + "; " + std::get<std::string>(engines));
}

std::unique_ptr<Engine> open_engine(const Bundle& bundle, const Manifest& manifest, Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn) {
  while (choice.fallback != nullptr) {
    try {
      return open_chosen(bundle, manifest, choice, share, warn);
    } catch (const Error& error) {
      const std::string fallback_name = choice.engine == kFused ? "ONNX Runtime" : "the CPU";
      if (warn) warn(std::string(error.what()) + "; " + fallback_name + " is used instead");
    }
    choice = Choice(*choice.fallback);
  }
  return open_chosen(bundle, manifest, choice, share, warn);
}

}  // namespace txport::core
