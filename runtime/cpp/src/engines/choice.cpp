#include "engines/choice.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "device/gpu.hpp"
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

Choice tensorrt(const fs::path& directory, const Manifest& manifest, const std::string& lowering) {
#ifdef TXPORT_WITH_TENSORRT
  Built built = find_trt(directory, manifest);
  const std::string& has = built.record.lowering;
  if (!lowering.empty() && lowering != has) {
    throw BundleError("the TensorRT engines of " + directory.string() + " that fit have the lowering " + has +
                      ", not " + lowering + ": run tx-build " + directory.string() + " --lowering " + lowering);
  }
  return {"trt", "cuda", {has}, std::move(built), false, {}};
#else
  (void)directory, (void)manifest, (void)lowering;
  throw MissingLibrary("this build of txport has no TensorRT: configure it with -DTXPORT_WITH_TENSORRT=ON, or use cpu");
#endif
}

// TensorRT, ONNX Runtime on the GPU, or the CPU.
Choice fastest(const fs::path& directory, const Manifest& manifest, const std::string& lowering,
               const std::vector<std::string>& lowerings) {
  Choice cpu{"ort", "cpu", lowerings, std::nullopt, true, lowerings};
  // Weights of int8 are for the CPU.
  if (manifest.precision.weights == "int8" || std::holds_alternative<std::string>(find_gpu())) return cpu;
  if (!engine_directories(directory).empty()) {
    try {
      Choice found = tensorrt(directory, manifest, lowering);
      found.automatic = true;
      found.usable = lowerings;
      return found;
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the next one is tried
    }
  }
#ifdef TXPORT_WITH_CUDA
  if (has_cuda_provider()) return {"ort", "cuda", lowerings, std::nullopt, true, lowerings};
#endif
  return cpu;
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

Choice choose(const fs::path& directory, const Manifest& manifest, const std::string& device,
              const std::string& lowering) {
  if (std::find(kDevices.begin(), kDevices.end(), device) == kDevices.end()) {
    throw InputError("device " + quote(device) + " is not supported by this version of txport: use " +
                     joined(kDevices));
  }
  const std::vector<std::string> lowerings = manifest.usable_lowerings(lowering);
  if (device == "trt") return tensorrt(directory, manifest, lowering);
  if (device == "auto") return fastest(directory, manifest, lowering, lowerings);
  return {"ort", device, lowerings, std::nullopt, false, lowerings};
}

std::unique_ptr<Engine> open_engine(const fs::path& directory, const Manifest& manifest, const Choice& choice,
                                    const CpuShare& share, const std::function<void(const std::string&)>& warn) {
  if (!choice.automatic || choice.device == "cpu") return open_chosen(directory, manifest, choice, share, warn);
  try {
    return open_chosen(directory, manifest, choice, share, warn);
  } catch (const Error& error) {
    if (warn) warn(std::string(error.what()) + "; the CPU is used instead");
  }
  const Choice cpu{"ort", "cpu", choice.usable, std::nullopt, true, choice.usable};
  return open_chosen(directory, manifest, cpu, share, warn);
}

}  // namespace txport::core
