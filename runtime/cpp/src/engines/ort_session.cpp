#include "engines/ort_session.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "engines/mapped.hpp"
#include "engines/onnxruntime.hpp"
#include "engines/packed_memory.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

// Holds the threads of sessions back until all sessions are open. Opening one uses none of them, but ONNX Runtime's
// threads begin by looking for work in a loop, and took a third of the time of two cores from those that open.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

// Opens a gate when its scope ends.
class GateOpener {
 public:
  explicit GateOpener(Gate& gate) : gate_(gate) {}
  ~GateOpener() { gate_.open(); }
  GateOpener(const GateOpener&) = delete;
  GateOpener& operator=(const GateOpener&) = delete;

 private:
  Gate& gate_;
};

// Whether sessions may use the environment's allocator: not where the application has registered one of its own.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<bool> packed_memory{false};

// Whether this processor adds products of 8 bits in 32 bits: AVX-512 VNNI or AVX VNNI, by CPUID's leaf 7.
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

bool has_packed_memory() { return packed_memory; }

// ONNX Runtime calls Reserve for what stays as long as a session does: packed weights.
void register_packed_memory(const Ort::Env& env) {
  static const Ort::MemoryInfo host = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static OrtAllocator* const allocator = [] {
    auto* made = new OrtAllocator{};
    made->version = ORT_API_VERSION;
    made->Alloc = [](OrtAllocator*, std::size_t bytes) { return plain_allocate(bytes); };
    made->Free = [](OrtAllocator*, void* block) { packed_free(block); };
    made->Info = [](const OrtAllocator*) { return static_cast<const OrtMemoryInfo*>(host); };
#if ORT_API_VERSION >= 18
    made->Reserve = [](OrtAllocator*, std::size_t bytes) { return packed_allocate(bytes); };
#endif
    return made;
  }();
  const Ort::Status refused(Ort::GetApi().RegisterAllocator(env, allocator));
  packed_memory = refused.IsOK();
}

// Name, type and shape of a graph's tensors, in the order of their names.
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

// A thread of a session that waits for its gate first.
struct GatedThread {
  std::shared_ptr<Gate> gate;
  std::thread thread;
};

OrtCustomThreadHandle start_thread(void* gate, OrtThreadWorkerFn work, void* argument) {
  auto* started = new GatedThread{*static_cast<std::shared_ptr<Gate>*>(gate), {}};
  started->thread = std::thread([waits = started->gate, work, argument] {
    waits->wait();
    work(argument);
  });
  return reinterpret_cast<OrtCustomThreadHandle>(started);
}

void join_thread(OrtCustomThreadHandle handle) {
  const std::unique_ptr<GatedThread> ended(
      reinterpret_cast<GatedThread*>(const_cast<OrtCustomHandleType*>(handle)));  // it was never const
  ended->gate->open();  // a session that could not be opened ends its threads before anybody let them begin
  ended->thread.join();
}

struct ReleaseCudaOptions {
  void operator()(OrtCUDAProviderOptionsV2* options) const { Ort::GetApi().ReleaseCUDAProviderOptions(options); }
};

void append_cuda(Ort::SessionOptions& options, const std::string& device, void* stream) {
  if (!has_cuda_provider()) {
    throw InputError("device " + device +
                     " needs an ONNX Runtime with its CUDA provider, which this one has not: use device cpu");
  }
  try {
    OrtCUDAProviderOptionsV2* made = nullptr;
    Ort::ThrowOnError(Ort::GetApi().CreateCUDAProviderOptions(&made));
    const std::unique_ptr<OrtCUDAProviderOptionsV2, ReleaseCudaOptions> cuda(made);
    Ort::ThrowOnError(Ort::GetApi().UpdateCUDAProviderOptionsWithValue(cuda.get(), "user_compute_stream", stream));
    options.AppendExecutionProvider_CUDA_V2(*cuda);
  } catch (const Ort::Exception& error) {
    throw InputError("ONNX Runtime cannot start its CUDA provider here (" + reason(error) +
                     "): check the driver, or use device cpu");
  }
}

// Microseconds that threads wait actively for the next run or operator: longer than the host takes between steps.
constexpr const char* kSpin = "500";

// How to open the sessions of a bundle.
struct How {
  std::string device;
  int threads;
  void* stream;
  Weights weights;
};

