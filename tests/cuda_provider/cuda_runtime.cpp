// CUDA's runtime, cuBLAS and cuDNN as far as ONNX Runtime's CUDA provider needs them, over the driver in host memory,
// tests/cpp/cuda_driver.cpp: memory, copies, streams and captures are the driver's, kernels and products are launches
// that compute nothing. What is not here and may do nothing is generated (tests/fakes/cuda_stubs.py). Each call is
// counted by name.
//
// TXPORT_TEST_CUDA_VERSION (as 12040), of the driver, may be older than the runtime, which then refuses to work.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

using Stream = void*;
using Kernel = const void*;
using Address = unsigned long long;

// What is called of the driver.
extern "C" {
int txport_test_capability();  // of the driver
int cuInit(unsigned);
int cuDriverGetVersion(int*);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize();
int cuMemGetInfo_v2(std::size_t*, std::size_t*);
int cuMemAlloc_v2(Address*, std::size_t);
int cuMemFree_v2(Address);
int cuMemHostAlloc(void**, std::size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemcpyHtoDAsync_v2(Address, const void*, std::size_t, Stream);
int cuMemcpyDtoHAsync_v2(void*, Address, std::size_t, Stream);
int cuMemcpyDtoDAsync_v2(Address, Address, std::size_t, Stream);
int cuMemsetD8Async(Address, unsigned char, std::size_t, Stream);
int cuLaunchKernel(Kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**,
                   void**);
int cuLaunchHostFunc(Stream, void (*)(void*), void*);
int cuPointerGetAttribute(void*, int, Address);
int cuStreamCreate(Stream*, unsigned);
int cuStreamDestroy_v2(Stream);
int cuStreamSynchronize(Stream);
int cuStreamIsCapturing(Stream, int*);
int cuEventCreate(void**, unsigned);
int cuEventDestroy_v2(void*);
int cuEventRecord(void*, Stream);
int cuEventSynchronize(void*);
}

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInsufficientDriver = 35;
constexpr int kMultiprocessors = 132;
constexpr int kThreads = 1024;
constexpr unsigned kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE

struct Size3 {
  unsigned x, y, z;
};

// The arguments of kernel<<<...>>>, which one function takes and another gives back.
struct Configuration {
  Size3 grid, block;
  std::size_t shared;
  Stream stream;
};

// A handle of cuBLAS or cuDNN.
struct Handle {
  Stream stream = nullptr;
};

std::mutex mutex;
std::map<std::string, unsigned long long> counts;
thread_local int last = 0;
thread_local Configuration pushed = {};

void count(const std::string& name) {
  const std::lock_guard lock(mutex);
  ++counts[name];
}

int remember(int code) {
  if (code != 0) last = code;
  return code;
}

// What each function of the runtime does first: it starts, and makes its context current.
int start(const char* name) {
  count(name);
  int version = 0;
  cuDriverGetVersion(&version);
  if (version / 1000 < CUDA_MAJOR) return remember(kInsufficientDriver);
  cuInit(0);
  void* context = nullptr;
  cuDevicePrimaryCtxRetain(&context, 0);
  return remember(cuCtxSetCurrent(context));
}

// The default stream is one of ours.
Stream of(Stream stream) {
  static Stream const one = [] {
    Stream made = nullptr;
    cuStreamCreate(&made, 0);
    return made;
  }();
  return reinterpret_cast<std::size_t>(stream) > 2 ? stream : one;  // 1 and 2 are other names of it
}

int launch(const char* name, Kernel kernel, Stream stream) {
  if (const int code = start(name)) return code;
  return remember(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, of(stream), nullptr, nullptr));
}

Address number(const void* address) { return reinterpret_cast<Address>(address); }

