#include "engines/ort_session.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <regex>
#include <shared_mutex>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "bundle/external_data.hpp"
#include "bundle/graph_rules.hpp"
#include "bundle/interface.hpp"
#include "cores.hpp"
#include "device/capture.hpp"
#include "device/gpu.hpp"
#include "engines/onnxruntime.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

// Return whether this processor accumulates int8 products in 32 bits (AVX-512 VNNI or AVX VNNI, CPUID leaf 7).
bool has_vnni() {
#ifdef __x86_64__
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1U << 11U)) != 0) return true;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 4U)) != 0;
#else
  return false;
#endif
}

// Type and shape of the tensors of a graph, by name.
using Signature = std::map<std::string, std::tuple<ONNXTensorElementDataType, std::vector<Size>>>;

Signature signature(const std::vector<Tensor>& tensors) {
  Signature result;
  for (const Tensor& tensor : tensors) result[tensor.name] = {type_of(tensor.dtype).onnx, tensor.shape};
  return result;
}

void add_to(Signature& result, const std::string& name, const Ort::TypeInfo& info) {
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  const std::vector<std::int64_t> sizes = tensor.GetShape();
  std::vector<const char*> symbols(sizes.size());
  tensor.GetSymbolicDimensions(symbols.data(), symbols.size());
  std::vector<Size> shape;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    shape.push_back(sizes[axis] < 0 ? Size(std::string(symbols[axis])) : Size(sizes[axis]));
  }
  result[name] = {tensor.GetElementType(), std::move(shape)};
}

bool fits(const Ort::Session& session, const Graph& graph) {
  const Ort::AllocatorWithDefaultOptions allocator;
  Signature inputs;
  Signature outputs;
  for (std::size_t i = 0; i < session.GetInputCount(); ++i) {
    add_to(inputs, session.GetInputNameAllocated(i, allocator).get(), session.GetInputTypeInfo(i));
  }
  for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
    add_to(outputs, session.GetOutputNameAllocated(i, allocator).get(), session.GetOutputTypeInfo(i));
  }
  return inputs == signature(graph.inputs) && outputs == signature(graph.outputs);
}

// Return whether a message is from a failed call of CUDA, cuBLAS or cuDNN.
bool is_cuda_failure(const std::string& reason) { return std::regex_search(reason, std::regex(R"(^CU\w+ failure)")); }

// Return the error for a CUDA provider that cannot be used.
MissingLibrary no_cuda(const std::string& reason) {
  return MissingLibrary("ONNX Runtime cannot start its CUDA provider: " + reason + "; or use device cpu");
}

std::string missing(const std::string& library) {
  return library + " is missing, install it in a folder of the loader, for example of LD_LIBRARY_PATH";
}

// Return the major version of the CUDA runtime that the provider has loaded, for example 13; 0 for none.
int built_for() {
  constexpr int kNewest = 19;
  for (int generation = kNewest; generation > 0; --generation) {
    const std::string name = "libcudart.so." + std::to_string(generation);
    if (::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr) return generation;
  }
  return 0;
}

// Return a message if the driver is too old for this ONNX Runtime; otherwise an empty text.
std::string against_driver() {
  const auto gpu = find_gpu();
  const int built = built_for();
  if (built == 0 || !std::holds_alternative<Gpu>(gpu)) return "";
  const std::string& driver = std::get<Gpu>(gpu).driver;
  const std::string supported = driver.substr(0, driver.find('.'));
  if (std::stoi(supported) >= built) return "";
  // First driver for each major version of CUDA (CUDA release notes, table 3).
  static const std::map<int, std::string> drivers{{12, "525"}, {13, "580"}};
  const auto first = drivers.find(built);
  return "ONNX Runtime " + onnxruntime_version() + " is built for CUDA " + std::to_string(built) +
         " and the NVIDIA driver supports CUDA " + driver + " at most: update the driver to " +
         (first == drivers.end() ? "a newer one" : first->second + " or newer") +
         ", or install an onnxruntime-gpu for CUDA " + supported;
}

struct ReleaseCudaOptions {
  void operator()(OrtCUDAProviderOptionsV2* options) const { Ort::GetApi().ReleaseCUDAProviderOptions(options); }
};

