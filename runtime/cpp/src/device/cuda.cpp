#include "device/cuda.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <utility>

#include "device/gpu.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

// Types of cuda.h in the signatures of the driver's functions.
using Address = unsigned long long;
using Stream = void*;
using EventHandle = void*;
using Captured = void*;
using Runnable = void*;

constexpr int kInvalidValue = 1;       // CUDA_ERROR_INVALID_VALUE
constexpr int kOutOfMemory = 2;        // CUDA_ERROR_OUT_OF_MEMORY
constexpr unsigned kNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoTiming = 2;      // CU_EVENT_DISABLE_TIMING
constexpr int kThreadLocal = 1;        // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr unsigned kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE
// CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: allocations during a capture are part of the graph; without this
// flag, a second replay would fail.
constexpr unsigned long long kFreesOnLaunch = 1;

// CUDA_MEMCPY3D.
struct Copy3D {
  std::size_t source_x = 0;
  std::size_t source_y = 0;
  std::size_t source_z = 0;
  std::size_t source_lod = 0;
  unsigned source_type = kDeviceMemory;
  const void* source_host = nullptr;
  Address source = 0;
  void* source_array = nullptr;
  void* reserved_0 = nullptr;
  std::size_t source_pitch = 0;
  std::size_t source_height = 0;
  std::size_t target_x = 0;
  std::size_t target_y = 0;
  std::size_t target_z = 0;
  std::size_t target_lod = 0;
  unsigned target_type = kDeviceMemory;
  void* target_host = nullptr;
  Address target = 0;
  void* target_array = nullptr;
  void* reserved_1 = nullptr;
  std::size_t target_pitch = 0;
  std::size_t target_height = 0;
  std::size_t width = 0;
  std::size_t height = 0;
  std::size_t depth = 0;
};

// CUDA_MEMCPY2D.
struct Copy2D {
  std::size_t source_x = 0;
  std::size_t source_y = 0;
  unsigned source_type = kDeviceMemory;
  const void* source_host = nullptr;
  Address source = 0;
  void* source_array = nullptr;
  std::size_t source_pitch = 0;
  std::size_t target_x = 0;
  std::size_t target_y = 0;
  unsigned target_type = kDeviceMemory;
  void* target_host = nullptr;
  Address target = 0;
  void* target_array = nullptr;
  std::size_t target_pitch = 0;
  std::size_t width = 0;
  std::size_t height = 0;
};

// Functions of the driver. Since CUDA 4 and 10, cuda.h maps the plain names to those with _v2.
struct Driver {
  int (*cuDriverGetVersion)(int*);
  int (*cuDeviceGet)(int*, int);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuCtxSetCurrent)(void*);
  int (*cuMemAlloc_v2)(Address*, std::size_t);
  int (*cuMemFree_v2)(Address);
  int (*cuMemGetInfo_v2)(std::size_t*, std::size_t*);
  int (*cuMemHostAlloc)(void**, std::size_t, unsigned);
  int (*cuMemFreeHost)(void*);
  int (*cuMemcpyHtoDAsync_v2)(Address, const void*, std::size_t, Stream);
  int (*cuMemcpyDtoHAsync_v2)(void*, Address, std::size_t, Stream);
  int (*cuMemcpyDtoDAsync_v2)(Address, Address, std::size_t, Stream);
  int (*cuMemcpy2DAsync_v2)(const Copy2D*, Stream);
  int (*cuMemcpy3DAsync_v2)(const Copy3D*, Stream);
  int (*cuMemsetD8Async)(Address, unsigned char, std::size_t, Stream);
  int (*cuMemsetD2D8Async)(Address, std::size_t, unsigned char, std::size_t, std::size_t, Stream);
  int (*cuEventCreate)(EventHandle*, unsigned);
  int (*cuEventRecord)(EventHandle, Stream);
  int (*cuEventSynchronize)(EventHandle);
  int (*cuEventDestroy_v2)(EventHandle);
  int (*cuStreamCreate)(Stream*, unsigned);
  int (*cuStreamSynchronize)(Stream);
  int (*cuStreamDestroy_v2)(Stream);
  int (*cuStreamBeginCapture_v2)(Stream, int);
  int (*cuStreamEndCapture)(Stream, Captured*);
  int (*cuGraphInstantiateWithFlags)(Runnable*, Captured, unsigned long long);
  int (*cuGraphLaunch)(Runnable, Stream);
  int (*cuGraphExecDestroy)(Runnable);
  int (*cuGraphDestroy)(Captured);
  int (*cuGetErrorString)(int, const char**);
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    throw MissingLibrary("CUDA cannot be used here: the NVIDIA driver has no " + std::string(name) +
                         ", it is too old: update it, or use device cpu");
  }
  function = reinterpret_cast<Function>(symbol);
}

