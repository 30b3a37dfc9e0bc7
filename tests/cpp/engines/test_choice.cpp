// Which engine is chosen, by the cases that Python reads too, and what ONNX Runtime is told on a GPU.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "engines/choice.hpp"
#include "engines/ort_session.hpp"
#include "errors.hpp"
#include "patches.hpp"
#include "repository.hpp"
#include "system/system.hpp"

using namespace txport::core;

namespace {

using Names = std::vector<std::string>;

Machine machine_of(const Patches::Json& item) {
  const auto gpu = item.value("gpu", Patches::Json());
  const bool provider = item.value("cuda_provider", false);
  Machine machine;
  machine.cuda_provider = [provider] { return provider; };
  machine.why_no_fused_engine = [obstacle = item.value("against_fused", "")](const Manifest&) { return obstacle; };
  machine.gpu = [gpu]() -> std::variant<Gpu, std::string> {
    if (gpu.is_string()) return gpu.get<std::string>();
    return Gpu{gpu.at("name"), gpu.at("compute_capability")};
  };
  return machine;
}

// ONNX Runtime as it is, but for a CUDA provider that is recorded and then left out, so that graphs run on the CPU.
class RecordedCuda {
 public:
  explicit RecordedCuda(bool starts) {
    environment();
    real() = &Ort::GetApi();
    options().clear();
    threads() = -1;
    static OrtApi api;
    api = *real();
    api.GetAvailableProviders = [](char*** names, int* count) noexcept -> OrtStatus* {
      static std::array<char*, 1> list{const_cast<char*>("CUDAExecutionProvider")};
      *names = list.data();
      *count = 1;
      return nullptr;
    };
    api.ReleaseAvailableProviders = [](char**, int) noexcept -> OrtStatus* { return nullptr; };
    api.CreateCUDAProviderOptions = [](OrtCUDAProviderOptionsV2** made) noexcept -> OrtStatus* {
      *made = reinterpret_cast<OrtCUDAProviderOptionsV2*>(&api);
      return nullptr;
    };
    api.ReleaseCUDAProviderOptions = [](OrtCUDAProviderOptionsV2*) noexcept {};
    api.UpdateCUDAProviderOptions = [](OrtCUDAProviderOptionsV2*, const char* const* names, const char* const* values,
                                       std::size_t count) noexcept -> OrtStatus* {
      const std::lock_guard lock(mutex());
      for (std::size_t i = 0; i < count; ++i) options()[names[i]] = values[i];
      return nullptr;
    };
    api.UpdateCUDAProviderOptionsWithValue = [](OrtCUDAProviderOptionsV2*, const char* name,
                                                void*) noexcept -> OrtStatus* {
      const std::lock_guard lock(mutex());
      options()[name] = "a pointer";
      return nullptr;
    };
    api.SessionOptionsAppendExecutionProvider_CUDA_V2 =
        [](OrtSessionOptions*, const OrtCUDAProviderOptionsV2*) noexcept { return static_cast<OrtStatus*>(nullptr); };
    if (!starts) {
      api.SessionOptionsAppendExecutionProvider_CUDA_V2 = [](OrtSessionOptions*,
                                                             const OrtCUDAProviderOptionsV2*) noexcept {
        return real()->CreateStatus(ORT_FAIL, "Failed to load shared library");
      };
    }
    api.SetIntraOpNumThreads = [](OrtSessionOptions* given, int count) noexcept {
      const std::lock_guard lock(mutex());
      threads() = count;
      return real()->SetIntraOpNumThreads(given, count);
    };
    Ort::InitApi(&api);
  }
  ~RecordedCuda() { Ort::InitApi(real()); }
  RecordedCuda(const RecordedCuda&) = delete;
  RecordedCuda& operator=(const RecordedCuda&) = delete;

  static std::map<std::string, std::string>& options() {
    static std::map<std::string, std::string> given;
    return given;
  }
  static int& threads() {
    static int count;
    return count;
  }
  // Encoder and step are opened side by side.
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

 private:
  static const OrtApi*& real() {
    static const OrtApi* api;
    return api;
  }
};

}  // namespace