// By the kind of a copy as the runtime numbers it; 4 is for it to find out.
int copy(const char* name, void* to, const void* from, std::size_t bytes, int kind, Stream stream) {
  static const char* const kinds[] = {" HtoH", " HtoD", " DtoH", " DtoD", " default"};
  if (const int code = start((std::string(name) + kinds[kind]).c_str())) return code;
  if (kind == 1) return remember(cuMemcpyHtoDAsync_v2(number(to), from, bytes, of(stream)));
  if (kind == 2) return remember(cuMemcpyDtoHAsync_v2(to, number(from), bytes, of(stream)));
  if (kind == 3) return remember(cuMemcpyDtoDAsync_v2(number(to), number(from), bytes, of(stream)));
  return remember(kInvalidValue);
}

}  // namespace

#define START \
  if (const int code = start(__func__)) return code

// A function of cuBLAS or cuDNN that computes, on the stream of the handle that is its first argument.
#define COMPUTES(name) \
  int name(const Handle* handle) { return launch(#name, handle, handle->stream); }

extern "C" {

// --- of tests ---

// Generated functions count here.
void txport_test_count(const char* name) { count(name); }

// What was called since the last time, as lines of a name, a tab and a number. Returns how many bytes it takes; if
// there is no room for that, nothing else is done.
std::size_t txport_test_calls(char* text, std::size_t room) {
  const std::lock_guard lock(mutex);
  std::string lines;
  for (const auto& [name, calls] : counts) lines += name + "\t" + std::to_string(calls) + "\n";
  if (lines.size() < room) {
    std::memcpy(text, lines.c_str(), lines.size() + 1);
    counts.clear();
  }
  return lines.size();
}

// --- devices ---

int cudaSetDevice(int) {
  START;
  return 0;
}
int cudaGetDevice(int* device) {
  START;
  *device = 0;
  return 0;
}
int cudaGetDeviceCount(int* devices) {
  START;
  *devices = 1;
  return 0;
}
int cudaDriverGetVersion(int* version) { return cuDriverGetVersion(version); }
int cudaRuntimeGetVersion(int* version) {
  *version = CUDA_MAJOR * 1000;
  return 0;
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  START;
  *value = attribute == 75   ? txport_test_capability() / 10
           : attribute == 76 ? txport_test_capability() % 10
           : attribute == 16 ? kMultiprocessors : kThreads;
  return 0;
}

// The head of cudaDeviceProp; CUDA 13 has neither the clock's rate nor whether copies overlap.
#define PROPERTIES(name, FIRST, SECOND)                            \
  struct name##_head {                                             \
    char name[256], uuid[16], luid[8];                             \
    unsigned luid_mask;                                            \
    std::size_t memory, shared_memory;                             \
    int registers, warp;                                           \
    std::size_t pitch;                                             \
    int threads, block[3], grid[3];                                \
    FIRST std::size_t constant_memory;                             \
    int major, minor;                                              \
    std::size_t texture, texture_pitch;                            \
    SECOND int multiprocessors;                                    \
    char rest[400];                                                \
  };                                                               \
  int name(name##_head* found, int) {                              \
    START;                                                         \
    std::memset(found, 0, sizeof *found);                          \
    std::strcpy(found->name, "host memory");                       \
    found->memory = std::size_t{1} << 31;                          \
    found->shared_memory = 49152;                                  \
    found->registers = 65536;                                      \
    found->warp = 32;                                              \
    found->pitch = (std::size_t{1} << 31) - 1;                     \
    found->threads = found->block[0] = found->block[1] = kThreads; \
    found->block[2] = 64;                                          \
    found->grid[0] = 2147483647;                                   \
    found->grid[1] = found->grid[2] = 65535;                       \
    found->constant_memory = 65536;                                \
    found->major = txport_test_capability() / 10;                  \
    found->minor = txport_test_capability() % 10;                  \
    found->texture = 512;                                          \
    found->texture_pitch = 32;                                     \
    found->multiprocessors = kMultiprocessors;                     \
    return 0;                                                      \
  }
PROPERTIES(cudaGetDeviceProperties, , )
PROPERTIES(cudaGetDeviceProperties_v2, int clock;, int overlap;)

int cudaGetLastError() {
  const int code = last;
  last = 0;
  return code;
}
int cudaPeekAtLastError() { return last; }
const char* cudaGetErrorName(int) { return "cudaError"; }
const char* cudaGetErrorString(int code) {
  if (code == kInsufficientDriver) return "CUDA driver version is insufficient for CUDA runtime version";
  static thread_local std::string text;
  text = "error " + std::to_string(code);
  return text.c_str();
}

// --- memory ---

int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  START;
  return remember(cuMemGetInfo_v2(free, total));
}
int cudaMalloc(void** address, std::size_t bytes) {
  START;
  *address = nullptr;
  return bytes == 0 ? 0 : remember(cuMemAlloc_v2(reinterpret_cast<Address*>(address), bytes));
}
int cudaFree(void* address) {
  START;
  return address == nullptr ? 0 : remember(cuMemFree_v2(number(address)));
}
int cudaHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  START;
  return remember(cuMemHostAlloc(address, bytes, flags));
}
int cudaMallocHost(void** address, std::size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
int cudaFreeHost(void* address) {
  START;
  return address == nullptr ? 0 : remember(cuMemFreeHost(address));
}
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, Stream stream) {
  return copy("cudaMemcpyAsync", to, from, bytes, kind, stream);
}
int cudaMemcpy(void* to, const void* from, std::size_t bytes, int kind) {
  const int code = copy("cudaMemcpy", to, from, bytes, kind, nullptr);
  return code != 0 ? code : remember(cuStreamSynchronize(of(nullptr)));
}
int cudaMemsetAsync(void* address, int value, std::size_t bytes, Stream stream) {
  START;
  return remember(cuMemsetD8Async(number(address), static_cast<unsigned char>(value), bytes, of(stream)));
}
int cudaMemset(void* address, int value, std::size_t bytes) { return cudaMemsetAsync(address, value, bytes, nullptr); }

