#include "device/cuda.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <utility>

#include "device/gpu.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

// The types of cuda.h that cross the ABI.
using Address = unsigned long long;
using Stream = void*;
using Captured = void*;
using Runnable = void*;

constexpr int kOutOfMemory = 2;        // CUDA_ERROR_OUT_OF_MEMORY
constexpr unsigned kNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
constexpr int kThreadLocal = 1;        // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr unsigned kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE

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

// The functions of the driver that are called. cuda.h has mapped the plain names to those with _v2 since CUDA 4 and 10.
struct Driver {
  int (*cuDeviceGet)(int*, int);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuCtxSetCurrent)(void*);
  int (*cuMemAlloc_v2)(Address*, std::size_t);
  int (*cuMemFree_v2)(Address);
  int (*cuMemGetInfo_v2)(std::size_t*, std::size_t*);
  int (*cuMemcpyHtoDAsync_v2)(Address, const void*, std::size_t, Stream);
  int (*cuMemcpyDtoHAsync_v2)(void*, Address, std::size_t, Stream);
  int (*cuMemcpyDtoDAsync_v2)(Address, Address, std::size_t, Stream);
  int (*cuMemcpy2DAsync_v2)(const Copy2D*, Stream);
  int (*cuMemsetD8Async)(Address, unsigned char, std::size_t, Stream);
  int (*cuMemsetD16Async)(Address, unsigned short, std::size_t, Stream);
  int (*cuMemsetD32Async)(Address, unsigned, std::size_t, Stream);
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
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // find_gpu has opened it
  Driver driver{};
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a name as text and as a member
#define TXPORT_FIND(name) find(library, #name, driver.name)
  TXPORT_FIND(cuDeviceGet);
  TXPORT_FIND(cuDevicePrimaryCtxRetain);
  TXPORT_FIND(cuCtxSetCurrent);
  TXPORT_FIND(cuMemAlloc_v2);
  TXPORT_FIND(cuMemFree_v2);
  TXPORT_FIND(cuMemGetInfo_v2);
  TXPORT_FIND(cuMemcpyHtoDAsync_v2);
  TXPORT_FIND(cuMemcpyDtoHAsync_v2);
  TXPORT_FIND(cuMemcpyDtoDAsync_v2);
  TXPORT_FIND(cuMemcpy2DAsync_v2);
  TXPORT_FIND(cuMemsetD8Async);
  TXPORT_FIND(cuMemsetD16Async);
  TXPORT_FIND(cuMemsetD32Async);
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

// Keep the first failure in `fault`.
void note(int result, const char* what, std::string& fault) {
  if (result != 0 && fault.empty()) fault = failure(result, what);
}

// The context that CUDA's runtime uses too, and with it TensorRT and ONNX Runtime. Never released.
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

class CudaDevice : public Device {
 public:
  CudaDevice() {
    use();
    check(driver().cuStreamCreate(&stream_, kNonBlocking), "cuStreamCreate");
  }
  ~CudaDevice() override {
    driver().cuCtxSetCurrent(primary_context());
    driver().cuStreamDestroy_v2(stream_);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::byte* allocate(std::size_t bytes) override {
    use();
    Address address = 0;
    const int result = driver().cuMemAlloc_v2(&address, std::max<std::size_t>(bytes, 1));
    if (result == kOutOfMemory) {
      throw ResourceError("the GPU has no room for " + std::to_string(bytes) + " bytes: use a smaller batch");
    }
    check(result, "cuMemAlloc");
    return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr): CUDA's addresses are numbers
  }

  void free(std::byte* address) noexcept override {
    driver().cuCtxSetCurrent(primary_context());
    driver().cuMemFree_v2(number(address));  // waits for work that still uses it
  }

  std::size_t free_memory() override {
    use();
    std::size_t free = 0;
    std::size_t total = 0;
    check(driver().cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    return free;
  }

  void upload(std::byte* to, const void* from, std::size_t bytes) override {
    use();
    // The driver copies pageable memory to a buffer of its own before this returns.
    check(driver().cuMemcpyHtoDAsync_v2(number(to), from, bytes, stream_), "cuMemcpyHtoDAsync");
  }

  void download(void* to, const std::byte* from, std::size_t bytes) override {
    use();
    check(driver().cuMemcpyDtoHAsync_v2(to, number(from), bytes, stream_), "cuMemcpyDtoHAsync");
    check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }

  void copy(Buffer to, Buffer from, std::size_t bytes, std::size_t count) override {
    use();
    if (count == 1) {
      check(driver().cuMemcpyDtoDAsync_v2(number(to.start), number(from.start), bytes, stream_), "cuMemcpyDtoDAsync");
      return;
    }
    Copy2D items;
    items.source = number(from.start);
    items.source_pitch = from.stride;
    items.target = number(to.start);
    items.target_pitch = to.stride;
    items.width = bytes;
    items.height = count;
    check(driver().cuMemcpy2DAsync_v2(&items, stream_), "cuMemcpy2DAsync");
  }

  void fill(std::byte* to, std::uint32_t pattern, std::size_t item_bytes, std::size_t count) override {
    use();
    if (item_bytes == 1) {
      const auto value = static_cast<unsigned char>(pattern);
      check(driver().cuMemsetD8Async(number(to), value, count, stream_), "cuMemsetD8Async");
    } else if (item_bytes == 2) {
      const auto value = static_cast<unsigned short>(pattern);
      check(driver().cuMemsetD16Async(number(to), value, count, stream_), "cuMemsetD16Async");
    } else {
      check(driver().cuMemsetD32Async(number(to), pattern, count, stream_), "cuMemsetD32Async");
    }
  }

  void synchronize() override {
    use();
    check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }

  std::function<void()> capture(std::function<void()> work, std::string& fault) override {
    use();
    check(driver().cuStreamBeginCapture_v2(stream_, kThreadLocal), "cuStreamBeginCapture");
    try {
      work();
    } catch (const EngineError& error) {  // not everything can be captured
      fault = error.what();
    }
    Captured captured = nullptr;
    note(driver().cuStreamEndCapture(stream_, &captured), "cuStreamEndCapture", fault);
    if (captured == nullptr) return work;
    Runnable runnable = nullptr;
    if (fault.empty()) {
      note(driver().cuGraphInstantiateWithFlags(&runnable, captured, 0), "cuGraphInstantiateWithFlags", fault);
    }
    driver().cuGraphDestroy(captured);
    if (!fault.empty()) return work;
    const std::shared_ptr<void> held(runnable, [](Runnable graph) { driver().cuGraphExecDestroy(graph); });
    return [this, held] {
      use();
      check(driver().cuGraphLaunch(held.get(), stream_), "cuGraphLaunch");
    };
  }

  void* stream() const override { return stream_; }

 private:
  Stream stream_ = nullptr;

  // The current context is per thread, and other libraries may have set another.
  static void use() { check(driver().cuCtxSetCurrent(primary_context()), "cuCtxSetCurrent"); }
};

}  // namespace

MakeDevice cuda_devices() {
  primary_context();
  return [] { return std::make_shared<CudaDevice>(); };
}

}  // namespace txport::core