TEST_CASE("the choice of an engine and a device") {
  const auto choices = Patches::Json::parse(contents(kTests / "data" / "engines" / "choices.json"));
  for (const auto& item : choices["devices"]) {
    CAPTURE(item["name"].get<std::string>());
    Manifest manifest = Manifest::load(kToyBundle);
    manifest.precision.type = item.value("precision", "float32");
    manifest.precision.weights = item.value("weights", manifest.precision.type);
    if (item.contains("exported")) {
      const Names lowerings = item["exported"];
      const auto is_missing = [&](const Graph& graph) {
        const auto& name = graph.lowering;
        return name != "standard" && std::find(lowerings.begin(), lowerings.end(), name) == lowerings.end();
      };
      auto& graphs = manifest.graphs;
      graphs.erase(std::remove_if(graphs.begin(), graphs.end(), is_missing), graphs.end());
    }
    if (item.value("parameters", false)) manifest.parameters = Parameters();
    if (const auto verified = item.value("verified", Patches::Json()); verified.is_boolean()) {
      manifest.verification = Verification{true, 1, 1, 1, 0, {"ort"}};
      if (verified.get<bool>()) manifest.verification->engines.emplace_back("fused");
    }
    const std::string device = item["device"];
    const auto chosen = [&] {
      const EngineRequest asked{device, item.value("asked", "auto"), item.value("lowering", "")};
      return choose(kToyBundle, manifest, asked, machine_of(item));
    };
    if (item.contains("refused")) {
      CHECK(fault_of<Error>(chosen) == item["refused"].get<std::string>());
      continue;
    }
    const Choice choice = chosen();
    CHECK(choice.engine == item.value("engine", "ort"));
    CHECK(choice.device == item.value("chosen", device));
    CHECK(choice.lowerings == item["lowerings"].get<Names>());
    CHECK(choice.reason == item["reason"].get<std::string>());
    REQUIRE((choice.fallback != nullptr) == item.contains("fallback"));
    if (choice.fallback == nullptr) continue;
    CHECK(choice.fallback->device == "cpu");
    CHECK(choice.fallback->engine == item["fallback"].value("engine", "ort"));
    CHECK(choice.fallback->lowerings == item["fallback"]["lowerings"].get<Names>());
    CHECK(choice.fallback->reason == item["fallback"]["reason"].get<std::string>());
  }
}

TEST_CASE("on a GPU ONNX Runtime computes float32 in full, grows its arena by default and needs one thread") {
  const Manifest manifest = Manifest::load(kToyBundle);
  const RecordedCuda cuda(true);
  const auto opened =
      open_sessions(kToyBundle, manifest, choose(kToyBundle, manifest, {"cuda", "auto", ""}), 0, nullptr);
  CHECK(opened.step_graph.lowering == "scatter");
  CHECK(RecordedCuda::threads() == 1);
  CHECK(RecordedCuda::options() == std::map<std::string, std::string>{
                                       {"sdpa_kernel", "19"}, {"use_tf32", "0"}, {"user_compute_stream", "a pointer"}});
}

TEST_CASE("a CUDA provider that does not start is named with what it lacks") {
  const Manifest manifest = Manifest::load(kToyBundle);
  const RecordedCuda cuda(false);
  const std::string fault = fault_of<MissingLibrary>([&] {
    open_sessions(kToyBundle, manifest, choose(kToyBundle, manifest, {"cuda", "auto", ""}), 0, nullptr);
  });
  CHECK(fault == "ONNX Runtime cannot start its CUDA provider: " +
                     why_no_cuda(cuda_provider(), "Failed to load shared library") + "; or use device cpu");
  CHECK(cuda_provider().filename() == "libonnxruntime_providers_cuda.so");
  CHECK(cuda_provider().parent_path().filename() != "");
  // A provider whose library is not there, as where CUDA is not installed.
  CHECK(why_no_cuda(TXPORT_TEST_PROVIDER) ==
        "libtxport_test_cublas.so is missing, install it in a folder of the loader, for example of LD_LIBRARY_PATH");
  CHECK(why_no_cuda("libc.so.6") == "check the driver with nvidia-smi");
  CHECK(why_no_cuda("libc.so.6", "CUDA failure 46: busy") == "CUDA failure 46: busy, check the driver with nvidia-smi");
  CHECK(reason(std::runtime_error("/x/cuda_call.cc:154 void CudaCall(int) [with int] CUDA failure 46: busy ; GPU=-1 ; "
                                  "hostname=a")) == "CUDA failure 46: busy");
}