struct PointerAttributes {
  int type, device;
  const void *on_device, *on_host;
};
int cudaPointerGetAttributes(PointerAttributes* found, const void* address) {
  START;
  unsigned type = 0;
  cuPointerGetAttribute(&type, kMemoryType, number(address));  // 0 for memory that the driver does not know
  *found = {static_cast<int>(type), 0, type == 2 ? address : nullptr, type == 2 ? nullptr : address};
  return 0;
}

// --- streams and events ---

int cudaStreamCreateWithFlags(Stream* stream, unsigned flags) {
  START;
  return remember(cuStreamCreate(stream, flags));
}
int cudaStreamCreate(Stream* stream) { return cudaStreamCreateWithFlags(stream, 0); }
int cudaStreamDestroy(Stream stream) {
  START;
  return remember(cuStreamDestroy_v2(stream));
}
int cudaStreamSynchronize(Stream stream) {
  START;
  return remember(cuStreamSynchronize(of(stream)));
}
int cudaStreamIsCapturing(Stream stream, int* status) {
  START;
  return remember(cuStreamIsCapturing(of(stream), status));
}
int cudaEventCreateWithFlags(void** event, unsigned flags) {
  START;
  return remember(cuEventCreate(event, flags));
}
int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void* event) {
  START;
  return remember(cuEventDestroy_v2(event));
}
int cudaEventRecord(void* event, Stream stream) {
  START;
  return remember(cuEventRecord(event, of(stream)));
}
int cudaDeviceSynchronize() {
  START;
  return remember(cuCtxSynchronize());
}
int cudaEventSynchronize(void* event) {
  START;
  return remember(cuEventSynchronize(event));
}
int cudaLaunchHostFunc(Stream stream, void (*function)(void*), void* data) {
  START;
  return remember(cuLaunchHostFunc(of(stream), function, data));
}