void append_cuda(Ort::SessionOptions& options, const std::string& device, void* stream) {
  if (!has_cuda_provider()) {
    throw MissingLibrary("device " + device +
                         " needs an ONNX Runtime with its CUDA provider, which this one lacks: use device cpu");
  }
  try {
    OrtCUDAProviderOptionsV2* created = nullptr;
    Ort::ThrowOnError(Ort::GetApi().CreateCUDAProviderOptions(&created));
    const std::unique_ptr<OrtCUDAProviderOptionsV2, ReleaseCudaOptions> cuda(created);
    // Use full float32 MatMul, since ids must equal those of PyTorch: TF32, the default, keeps 10 bits of each factor.
    // The arena grows by powers of two (the default), so that its size settles. Use ONNX Runtime's attention kernels
    // (flash 1, memory efficient 2, plain 16, and XQA) and never those of cuDNN, the default from Hopper on:
    // ONNX Runtime unloads their code when the thread that first ran them ends, and captured steps would then execute
    // unloaded code.
    constexpr std::array names{"use_tf32", "sdpa_kernel"};
    constexpr std::array values{"0", "19"};
    Ort::ThrowOnError(Ort::GetApi().UpdateCUDAProviderOptions(cuda.get(), names.data(), values.data(), names.size()));
    Ort::ThrowOnError(Ort::GetApi().UpdateCUDAProviderOptionsWithValue(cuda.get(), "user_compute_stream", stream));
    options.AppendExecutionProvider_CUDA_V2(*cuda);
  } catch (const Ort::Exception& error) {
    throw no_cuda(why_no_cuda(cuda_provider(), reason(error)));
  }
}

// Microseconds for which threads spin while they wait for the next run or operator; longer than the time of the host
// between steps.
constexpr const char* kSpin = "500";

// Settings for opening sessions.
struct SessionSettings {
  std::string device;
  int threads;
  void* stream;
};

Ort::SessionOptions session_options(const SessionSettings& settings) {
  Ort::SessionOptions options;
  options.SetLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);  // errors are reported as exceptions
  // On a GPU, one thread suffices, since the host only launches kernels.
  options.SetIntraOpNumThreads(settings.device != "cpu" ? 1
                               : settings.threads > 0   ? settings.threads
                                                        : limited_cores());
  // Without the arena, the temporaries of a large batch are returned to the system. Steps are equally fast without it.
  options.DisableCpuMemArena();
  // Each session has its own threads. By default they spin for about 10 ms after a run and occupy cores that the other
  // session needs, whenever encoder and steps alternate.
  options.AddConfigEntry("session.intra_op.spin_duration_us", kSpin);
  if (settings.device == "cpu") {
    // On the CPU, Add and LayerNormalization are three times as fast as SkipLayerNormalization, which sums sequentially
    // (Welford 1962) with a division per element.
    options.AddConfigEntry("optimization.disable_specified_optimizers", "SkipLayerNormFusion");
  } else {
    // A memory pattern plans one block for all temporaries of a run. Blocks for other sizes do not fit into its gaps,
    // so the memory of the encoder doubles once more than necessary, and ONNX Runtime 1.23 still allocates memory in
    // the third run for some sizes.
    options.DisableMemPattern();
  }
  options.AddConfigEntry("session.load_model_format", "ONNX");  // never the ORT format, for any file name
  // For int8: without VNNI, x86-64 adds pairs of products in 16 bits, which may overflow unless this option is set.
  // With VNNI or AMX, the option would only make runs slower.
  if (!has_vnni()) options.AddConfigEntry("session.x64quantprecision", "1");
  if (settings.device != "cpu") append_cuda(options, settings.device, settings.stream);
  return options;
}

// Open a session for the bytes of a checked graph: its file may change after the check. ONNX Runtime maps the weights
// of a directory or a file of tx-pack, and copies those of a bundle in memory.
Ort::Session session_of(const Bundle& bundle, std::string model, Ort::SessionOptions options) {
  constexpr const char* kFolder = "session.model_external_initializers_file_folder_path";
  if (bundle.is_directory()) {
    options.AddConfigEntry(kFolder, (bundle.directory() / kWeightsName).parent_path().c_str());
    return {environment(), model.data(), model.size(), options};
  }
  const Bundle::Place weights = bundle.place(kWeightsName);
  if (weights.path.empty()) {
    const std::string_view bytes = bundle.view(kWeightsName);
    options.AddExternalInitializersFromFilesInMemory({fs::path(kWeightsName).filename().string()},
                                                     {const_cast<char*>(bytes.data())}, {bytes.size()});
  } else {
    options.AddConfigEntry(kFolder, weights.path.parent_path().c_str());
    model = moved_external_data(model, weights.path.filename().string(), weights.start);
  }
  return {environment(), model.data(), model.size(), options};
}

