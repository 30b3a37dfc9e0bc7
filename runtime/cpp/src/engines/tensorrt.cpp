#include "engines/tensorrt.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "errors.hpp"
#include "system/system.hpp"

namespace txport::core {

namespace {

constexpr const char* kVariable = "TXPORT_TENSORRT";
// Library versions that these headers support.
constexpr const char* kSupported = NV_TENSORRT_MAJOR == 8    ? "TensorRT 8.6"
                                   : NV_TENSORRT_MAJOR == 10 ? "TensorRT 10"
                                                             : "TensorRT 11";

struct Library {
  void* handle = nullptr;
  LibraryVersion version;
};

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

void* open_library() {
  if (const std::string named = variable(kVariable); !named.empty()) {
    if (void* found = ::dlopen(named.c_str(), RTLD_NOW | RTLD_LOCAL)) return found;
  } else {
    const std::string major = "libnvinfer.so." + std::to_string(NV_TENSORRT_MAJOR);
    for (const std::string& name : {major, std::string("libnvinfer.so")}) {
      if (void* found = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return found;
    }
  }
  const char* reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc stores one per thread
  throw MissingLibrary("TensorRT cannot be loaded (" + std::string(reason == nullptr ? kVariable : reason) +
                       "): install " + kSupported + ", or name its libnvinfer in the environment variable " +
                       kVariable);
}

// Return the version in the form of the Python package: major.minor.patch and, from 10 on, the build number if the
// library reports it.
std::string version_of(void* library) {
  auto* get = symbol<std::int32_t()>(library, "getInferLibVersion");
  if (get == nullptr) return "";
  const std::int32_t number = get();
  const std::int32_t step = number < 10000 ? 10 : 100;  // 8601 is 8.6.1, 101501 is 10.15.1
  std::string version = std::to_string(number / (100 * step)) + "." + std::to_string(number / 100 % step) + "." +
                        std::to_string(number % 100);
  auto* build = symbol<std::int32_t()>(library, "getInferLibBuildVersion");
  if (build != nullptr) version += "." + std::to_string(build());
  return version;
}

const Library& library() {
  // Never closed: engines may live until the process ends.
  static const Library opened = [] {
    void* handle = open_library();
    const LibraryVersion version{"tensorrt", version_of(handle)};
    const auto numbers = version.numbers();
    if (numbers.empty() || symbol<void*(void*, std::int32_t)>(handle, "createInferRuntime_INTERNAL") == nullptr) {
      throw MissingLibrary("the libnvinfer that was found is not TensorRT's: name the right one in " +
                           std::string(kVariable));
    }
    if (numbers[0] != NV_TENSORRT_MAJOR || (numbers[0] == 8 && numbers[1] < 6)) {
      throw MissingLibrary(version.title() + " is installed, but this txport was built with the headers of " +
                           kSupported + ": install that, or build txport with the headers of the other");
    }
    return Library{handle, version};
  }();
  return opened;
}

}  // namespace

void TensorRtLog::log(Severity severity, const nvinfer1::AsciiChar* message) noexcept {
  if (severity > Severity::kERROR) return;
  try {
    const std::lock_guard lock(mutex_);
    if (first_.empty() || (is_out_of_memory(message) && !is_out_of_memory(first_))) first_ = message;
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is no memory for the message
  }
}

std::string TensorRtLog::why() {
  const std::lock_guard lock(mutex_);
  std::string line = std::move(first_);
  first_.clear();
  if (line.empty()) return "no reason given";
  for (char& c : line) c = c == '\n' || c == '\r' ? ' ' : c;
  return line.substr(0, 400);
}

LibraryVersion tensorrt_version() { return library().version; }

std::unique_ptr<nvinfer1::IRuntime> make_tensorrt_runtime(TensorRtLog& log) {
  auto* create = symbol<void*(void*, std::int32_t)>(library().handle, "createInferRuntime_INTERNAL");
  auto* runtime = static_cast<nvinfer1::IRuntime*>(create(static_cast<nvinfer1::ILogger*>(&log), NV_TENSORRT_VERSION));
  if (runtime == nullptr) {
    throw_failure(library().version.title() + " does not start: " + log.why() + "; use device cuda or cpu");
  }
  return std::unique_ptr<nvinfer1::IRuntime>(runtime);
}

// TensorRT 8 and 10 have the older functions for the memory of a context, and 10.0 only these; 11 has only the newer
// ones. They differ only in weight streaming, which our engines do not use.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

std::size_t scratch_bytes(const nvinfer1::ICudaEngine& engine) {
#if NV_TENSORRT_MAJOR < 11
  return engine.getDeviceMemorySize();
#else
  return static_cast<std::size_t>(engine.getDeviceMemorySizeV2());
#endif
}

std::unique_ptr<nvinfer1::IExecutionContext> new_context(nvinfer1::ICudaEngine& engine, std::byte* scratch,
                                                         std::size_t bytes) {
#if NV_TENSORRT_MAJOR == 8
  std::unique_ptr<nvinfer1::IExecutionContext> context(engine.createExecutionContextWithoutDeviceMemory());
#else
  constexpr auto kByCaller = nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED;
  std::unique_ptr<nvinfer1::IExecutionContext> context(engine.createExecutionContext(kByCaller));
#endif
#if NV_TENSORRT_MAJOR < 11
  if (context) context->setDeviceMemory(scratch);
  (void)bytes;
#else
  if (context) context->setDeviceMemoryV2(scratch, static_cast<std::int64_t>(bytes));
#endif
  // Engines are built with detailed profiling verbosity for inspection. Disable it here, since annotations for
  // profilers would slow down each run.
  if (context) context->setNvtxVerbosity(nvinfer1::ProfilingVerbosity::kNONE);
  return context;
}

#pragma GCC diagnostic pop

std::string name_of(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kFLOAT:
      return "float32";
    case nvinfer1::DataType::kHALF:
      return "float16";
    case nvinfer1::DataType::kINT32:
      return "int32";
    case nvinfer1::DataType::kBOOL:
      return "bool";
#if NV_TENSORRT_MAJOR >= 10
    case nvinfer1::DataType::kINT64:
      return "int64";
#endif
    default:
      return "";
  }
}

}  // namespace txport::core