// --- kernels ---

void** __cudaRegisterFatBinary(void*) {
  static void* binary[1];
  return binary;
}
int __cudaPushCallConfiguration(Size3 grid, Size3 block, std::size_t shared, Stream stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
int __cudaPopCallConfiguration(Size3* grid, Size3* block, std::size_t* shared, Stream* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *stream = pushed.stream;
  return 0;
}
int __cudaGetKernel(Kernel* found, Kernel function) {
  *found = function;
  return 0;
}
int cudaLaunchKernel(Kernel function, Size3, Size3, void**, std::size_t, Stream stream) {
  return launch(__func__, function, stream);
}
int __cudaLaunchKernel(Kernel function, Size3, Size3, void**, std::size_t, Stream stream) {
  return launch("cudaLaunchKernel", function, stream);
}
int cudaLaunchCooperativeKernel(Kernel function, Size3, Size3, void**, std::size_t, Stream stream) {
  return launch(__func__, function, stream);
}
int cudaLaunchKernelExC(const Configuration* configuration, Kernel function, void**) {
  return launch(__func__, function, configuration->stream);
}

// The head of cudaFuncAttributes.
struct FunctionAttributes {
  std::size_t shared, constant, local;
  int threads, registers, ptx, binary, cache_mode, dynamic_shared, carveout;
};
int cudaFuncGetAttributes(FunctionAttributes* found, Kernel) {
  START;
  *found = {0, 0, 0, kThreads, 32, 90, 90, 0, 49152, -1};
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Kernel, int, std::size_t, unsigned) {
  START;
  *blocks = 1;
  return 0;
}

// --- cuBLAS ---

int cublasCreate_v2(Handle** handle) {
  START;
  *handle = new Handle;
  return 0;
}
// It "will implicitly call cudaDeviceSynchronize()" (cuBLAS, cublasCreate).
int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return cudaDeviceSynchronize();
}
int cublasSetStream_v2(Handle* handle, Stream stream) {
  START;
  handle->stream = stream;
  return 0;
}
COMPUTES(cublasSgemm_v2)
COMPUTES(cublasGemmEx)
COMPUTES(cublasGemmStridedBatchedEx)
COMPUTES(cublasSgemmStridedBatched)
COMPUTES(cublasSgeam)
const char* cublasGetStatusString(int) { return "a status of cuBLAS"; }
const char* cublasGetStatusName(int) { return "CUBLAS_STATUS"; }
int cublasLtCreate(Handle** handle) { return cublasCreate_v2(handle); }
int cublasLtDestroy(Handle* handle) { return cublasDestroy_v2(handle); }
int cublasLtMatmul(Handle*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const void*, void*, std::size_t, Stream stream) {
  return launch(__func__, __func__, stream);
}

// --- cuDNN ---

int cudnnCreate(Handle** handle) { return cublasCreate_v2(handle); }
int cudnnDestroy(Handle* handle) { return cublasDestroy_v2(handle); }
int cudnnSetStream(Handle* handle, Stream stream) {
  START;
  handle->stream = stream;
  return 0;
}
int cudnnGetStream(const Handle* handle, Stream* stream) {
  *stream = handle->stream;
  return 0;
}
// A version whose attention ONNX Runtime uses by default, so that it fails here if it does.
std::size_t cudnnGetVersion() { return 91300; }
const char* cudnnGetErrorString(int) { return "a status of cuDNN"; }
int cudnnGetReductionIndicesSize(const Handle*, void*, void*, void*, std::size_t* bytes) {
  *bytes = 1024;
  return 0;
}
int cudnnGetReductionWorkspaceSize(const Handle*, void*, void*, void*, std::size_t* bytes) {
  *bytes = 1024;
  return 0;
}
COMPUTES(cudnnReduceTensor)
COMPUTES(cudnnSoftmaxForward)
COMPUTES(cudnnAddTensor)

}  // extern "C"
