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
constexpr const char* kNoTable = "the bundle has no parameters for the fused engine";
constexpr const char* kNoCopies = "the fused engine has no copy mechanism";
constexpr const char* kNoEngines = "the bundle has no TensorRT engines";
constexpr const char* kNoFeatures = "engines for a GPU do not read feature vectors yet";
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
  return {kOrt, device, lowerings, reason + "; " + why, std::nullopt, nullptr};
}

template <typename Names>
void check_word(const std::string& name, const std::string& value, const Names& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  throw InputError(name + " " + quote(value) + " is not supported by this version of txport: use " + joined(known));
}

void check_words(const Asked& asked) {
  for (const auto& [name, value] : {std::pair("device", asked.device), std::pair("lowering", asked.lowering)}) {
    if (value == kFused || value == kTrt) {
      throw InputError(std::string(name) + " " + quote(value) + " is an engine: give engine " + value + " instead");
    }
  }
  check_word("device", asked.device, kDevices);
  check_word("engine", asked.engine, kEngines);
}

// The fused engine, whether the bundle was verified with it or not.
Choice forced(const Manifest& manifest, const Asked& asked, const Machine& machine) {
  if (asked.device == "cuda") throw InputError("engine fused is for the CPU: leave out the device cuda");
  if (!asked.lowering.empty()) {
    throw InputError("engine fused runs no graph of the bundle: leave out the lowering " + asked.lowering);
  }
  if (manifest.model.copies) {
    throw BundleError(kNoCopies + std::string(", which this model needs: leave out the engine fused"));
  }
  if (!manifest.parameters) {
    throw BundleError(kNoTable + std::string(": export it again with this version of txport, which writes them for "
                                             "models with LayerNorm or RMSNorm"));
  }
  const std::string against = machine.against_fused(manifest);
  if (!against.empty()) throw MissingLibrary("the fused engine cannot be used: " + against);
  return {kFused, "cpu", {}, "engine fused was requested", std::nullopt, nullptr};
}

// Why the fused engine is not chosen for a bundle; empty if it is.
std::string against_fused(const Manifest& manifest, const Machine& machine) {
  if (manifest.model.copies) return kNoCopies;
  if (!manifest.parameters) return kNoTable;
  if (manifest.verification) {
    const std::vector<std::string>& engines = manifest.verification->engines;
    if (std::find(engines.begin(), engines.end(), kFused) == engines.end()) {
      return "the bundle was not verified with the fused engine, as tx-verify BUNDLE does";
    }
  }
  return machine.against_fused(manifest);
}

// The fused engine if it can run the bundle; if not, or if a lowering is asked for, ONNX Runtime.
Choice on_cpu(const Manifest& manifest, const Asked& asked, const std::string& reason, const Machine& machine) {
  if (asked.engine == kOrt) return on_ort(manifest, "cpu", asked.lowering, reason + "; engine ort was requested");
  if (!asked.lowering.empty()) return on_ort(manifest, "cpu", asked.lowering, reason);
  const std::string against = against_fused(manifest, machine);
  if (!against.empty()) return on_ort(manifest, "cpu", "", reason + "; " + against);
  Choice instead = on_ort(manifest, "cpu", "", reason + "; the fused engine cannot run the bundle");
  return {kFused,       "cpu",
          {},           reason + "; the fused engine is the fastest there",
          std::nullopt, std::make_shared<Choice>(std::move(instead))};
}

// The engines that fit.
Choice tensorrt(const Bundle& bundle, const Manifest& manifest, const Asked& asked) {
  const std::string& lowering = asked.lowering;
#ifdef TXPORT_WITH_TENSORRT
  if (!bundle.is_directory()) {
    throw BundleError(bundle.name() +
                      " has no TensorRT engines, which are in directories only: unzip it, and run tx-build");
  }
  Built built = find_trt(bundle.directory(), manifest, asked.trust_engines);
  const std::string& has = built.record.lowering;
  if (!lowering.empty() && lowering != has) {
    throw BundleError("the TensorRT engines of " + bundle.name() + " that fit have the lowering " + has + ", not " +
                      lowering + ": run tx-build " + bundle.name() + " --lowering " + lowering);
  }
  const std::string reason = "engines/" + built.directory.filename().string() + " fits " +
                             std::get<Gpu>(find_gpu()).title() + " and " + built.record.library.title();
  return {kTrt, "cuda", {has}, reason, std::move(built), nullptr};
#else
  (void)bundle, (void)manifest, (void)lowering;
  throw MissingLibrary("this build of txport has no TensorRT: configure it with -DTXPORT_WITH_TENSORRT=ON, or use cpu");
#endif
}