// First version whose MultiHeadAttention applies a bias of one head, [batch, 1, 1, source], correctly to all rows.
constexpr const char* kFirstWithBias = "1.21.1";
// First version that certainly finds the weights of a graph in memory; others read the file of the graph again.
constexpr const char* kFirstWithFolder = "1.20.0";

// Return the numbers of a version, such as {1, 21, 1}.
std::array<int, 3> numbers_of(const std::string& version) {
  std::array<int, 3> numbers{};
  std::istringstream stream(version);
  char point = '.';
  stream >> numbers[0] >> point >> numbers[1] >> point >> numbers[2];
  return numbers;
}

// Refuse a graph with an operator that this version computes incorrectly in rows after the first, without an error.
void check_version(const Bundle& bundle, const Graph& graph, const std::string& model) {
  if (numbers_of(onnxruntime_version()) >= numbers_of(kFirstWithBias)) return;
  if (model.find("MultiHeadAttention") == std::string::npos) return;
  throw BundleError("ONNX Runtime " + onnxruntime_version() + " computes the lowering " + graph.lowering + " of " +
                    bundle.name(graph.file) + " wrongly in batches: install " + kFirstWithBias +
                    " or newer, or use a bundle with the lowering scatter");
}

Ort::Session open_session(const Bundle& bundle, const Graph& graph, const SessionSettings& settings) {
  const std::string path = bundle.name(graph.file);
  std::string model = checked_graph(bundle, graph.file);
  check_version(bundle, graph, model);
  std::shared_lock<std::shared_mutex> uncaptured;
  if (settings.device != "cpu") uncaptured = std::shared_lock(whole_device());
  try {
    const bool from_file = bundle.is_directory() && numbers_of(onnxruntime_version()) < numbers_of(kFirstWithFolder);
    Ort::Session session = from_file ? Ort::Session(environment(), path.c_str(), session_options(settings))
                                     : session_of(bundle, std::move(model), session_options(settings));
    if (fits(session, graph)) return session;
  } catch (const Ort::Exception& error) {
    const std::string why = reason(error);
    if (is_cuda_failure(why) && !is_out_of_memory(why)) throw no_cuda(why_no_cuda(cuda_provider(), why));
    throw_failure<BundleError>("ONNX Runtime " + onnxruntime_version() + " does not load " + path + ": " + why);
  }
  throw BundleError(path + " has other inputs or outputs than the manifest: export the bundle again");
}

std::optional<Graph> copied(const Graph* graph) { return graph == nullptr ? std::nullopt : std::optional(*graph); }

}  // namespace

Type type_of(const std::string& dtype) {
  if (dtype == "float32") return {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4};
  if (dtype == "float16") return {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2};
  if (dtype == "int64") return {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8};
  if (dtype == "int32") return {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4};
  return {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1};
}

std::string reason(const std::exception& error) {
  std::string line = error.what();
  line = line.substr(0, line.find('\n'));
  static const std::regex cuda(R"(CU\w+ failure \d+: .*?(?= ; GPU=))");
  if (std::smatch failure; std::regex_search(line, failure, cuda)) return failure[0];
  static const std::regex noise(
      R"(^\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .*? failed: ?|/\S+\.(cc|h):\d+ .*\) )");
  return std::regex_replace(line, noise, "");
}

Ort::Env& environment() {
  // Never destroyed, since threads may still run at exit.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Ort::Env* const env = [] {
    Ort::InitApi(onnxruntime_library().GetApi(ORT_API_VERSION));
    return new Ort::Env(ORT_LOGGING_LEVEL_FATAL, "txport");
  }();
  return *env;
}

std::string onnxruntime_version() { return onnxruntime_library().GetVersionString(); }

