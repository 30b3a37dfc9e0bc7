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

namespace txport::core {

namespace {

namespace fs = std::filesystem;

constexpr std::array kDevices{"auto", "cpu", "cuda", "trt"};

// ONNX Runtime, and the lowerings in the order in which it runs them best there.
Choice on_ort(const Manifest& manifest, const std::string& device, const std::string& lowering,
              const std::string& reason) {
  std::vector<std::string> lowerings = manifest.usable_lowerings(lowering);
  if (device == "cuda" && manifest.precision.type == "float32") {
    // GroupQueryAttention has kernels for 16 bits only: all caches would go to the CPU and back in each step.
    std::stable_partition(lowerings.begin(), lowerings.end(), [](const std::string& name) { return name != "ort"; });
  }
  const std::string why = lowering.empty() ? "ONNX Runtime runs " + lowerings[0] + " best of the bundle's lowerings"
                                           : "lowering " + lowering + " was requested";
  return {"ort", device, lowerings, reason + "; " + why, std::nullopt, nullptr};
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
  const auto on_cpu = [&](const std::string& reason) {
    return on_ort(manifest, "cpu", lowering, "auto is the CPU: " + reason);
  };
  if (manifest.precision.weights == "int8") return on_cpu("int8 weights are for it");
  const auto gpu = machine.gpu();
  if (const auto* why = std::get_if<std::string>(&gpu)) return on_cpu(*why);
  const std::string title = std::get<Gpu>(gpu).title();
  std::string against = "the bundle has no TensorRT engines";
  if (!engine_directories(directory).empty()) {
    try {
      Choice found = tensorrt(directory, manifest, lowering);
      found.fallback = std::make_shared<Choice>(on_cpu("TensorRT cannot be used"));
      return found;
    } catch (const Error& error) {
      against = error.what();
    }
  }
  if (!machine.cuda_provider()) return on_cpu(against + ", and onnxruntime-gpu is not installed for " + title);
  Choice on_gpu = on_ort(manifest, "cuda", lowering, "auto is ONNX Runtime on " + title + ": " + against);
  on_gpu.fallback = std::make_shared<Choice>(on_cpu("ONNX Runtime cannot use the GPU"));
  return on_gpu;
}

std::unique_ptr<Engine> open_chosen(const fs::path& directory, const Manifest& manifest, const Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn) {
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

}  // namespace

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
  if (device == "auto") return fastest(directory, manifest, lowering, machine);
  if (device == "trt") {
    manifest.usable_lowerings(lowering);  // refuses one that the bundle lacks
    return tensorrt(directory, manifest, lowering);
  }
  return on_ort(manifest, device, lowering, "device " + device + " was requested");
}

std::unique_ptr<Engine> open_engine(const fs::path& directory, const Manifest& manifest, Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn) {
  if (choice.fallback == nullptr) return open_chosen(directory, manifest, choice, share, warn);
  try {
    return open_chosen(directory, manifest, choice, share, warn);
  } catch (const Error& error) {
    if (warn) warn(std::string(error.what()) + "; the CPU is used instead");
  }
  choice = Choice(*choice.fallback);
  return open_chosen(directory, manifest, choice, share, warn);
}

}  // namespace txport::core