// TensorRT for the engine "auto", or why not.
std::variant<Choice, std::string> fitting_engines(const Bundle& bundle, const Manifest& manifest, const Asked& asked) {
  if (asked.engine == kOrt) return "engine ort was requested";
  if (!bundle.is_directory()) return kNoEngines;
  try {
    if (usable_directories(bundle.directory(), manifest, asked.trust_engines).empty()) {
      if (engine_directories(bundle.directory() / kEnginesName).empty()) return kNoEngines;
      return untrusted(bundle.directory());
    }
    return tensorrt(bundle, manifest, asked);
  } catch (const Error& error) {
    return error.what();
  }
}

// TensorRT, ONNX Runtime on the GPU, or the CPU; the reason names what rules out those before it.
Choice fastest(const Bundle& bundle, const Manifest& manifest, const Asked& asked, const Machine& machine) {
  const auto cpu = [&](const std::string& reason) {
    return on_cpu(manifest, asked, "auto is the CPU: " + reason, machine);
  };
  if (manifest.precision.weights == "int8") return cpu("int8 weights are for it");
  if (manifest.model.feature_size) return cpu(kNoFeatures);
  const auto gpu = machine.gpu();
  if (const auto* why = std::get_if<std::string>(&gpu)) return cpu(*why);
  const std::string title = std::get<Gpu>(gpu).title();
  auto found = fitting_engines(bundle, manifest, asked);
  if (auto* choice = std::get_if<Choice>(&found)) {
    choice->fallback = std::make_shared<Choice>(cpu("TensorRT cannot be used"));
    return std::move(*choice);
  }
  const std::string& against = std::get<std::string>(found);
  if (!machine.cuda_provider()) return cpu(against + ", and onnxruntime-gpu is not installed for " + title);
  if (manifest.precision.type == "float32" &&
      manifest.usable_lowerings(asked.lowering) == std::vector<std::string>{"ort"}) {
    return cpu(against + ", and " + kNoFloat32);
  }
  Choice on_gpu = on_ort(manifest, "cuda", asked.lowering, "auto is ONNX Runtime on " + title + ": " + against);
  on_gpu.fallback = std::make_shared<Choice>(cpu("ONNX Runtime cannot use the GPU"));
  return on_gpu;
}

// Run the encoder and a step once: a library may miss something only then, as cuDNN. The step's buffers are of the size
// that a first sentence needs.
void try_out(const Engine& engine) {
  engine.encode({engine.tokens().eos}, {1});
  engine.allocate(1, 1, engine.first_target(1), {});
  engine.synchronize();
}

std::unique_ptr<Engine> open_untried(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
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
  auto engine = open_untried(bundle, manifest, choice, share, warn);
  if (choice.device == "cuda") try_out(*engine);
  return engine;
}

}  // namespace

std::string against_fused_here(const Manifest& manifest) {
#ifdef TXPORT_WITH_FUSED
  return manifest.parameters ? fused_lacks() : kNoParameters;
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

Choice choose(const Bundle& bundle, const Manifest& manifest, const Asked& asked, const Machine& machine) {
  check_words(asked);
  if (manifest.model.feature_size && (asked.device == "cuda" || asked.engine == kTrt)) {
    throw InputError(std::string(kNoFeatures) + ": use the device cpu");
  }
  if (asked.engine == kFused) return forced(manifest, asked, machine);
  if (asked.engine == kTrt) {
    if (asked.device == "cpu") throw InputError("engine trt is for a GPU: leave out the device cpu");
    manifest.usable_lowerings(asked.lowering);  // refuses one that the bundle lacks
    return tensorrt(bundle, manifest, asked);
  }
  if (asked.device == "auto") return fastest(bundle, manifest, asked, machine);
  const std::string reason = "device " + asked.device + " was requested";
  if (asked.device == "cpu") return on_cpu(manifest, asked, reason, machine);
  auto found = fitting_engines(bundle, manifest, asked);
  if (auto* choice = std::get_if<Choice>(&found)) return std::move(*choice);
  return on_ort(manifest, "cuda", asked.lowering, reason + "; " + std::get<std::string>(found));
}

std::unique_ptr<Engine> open_engine(const Bundle& bundle, const Manifest& manifest, Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn) {
  while (choice.fallback != nullptr) {
    try {
      return open_chosen(bundle, manifest, choice, share, warn);
    } catch (const Error& error) {
      const std::string instead = choice.engine == kFused ? "ONNX Runtime" : "the CPU";
      if (warn) warn(std::string(error.what()) + "; " + instead + " is used instead");
    }
    choice = Choice(*choice.fallback);
  }
  return open_chosen(bundle, manifest, choice, share, warn);
}

}  // namespace txport::core