// `gate` must live until the session is open.
Ort::SessionOptions session_options(const How& how, std::shared_ptr<Gate>& gate) {
  Ort::SessionOptions options;
  options.SetLogSeverityLevel(ORT_LOGGING_LEVEL_ERROR);
  options.SetIntraOpNumThreads(how.threads);
  // Without the arena the temporaries of a large batch go back to the system; steps are as fast without it.
  options.DisableCpuMemArena();
  // Each session has threads of its own. By default they wait actively for about 10 ms after a run, in which they take
  // a core from the other session, as at each change between the encoder and the steps.
  options.AddConfigEntry("session.intra_op.spin_duration_us", kSpin);
  if (how.device == "cpu") {
    // On the CPU, Add and LayerNormalization are three times as fast as SkipLayerNormalization, which sums one element
    // after the other (Welford 1962) and divides at each.
    options.AddConfigEntry("optimization.disable_specified_optimizers", "SkipLayerNormFusion");
  }
  // For int8: x86-64 adds pairs of products in 16 bits then, which overflow, unless told otherwise. Where there is VNNI
  // this would only cost the time that it and AMX save.
  if (!has_vnni()) options.AddConfigEntry("session.x64quantprecision", "1");
  if (how.weights == Weights::mapped) {
    // ONNX Runtime reserves memory for all weights then, which it never touches. Packed memory would be resident.
    options.AddConfigEntry("session.disable_prepacking", "1");
  } else if (has_packed_memory()) {
    options.AddConfigEntry("session.use_env_allocators", "1");
  }
  options.SetCustomCreateThreadFn(start_thread);
  options.SetCustomThreadCreationOptions(&gate);
  options.SetCustomJoinThreadFn(join_thread);
  if (how.device != "cpu") append_cuda(options, how.device, how.stream);
  return options;
}

// Open one graph; its threads begin when the gate is opened.
Ort::Session open_session(const fs::path& directory, const Graph& graph, const How& how,
                          const std::shared_ptr<Gate>& gate) {
  const fs::path path = directory / graph.file;
  std::shared_ptr<Gate> held = gate;
  const Ort::SessionOptions options = session_options(how, held);
  try {
    Ort::Session session(environment(), path.c_str(), options);
    if (fits(session, graph)) return session;
  } catch (const Ort::Exception& error) {
    throw BundleError("ONNX Runtime " + onnxruntime_version() + " does not load " + path.string() + ": " +
                      reason(error));
  }
  throw BundleError(path.string() + " has other inputs or outputs than the manifest says: export the bundle again");
}

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
  static const std::regex noise(
      R"(^\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .*? failed: ?|/\S+\.(cc|h):\d+ .*\) )");
  return std::regex_replace(line, noise, "");
}

Ort::Env& environment() {
  // Never destroyed, since threads may still run at exit.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Ort::Env* const env = [] {
    Ort::InitApi(onnxruntime_library().GetApi(ORT_API_VERSION));
    auto* made = new Ort::Env(ORT_LOGGING_LEVEL_ERROR, "txport");
    register_packed_memory(*made);
    return made;
  }();
  return *env;
}

std::string onnxruntime_version() { return onnxruntime_library().GetVersionString(); }

bool has_cuda_provider() {
  const Ort::Env& loaded = environment();
  (void)loaded;
  const std::vector<std::string> providers = Ort::GetAvailableProviders();
  return std::find(providers.begin(), providers.end(), "CUDAExecutionProvider") != providers.end();
}

OrtSessions open_sessions(const fs::path& directory, const Manifest& manifest, const Choice& choice, int threads,
                          void* stream, Weights weights) {
  environment();
  const How how{choice.device, threads, stream, weights};
  const auto gate = std::make_shared<Gate>();
  const GateOpener opener(*gate);
  auto encoder = std::async(std::launch::async, open_session, std::cref(directory),
                            std::cref(*manifest.graph("encoder")), std::cref(how), gate);
  std::exception_ptr failure;
  for (const std::string& lowering : choice.lowerings) {
    const Graph& graph = *manifest.graph("decoder_step", lowering);
    try {
      Ort::Session step = open_session(directory, graph, how, gate);
      Ort::Session opened = encoder.get();
      if (weights == Weights::packed) release(directory / kWeightsName);
      return {"ONNX Runtime " + onnxruntime_version() + " on " + choice.device + ", lowering " + lowering,
              std::move(opened), std::move(step), graph};
    } catch (const BundleError&) {
      if (!encoder.valid()) throw;  // the encoder's own failure
      if (!failure) failure = std::current_exception();
    }
  }
  encoder.wait();
  std::rethrow_exception(failure);
}

void run(const Ort::Session& session, const Ort::RunOptions& options, const Ort::IoBinding& binding) {
  try {
    // Ort::Session::Run is not const, though OrtApi's is safe for threads.
    const_cast<Ort::Session&>(session).Run(options, binding);
  } catch (const Ort::Exception& error) {
    throw BundleError("ONNX Runtime failed: " + reason(error));
  }
}

}  // namespace txport::core