fs::path cuda_provider() {
  Dl_info found{};
  ::dladdr(&onnxruntime_library(), &found);  // an address inside the library
  return fs::path(found.dli_fname == nullptr ? "" : found.dli_fname)
      .replace_filename("libonnxruntime_providers_cuda.so");
}

std::string why_no_cuda(const fs::path& provider, const std::string& reported) {
  if (::dlopen(provider.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* loader_error = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc stores one per thread
    const std::string line = loader_error == nullptr ? "" : loader_error;
    const auto end = line.find(": cannot open shared object file");
    if (end != std::string::npos && line.rfind("libcuda.so", 0) != 0) {  // libcuda.so is part of the driver
      return missing(line.substr(0, end));
    }
  }
  const std::string against = against_driver();
  return against.empty() ? reported + (reported.empty() ? "" : ", ") + "check the driver with nvidia-smi" : against;
}

bool has_cuda_provider() {
  const Ort::Env& loaded = environment();
  (void)loaded;
  const std::vector<std::string> providers = Ort::GetAvailableProviders();
  return std::find(providers.begin(), providers.end(), "CUDAExecutionProvider") != providers.end();
}

// ONNX Runtime's CUDA attention loads a mask eight values at a time, also where a row is not a multiple of eight, and a
// misaligned address ends the CUDA context (microsoft/onnxruntime#28366). Buffers have such rows only at the limits.
void refuse_unaligned(const std::string& lowering, const Limits& limits) {
  if (lowering != "tensorscatter" || (limits.source % 8 == 0 && limits.target % 8 == 0)) return;
  throw BundleError("ONNX Runtime cannot run the lowering tensorscatter on a GPU for up to " +
                    std::to_string(limits.source) + " source and " + std::to_string(limits.target) +
                    " target tokens: export the bundle again with --max-source and --max-target that are multiples of "
                    "8, or with the lowering ort or scatter");
}

OrtSessions open_sessions(const Bundle& bundle, const Manifest& manifest, const Choice& choice, int threads,
                          void* stream) {
  environment();
  const SessionSettings settings{choice.device, threads, stream};
  auto encoder = std::async(std::launch::async, open_session, std::cref(bundle), std::cref(manifest.encoder()),
                            std::cref(settings));
  std::exception_ptr failure;
  for (const std::string& lowering : choice.lowerings) {
    const Graph& graph = manifest.step(lowering);
    try {
      if (choice.device == "cuda") refuse_unaligned(lowering, manifest.limits());
      Ort::Session step = open_session(bundle, graph, settings);
      Ort::Session opened = encoder.get();
      return {"ONNX Runtime " + onnxruntime_version() + " on " + choice.device + ", lowering " + lowering,
              std::move(opened), std::move(step), graph};
    } catch (const BundleError&) {
      if (!encoder.valid()) throw;  // the encoder failed
      if (!failure) failure = std::current_exception();
    }
  }
  encoder.wait();
  std::rethrow_exception(failure);
}

Ort::Session open_on_cpu(const Bundle& bundle, const Graph& graph, int threads) {
  environment();
  return open_session(bundle, graph, {"cpu", threads, nullptr});
}

BeamSession::BeamSession(Bundle bundle, const Manifest& manifest, std::string device, int threads, void* stream)
    : bundle_(std::move(bundle)),
      graph_(copied(manifest.optional_graph(kBeams))),
      device_(std::move(device)),
      threads_(threads),
      stream_(stream) {}

Ort::Session* BeamSession::open() const {
  std::call_once(opened_, [this] {
    if (!graph_) return;
    try {
      environment();
      session_.emplace(open_session(bundle_, *graph_, {device_, threads_, stream_}));
    } catch (const BundleError&) {
      session_.reset();
    }
  });
  return session_ ? &*session_ : nullptr;
}

void run(Ort::Session& session, const Ort::RunOptions& options, const Ort::IoBinding& binding) {
  try {
    session.Run(options, binding);
  } catch (const Ort::Exception& error) {
    // The provider loads cuDNN only when it first needs it.
    if (std::string(error.what()).find("cuDNN is unavailable") != std::string::npos) {
      throw no_cuda(missing("libcudnn.so.9"));
    }
    throw_failure("ONNX Runtime failed: " + reason(error));
  }
}

}  // namespace txport::core