Driver load() {
  const auto gpu = find_gpu();
  if (const auto* why = std::get_if<std::string>(&gpu)) {
    throw MissingLibrary("CUDA cannot be used here: " + *why + "; use device cpu");
  }
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // already opened by find_gpu
  Driver driver{};
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a name as a string and as a member
#define TXPORT_FIND(name) find(library, #name, driver.name)
  TXPORT_FIND(cuDriverGetVersion);
  TXPORT_FIND(cuDeviceGet);
  TXPORT_FIND(cuDevicePrimaryCtxRetain);
  TXPORT_FIND(cuCtxSetCurrent);
  TXPORT_FIND(cuMemAlloc_v2);
  TXPORT_FIND(cuMemFree_v2);
  TXPORT_FIND(cuMemGetInfo_v2);
  TXPORT_FIND(cuMemHostAlloc);
  TXPORT_FIND(cuMemFreeHost);
  TXPORT_FIND(cuMemcpyHtoDAsync_v2);
  TXPORT_FIND(cuMemcpyDtoHAsync_v2);
  TXPORT_FIND(cuMemcpyDtoDAsync_v2);
  TXPORT_FIND(cuMemcpy2DAsync_v2);
  TXPORT_FIND(cuMemcpy3DAsync_v2);
  TXPORT_FIND(cuMemsetD8Async);
  TXPORT_FIND(cuMemsetD2D8Async);
  TXPORT_FIND(cuEventCreate);
  TXPORT_FIND(cuEventRecord);
  TXPORT_FIND(cuEventSynchronize);
  TXPORT_FIND(cuEventDestroy_v2);
  TXPORT_FIND(cuStreamCreate);
  TXPORT_FIND(cuStreamSynchronize);
  TXPORT_FIND(cuStreamDestroy_v2);
  TXPORT_FIND(cuStreamBeginCapture_v2);
  TXPORT_FIND(cuStreamEndCapture);
  TXPORT_FIND(cuGraphInstantiateWithFlags);
  TXPORT_FIND(cuGraphLaunch);
  TXPORT_FIND(cuGraphExecDestroy);
  TXPORT_FIND(cuGraphDestroy);
  TXPORT_FIND(cuGetErrorString);
#undef TXPORT_FIND
  return driver;
}

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

std::string failure(int result, const char* what) {
  const char* text = nullptr;
  driver().cuGetErrorString(result, &text);
  return "CUDA failed in " + std::string(what) + ": " + (text == nullptr ? "error " + std::to_string(result) : text);
}

void check(int result, const char* what) {
  if (result == kOutOfMemory) throw ResourceError(failure(result, what));
  if (result != 0) throw EngineError(failure(result, what));
}

// Check the result of a copy or fill of several rows. Return false if the driver does not support the pitches. It only
// guarantees pitches of cuMemAllocPitch, up to 2^31 - 1 bytes; ours depend on the tensors that libraries bind.
bool is_accepted(int result, const char* what) {
  if (result != kInvalidValue) check(result, what);
  return result == 0;
}

// Store the first failure in `fault`; throw if memory is exhausted.
void record_failure(int result, const char* what, std::string& fault) {
  if (result == kOutOfMemory) throw ResourceError(failure(result, what));
  if (result != 0 && fault.empty()) fault = failure(result, what);
}

// Clear the last error of this thread in CUDA's runtime. A launch during an invalid capture leaves an error there,
// which ONNX Runtime would attribute to the next operator.
void clear_runtime_errors() {
  int version = 0;
  driver().cuDriverGetVersion(&version);
  for (int generation = 11; generation <= version / 1000; ++generation) {
    const std::string name = "libcudart.so." + std::to_string(generation);
    void* runtime = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (runtime == nullptr) continue;  // it is not loaded
    if (void* get = ::dlsym(runtime, "cudaGetLastError")) reinterpret_cast<int (*)()>(get)();
    ::dlclose(runtime);
  }
}

// Return the primary context, which CUDA's runtime, TensorRT and ONNX Runtime also use. It is never released.
void* primary_context() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static void* const context = [] {
    int device = 0;
    void* retained = nullptr;
    check(driver().cuDeviceGet(&device, 0), "cuDeviceGet");
    check(driver().cuDevicePrimaryCtxRetain(&retained, device), "cuDevicePrimaryCtxRetain");
    return retained;
  }();
  return context;
}

Address number(const std::byte* address) { return reinterpret_cast<Address>(address); }

// Make the context current. The current context is per thread, and other libraries may have changed it.
void make_current() { check(driver().cuCtxSetCurrent(primary_context()), "cuCtxSetCurrent"); }

// The same for destructors. After a fault, the driver refuses every call, and destructors cannot report it.
void try_make_current() noexcept { driver().cuCtxSetCurrent(primary_context()); }

// Describe a copy of `rows` of `width` bytes in the driver's structure for two or three axes.
template <typename Copy>
Copy between(Buffer to, Buffer from, std::size_t width, std::size_t rows) {
  Copy region;
  region.source = number(from.start);
  region.source_pitch = from.row;
  region.target = number(to.start);
  region.target_pitch = to.row;
  region.width = width;
  region.height = rows;
  return region;
}

class CudaEvent : public Event {
 public:
  explicit CudaEvent(Stream stream) : stream_(stream) {
    check(driver().cuEventCreate(&event_, kNoTiming), "cuEventCreate");
  }
  ~CudaEvent() override {
    try_make_current();
    driver().cuEventDestroy_v2(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record() override {
    make_current();
    check(driver().cuEventRecord(event_, stream_), "cuEventRecord");
  }
  void synchronize() override {
    make_current();
    check(driver().cuEventSynchronize(event_), "cuEventSynchronize");
  }

 private:
  Stream stream_;
  EventHandle event_ = nullptr;
};

class CudaDevice : public Device {
 public:
  CudaDevice() {
    make_current();
    check(driver().cuStreamCreate(&stream_, kNonBlocking), "cuStreamCreate");
  }
  ~CudaDevice() override {
    try_make_current();
    driver().cuStreamDestroy_v2(stream_);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  void activate() override { make_current(); }

  std::byte* allocate(std::size_t bytes) override {
    make_current();
    Address address = 0;
    const int result = driver().cuMemAlloc_v2(&address, std::max<std::size_t>(bytes, 1));
    if (result == kOutOfMemory) throw ResourceError("the GPU has no room for " + std::to_string(bytes) + " bytes");
    check(result, "cuMemAlloc");
    return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr): CUDA addresses are integers
  }

  void free(std::byte* address) noexcept override {
    try_make_current();
    driver().cuMemFree_v2(number(address));  // waits for work that still uses it
  }

  std::size_t free_memory() override {
    make_current();
    std::size_t free = 0;
    std::size_t total = 0;
    check(driver().cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    return free;
  }

  std::byte* allocate_host(std::size_t bytes) override {
    make_current();
    void* address = nullptr;
    check(driver().cuMemHostAlloc(&address, std::max<std::size_t>(bytes, 1), 0), "cuMemHostAlloc");
    return static_cast<std::byte*>(address);
  }

  void free_host(std::byte* address) noexcept override {
    try_make_current();
    driver().cuMemFreeHost(address);
  }

  void upload(std::byte* to, const void* from, std::size_t bytes) override {
    make_current();
    // The driver copies pageable memory to an internal buffer before this returns.
    check(driver().cuMemcpyHtoDAsync_v2(number(to), from, bytes, stream_), "cuMemcpyHtoDAsync");
  }

  void download(void* to, const std::byte* from, std::size_t bytes) override {
    make_current();
    check(driver().cuMemcpyDtoHAsync_v2(to, number(from), bytes, stream_), "cuMemcpyDtoHAsync");
  }

  void copy(Buffer to, Buffer from, std::size_t width, std::size_t rows, std::size_t planes) override {
    make_current();
    if (planes > 1) {
      auto volume = between<Copy3D>(to, from, width, rows);
      volume.depth = planes;
      volume.source_height = from.plane / from.row;
      volume.target_height = to.plane / to.row;
      if (is_accepted(driver().cuMemcpy3DAsync_v2(&volume, stream_), "cuMemcpy3DAsync")) return;
    } else if (rows > 1) {
      const auto area = between<Copy2D>(to, from, width, rows);
      if (is_accepted(driver().cuMemcpy2DAsync_v2(&area, stream_), "cuMemcpy2DAsync")) return;
    }
    for (std::size_t i = 0; i < planes * rows; ++i) {
      const Address target = number(to.start + i / rows * to.plane + i % rows * to.row);
      const Address source = number(from.start + i / rows * from.plane + i % rows * from.row);
      check(driver().cuMemcpyDtoDAsync_v2(target, source, width, stream_), "cuMemcpyDtoDAsync");
    }
  }

  void fill(Buffer to, unsigned char value, std::size_t width, std::size_t rows) override {
    make_current();
    const auto copy_at_once = [&] {
      return driver().cuMemsetD2D8Async(number(to.start), to.row, value, width, rows, stream_);
    };
    if (rows > 1 && is_accepted(copy_at_once(), "cuMemsetD2D8Async")) return;
    for (std::size_t row = 0; row < rows; ++row) {
      check(driver().cuMemsetD8Async(number(to.start + row * to.row), value, width, stream_), "cuMemsetD8Async");
    }
  }

  void synchronize() override {
    make_current();
    check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }

  std::unique_ptr<Event> create_event() override {
    make_current();
    return std::make_unique<CudaEvent>(stream_);
  }

  std::function<void()> capture(std::function<void()> work, std::string& fault) override {
    const std::shared_ptr<void> runnable = instantiated(captured(work, fault).get(), fault);
    if (runnable == nullptr) return work;
    // The captured graph may use memory owned by `work`, so `work` must live as long.
    return [this, runnable, work = std::move(work)] {
      make_current();
      check(driver().cuGraphLaunch(runnable.get(), stream_), "cuGraphLaunch");
    };
  }

  void* stream() const override { return stream_; }

 private:
  Stream stream_ = nullptr;

  // Capture the graph of what `work` enqueues; null if it cannot be captured. The capture is ended even if `work`
  // throws, since the stream would otherwise refuse all further calls.
  std::shared_ptr<void> captured(const std::function<void()>& work, std::string& fault) {
    make_current();
    check(driver().cuStreamBeginCapture_v2(stream_, kThreadLocal), "cuStreamBeginCapture");
    std::exception_ptr other;
    try {
      work();
    } catch (const EngineError& error) {  // some work cannot be captured
      fault = error.what();
    } catch (...) {
      other = std::current_exception();
    }
    Captured raw_graph = nullptr;
    record_failure(driver().cuStreamEndCapture(stream_, &raw_graph), "cuStreamEndCapture", fault);
    std::shared_ptr<void> graph(raw_graph, [](Captured held) {
      if (held != nullptr) driver().cuGraphDestroy(held);
    });
    if (other || !fault.empty()) clear_runtime_errors();
    if (other) std::rethrow_exception(other);
    return fault.empty() ? graph : nullptr;
  }

  static std::shared_ptr<void> instantiated(Captured graph, std::string& fault) {
    if (graph == nullptr) return nullptr;
    Runnable runnable = nullptr;
    record_failure(driver().cuGraphInstantiateWithFlags(&runnable, graph, kFreesOnLaunch),
                   "cuGraphInstantiateWithFlags", fault);
    if (runnable == nullptr) return nullptr;
    return {runnable, [](Runnable held) {
              try_make_current();
              driver().cuGraphExecDestroy(held);
            }};
  }
};

}  // namespace

std::shared_ptr<Device> cuda_device() { return std::make_shared<CudaDevice>(); }

}  // namespace txport::core
