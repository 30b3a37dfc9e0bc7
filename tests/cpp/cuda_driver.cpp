// CUDA's driver in host memory: what txport calls of libcuda.so.1, for machines
// without a GPU.
//
// Work that a stream is given is done as late as CUDA allows, when something
// waits for it, and no more of it than that: what is read too early is wrong. With TXPORT_TEST_CUDA=eager it
// is done at once, for libraries that compute in host memory and know no
// stream. Every address must lie in an allocation, memory is poisoned, a
// context must be current, and what must not be called during a capture is
// refused. After a wild address every call fails, as with CUDA. Tests may let a
// call fail, refuse pitches, and let another process take memory: see
// txport_test_cuda_* at the end.
//
// With -DWITH_CUDA_H the prototypes are compared with those of cuda.h.

#ifdef WITH_CUDA_H
#include <cuda.h>
#else
#include <cstddef>
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUarray = struct CUarray_st*;
using CUhostFn = void (*)(void*);
using CUdevice_attribute = int;
using CUmemorytype = int;
using CUgraphNodeType = int;
using CUfunction = struct CUfunc_st*;
using CUmodule = struct CUmod_st*;
using CUstreamCaptureStatus = int;
using CUpointer_attribute = int;
using CUstreamCaptureMode = int;
using CUdriverProcAddressQueryResult = int;
using cuuint64_t = unsigned long long;
struct CUDA_MEMCPY2D {
  std::size_t srcXInBytes, srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  std::size_t srcPitch, dstXInBytes, dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  std::size_t dstPitch, WidthInBytes, Height;
};
using CUlaunchAttributeID = int;
struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  alignas(8) union {
    int programmaticStreamSerializationAllowed;
    char size[64];
  } value;
};
struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};
struct CUDA_MEMCPY3D {
  std::size_t srcXInBytes, srcY, srcZ, srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  void* reserved0;
  std::size_t srcPitch, srcHeight, dstXInBytes, dstY, dstZ, dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  void* reserved1;
  std::size_t dstPitch, dstHeight, WidthInBytes, Height, Depth;
};
#endif

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum Code {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidContext = 201,
  kEccUncorrectable = 214,
  kInvalidHandle = 400,
  kNotFound = 500,
  kIllegalAddress = 700,
  kLaunchFailed = 719,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
  kUnknown = 999,
};

constexpr std::size_t kRoom = std::size_t{1} << 31;
constexpr std::size_t kAlignment = 256;
constexpr unsigned char kPoison = 0xAB;
constexpr int kHostMemory = 1;
constexpr int kDeviceMemory = 2;
constexpr int kGlobalCapture = 0;
constexpr int kProgrammatic = 6;                  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr unsigned long long kFreesOnLaunch = 1;  // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH

using Work = std::function<int()>;

// What a captured piece of work is, by CUDA's numbers.
enum Kind { kKernelNode = 0, kCopyNode = 1, kFillNode = 2, kHostNode = 3, kAllocationNode = 10, kFreeNode = 11 };

struct Node {
  Work work;
  Kind kind;
  CUDA_MEMCPY3D copy = {};  // of a copy: from where to where
};

using Nodes = std::vector<Node>;

// A captured graph, or one that can be launched. What it has allocated and not freed is freed by the next launch, if it
// was told so; else that is refused.
struct Graph {
  Nodes nodes;
  bool frees = false;
  bool holds = false;
};

struct Stream {
  std::deque<Work> queue;
  unsigned long long done = 0;  // how much was done of what was enqueued
  bool busy = false;            // something is being done
  Nodes* recording = nullptr;   // of a capture
  std::thread::id owner;        // of the thread that began it
  bool global = false;          // other threads may not wait or allocate either
  bool invalid = false;         // something was called that a capture does not allow
};

// A place in the queue of a stream.
struct Event {
  Stream* stream = nullptr;
  unsigned long long place = 0;
  bool captured = false;  // it was recorded in a capture, and is nowhere
};

// The emulator of tests/gpu/chain with its sizes, and a kernel of it.
struct Module {
  void* library;
  std::string sizes;
};
struct Function {
  Module module;
  std::string name;
  std::size_t bytes;  // of its arguments
};

// One driver for the process: a lock around everything, as slow as it may be.
struct Driver {
  std::recursive_mutex mutex;
  bool initialized = false;
  int sticky = kSuccess;
  std::map<CUdeviceptr, std::size_t> device;
  std::map<CUdeviceptr, std::size_t> pinned;
  std::set<Stream*> streams, destroyed;
  std::set<void*> events;
  std::set<void*> graphs;
  std::set<void*> functions;
  unsigned long long calls = 0;  // with a stream: copies, fills, launches and waits
  // After so many of them the GPU is gone, and every call fails.
  const unsigned long long lost = std::getenv("TXPORT_TEST_CUDA_LOST") != nullptr
                                      ? std::strtoull(std::getenv("TXPORT_TEST_CUDA_LOST"), nullptr, 10)
                                      : ~0ULL;
  const bool eager = is("eager");
  // What other processes hold, and what they take as soon as somebody has looked.
  std::size_t others = 0, waiting = 0;
  std::size_t most_pitch = std::size_t{1} << 20;  // 2^31 - 1 on a GPU
  std::size_t pitch_unit = 1;                     // of copies within the device
  std::map<std::string, int> failing;             // the next call of each, and its error

  static bool is(const char* kind) {
    const char* chosen = std::getenv("TXPORT_TEST_CUDA");
    return chosen != nullptr && std::strcmp(chosen, kind) == 0;
  }
};

Driver& driver() {
  static auto* const one = new Driver;
  return *one;
}

thread_local bool has_context = false;

CUresult result(int code) { return static_cast<CUresult>(code); }

int fail(int code, const char* what, CUdeviceptr address, std::size_t bytes) {
  std::fprintf(stderr, "cuda_driver: %s: %zu bytes at %llu\n", what, bytes, address);
  return driver().sticky = code;
}

bool within(const std::map<CUdeviceptr, std::size_t>& blocks, CUdeviceptr address, std::size_t bytes) {
  auto block = blocks.upper_bound(address);
  if (block == blocks.begin()) return false;
  --block;
  return address + bytes <= block->first + block->second;
}

// Rows of bytes in device memory.
int check_device(CUdeviceptr address, std::size_t bytes) {
  if (within(driver().device, address, bytes)) return kSuccess;
  return fail(kIllegalAddress, "not within one allocation", address, bytes);
}

// Page-locked memory that was such when the copy was enqueued.
int check_pinned(const void* start, std::size_t bytes) {
  const auto address = reinterpret_cast<CUdeviceptr>(start);
  if (within(driver().pinned, address, bytes)) return kSuccess;
  return fail(kIllegalAddress, "page-locked memory was freed before its copy", address, bytes);
}

char* at(CUdeviceptr address) { return reinterpret_cast<char*>(address); }

// Do as much as was enqueued up to this place. Work of the host may come here again, as when Python collects garbage in
// it: what is behind it waits all the same.
int drain(Stream& stream, unsigned long long place) {
  if (stream.busy) return driver().sticky;
  stream.busy = true;
  int code = kSuccess;
  while (code == kSuccess && !stream.queue.empty() && stream.done < place) {
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    ++stream.done;
    code = work();
  }
  stream.busy = false;
  return code != kSuccess ? code : driver().sticky;
}

int drain(Stream& stream) { return drain(stream, stream.done + stream.queue.size()); }

int enqueue(Stream& stream, Node node) {
  if (stream.invalid) return kCaptureInvalidated;
  if (stream.recording != nullptr) {
    stream.recording->push_back(std::move(node));
    return kSuccess;
  }
  if (driver().eager) return node.work();
  stream.queue.push_back(std::move(node.work));
  return kSuccess;
}

// The ends of a copy, as the node of a captured one describes them; an end in host memory has no address on the device.
CUDA_MEMCPY3D ends(CUdeviceptr to, const void* to_host, CUdeviceptr from, const void* from_host) {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = static_cast<CUmemorytype>(from_host == nullptr ? kDeviceMemory : kHostMemory);
  copy.dstMemoryType = static_cast<CUmemorytype>(to_host == nullptr ? kDeviceMemory : kHostMemory);
  copy.srcDevice = from;
  copy.srcHost = from_host;
  copy.dstDevice = to;
  copy.dstHost = const_cast<void*>(to_host);
  return copy;
}

// After these the context is of no use any more.
bool is_sticky(int code) {
  static const std::set<int> codes = {kEccUncorrectable, kIllegalAddress, kLaunchFailed, kUnknown};
  return codes.count(code) == 1;
}

// The error that a test wants of this call; its name is without the number of its kind.
int wanted_of(std::string name) {
  if (const auto end = name.find("_v2"); end != std::string::npos) name.resize(end);
  const auto found = driver().failing.find(name);
  if (found == driver().failing.end()) return kSuccess;
  const int code = found->second;
  driver().failing.erase(found);
  if (is_sticky(code)) driver().sticky = code;
  return code;
}

// What every call with a context asks first. `name` is the function's.
template <typename Body>
CUresult guarded(const Body& body, const char* name = __builtin_FUNCTION()) {
  const std::lock_guard lock(driver().mutex);
  if (!driver().initialized) return result(kNotInitialized);
  if (!has_context) return result(kInvalidContext);
  if (driver().sticky != kSuccess) return result(driver().sticky);
  if (const int code = wanted_of(name)) return result(code);
  return result(body());
}

template <typename Body>
CUresult on_stream(CUstream handle, const Body& body, const char* name = __builtin_FUNCTION()) {
  const auto with_stream = [&] {
    if (++driver().calls > driver().lost) return driver().sticky = kUnknown;
    auto* stream = reinterpret_cast<Stream*>(handle);
    return driver().streams.count(stream) == 0 ? int{kInvalidHandle} : body(*stream);
  };
  return guarded(with_stream, name);
}

// A call that waits or allocates spoils a capture of this thread, and in the global mode that of any.
bool spoils_capture() {
  bool spoilt = false;
  for (Stream* stream : driver().streams) {
    if (stream->recording == nullptr || (!stream->global && stream->owner != std::this_thread::get_id())) continue;
    spoilt = stream->invalid = true;
  }
  return spoilt;
}

// Waiting for all streams spoils the captures of all threads.
bool waits_for_captures() {
  bool spoilt = false;
  for (Stream* stream : driver().streams) {
    if (stream->recording != nullptr) spoilt = stream->invalid = true;
  }
  return spoilt;
}

int finish_all() {
  for (const auto* streams : {&driver().streams, &driver().destroyed}) {
    for (Stream* stream : *streams) {
      if (const int code = drain(*stream)) return code;
    }
  }
  return kSuccess;
}

std::size_t room() {
  std::size_t used = driver().others;
  for (const auto& block : driver().device) used += block.second;
  return kRoom - std::min(kRoom, used);
}

CUdeviceptr new_memory(std::size_t bytes) {
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memset(memory, kPoison, bytes);
  return reinterpret_cast<CUdeviceptr>(memory);
}

int allocate(std::map<CUdeviceptr, std::size_t>& blocks, CUdeviceptr* address, std::size_t bytes) {
  if (spoils_capture()) return kCaptureUnsupported;
  if (bytes == 0) return kInvalidValue;
  if (bytes > room()) return kOutOfMemory;
  *address = new_memory(bytes);
  blocks[*address] = bytes;
  return kSuccess;
}

int release(std::map<CUdeviceptr, std::size_t>& blocks, CUdeviceptr address) {
  if (spoils_capture()) return kCaptureUnsupported;
  if (blocks.erase(address) == 0) return kInvalidValue;
  std::free(at(address));
  return kSuccess;
}

// Runs a kernel of the emulator. The order of blocks differs from launch to launch.
int emulate(const Function& function, const std::vector<char>& arguments, unsigned blocks) {
  static unsigned seed = 0;
  void* const library = function.module.library;
  using SetSizes = void (*)(const char*);
  using Launch = void (*)(const char*, int, const void*, std::size_t, int, unsigned);
  reinterpret_cast<SetSizes>(dlsym(library, "set_sizes"))(function.module.sizes.c_str());
  const auto launch = reinterpret_cast<Launch>(dlsym(library, "launch"));
  launch(function.name.c_str(), static_cast<int>(blocks), arguments.data(), arguments.size(), 1, ++seed);
  return kSuccess;
}

struct Volume {
  CUdeviceptr address;
  std::size_t row, plane;
};

int copy(Stream& stream, Volume to, Volume from, std::size_t width, std::size_t rows, std::size_t planes) {
  if ((rows > 1 && (to.row < width || from.row < width)) ||
      (planes > 1 && (to.plane < rows * to.row || from.plane < rows * from.row))) {
    return kInvalidValue;
  }
  for (const std::size_t pitch : {to.row, from.row}) {
    if (pitch > driver().most_pitch || pitch % driver().pitch_unit != 0) return kInvalidValue;
  }
  const Work work = [=] {
    for (std::size_t plane = 0; plane < planes; ++plane) {
      for (std::size_t row = 0; row < rows; ++row) {
        const CUdeviceptr target = to.address + plane * to.plane + row * to.row;
        const CUdeviceptr source = from.address + plane * from.plane + row * from.row;
        if (const int code = check_device(target, width)) return code;
        if (const int code = check_device(source, width)) return code;
        std::memmove(at(target), at(source), width);
      }
    }
    return int{kSuccess};
  };
  return enqueue(stream, {work, kCopyNode, ends(to.address, nullptr, from.address, nullptr)});
}

template <typename Item>
CUresult fill(CUdeviceptr address, Item value, std::size_t count, CUstream stream,
              const char* name = __builtin_FUNCTION()) {
  const auto with_stream = [&](Stream& queue) {
    if (address % sizeof(Item) != 0) return int{kInvalidValue};
    const Work work = [=] {
      if (const int code = check_device(address, count * sizeof(Item))) return code;
      std::fill_n(reinterpret_cast<Item*>(address), count, value);
      return int{kSuccess};
    };
    return enqueue(queue, {work, kFillNode});
  };
  return on_stream(stream, with_stream, name);
}

}  // namespace

extern "C" {
// The compute capability as one number: 90, or TXPORT_TEST_CAPABILITY.
int txport_test_capability() {
  const char* const wanted = std::getenv("TXPORT_TEST_CAPABILITY");
  return wanted == nullptr ? 90 : std::atoi(wanted);
}

CUresult cuInit(unsigned) {
  driver().initialized = true;
  return result(kSuccess);
}
CUresult cuDriverGetVersion(int* version) {
  const char* chosen = std::getenv("TXPORT_TEST_CUDA_VERSION");
  *version = chosen == nullptr ? 13000 : std::atoi(chosen);
  return result(kSuccess);
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return result(kSuccess);
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = 0;
  return result(ordinal == 0 ? kSuccess : 101);
}
CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "host memory");
  return result(kSuccess);
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const int number = static_cast<int>(attribute);
  *value = number == 75   ? txport_test_capability() / 10
           : number == 76 ? txport_test_capability() % 10
           : number == 16 ? 132
           : number == 11 ? static_cast<int>(driver().most_pitch)
                          : 0;
  return result(kSuccess);
}
CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice) {
  const char place[] = "0000:3b:00.0";
  if (bytes < static_cast<int>(sizeof(place))) return result(kInvalidValue);
  std::memcpy(text, place, sizeof(place));
  return result(kSuccess);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&driver());
  return result(driver().initialized ? kSuccess : kNotInitialized);
}
CUresult cuCtxSetCurrent(CUcontext context) {
  has_context = context == reinterpret_cast<CUcontext>(&driver());
  return result(has_context ? kSuccess : kInvalidContext);
}
CUresult cuCtxSynchronize() {
  return guarded([] { return waits_for_captures() ? int{kCaptureUnsupported} : finish_all(); });
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  static std::map<int, std::string> texts;
  const std::lock_guard lock(driver().mutex);
  *text =
      texts.emplace(static_cast<int>(error), "error " + std::to_string(static_cast<int>(error))).first->second.c_str();
  return result(kSuccess);
}

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return guarded([&] {
    *total = kRoom;
    *free = room();
    driver().others += std::exchange(driver().waiting, 0);
    return int{kSuccess};
  });
}
CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  return guarded([&] { return allocate(driver().device, address, bytes); });
}
CUresult cuMemFree_v2(CUdeviceptr address) {
  return guarded([&] {
    const int code = finish_all();
    return code != kSuccess ? code : release(driver().device, address);
  });
}
// In a capture this becomes a node, and so what frees it: the memory is there from the one to the other.
CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  return on_stream(stream, [&](Stream& queue) {
    if (bytes == 0) return int{kInvalidValue};
    if (bytes > room()) return int{kOutOfMemory};
    const CUdeviceptr found = *address = new_memory(bytes);
    const Work work = [=] {
      driver().device[found] = bytes;
      return int{kSuccess};
    };
    return enqueue(queue, {work, kAllocationNode});
  });
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return on_stream(stream, [&](Stream& queue) {
    const Work work = [=] { return driver().device.erase(address) == 1 ? int{kSuccess} : int{kInvalidValue}; };
    return enqueue(queue, {work, kFreeNode});
  });
}
CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  return guarded([&] {
    CUdeviceptr found = 0;
    const int code = allocate(driver().pinned, &found, bytes);
    *address = at(found);
    return code;
  });
}
// CUDA does not say that this waits for copies.
CUresult cuMemFreeHost(void* address) {
  return guarded([&] { return release(driver().pinned, reinterpret_cast<CUdeviceptr>(address)); });
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, std::size_t bytes, CUstream stream) {
  return on_stream(stream, [&](Stream& queue) {
    const bool pinned = within(driver().pinned, reinterpret_cast<CUdeviceptr>(source), bytes);
    const char* start = static_cast<const char*>(source);
    // Pageable memory may change as soon as this has returned; but a captured copy reads it at every replay.
    const bool stages = !pinned && queue.recording == nullptr;
    const std::vector<char> staged(start, start + (stages ? bytes : 0));
    const Work work = [=] {
      if (const int code = check_device(target, bytes)) return code;
      if (const int code = pinned ? check_pinned(start, bytes) : int{kSuccess}) return code;
      std::memcpy(at(target), stages ? staged.data() : start, bytes);
      return int{kSuccess};
    };
    return enqueue(queue, {work, kCopyNode, ends(target, nullptr, 0, source)});
  });
}
CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return on_stream(stream, [&](Stream& queue) {
    const bool pinned = within(driver().pinned, reinterpret_cast<CUdeviceptr>(target), bytes);
    const Work work = [=] {
      if (const int code = check_device(source, bytes)) return code;
      if (const int code = pinned ? check_pinned(target, bytes) : int{kSuccess}) return code;
      std::memcpy(target, at(source), bytes);
      return int{kSuccess};
    };
    return enqueue(queue, {work, kCopyNode, ends(0, target, source, nullptr)});
  });
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return on_stream(stream, [&](Stream& queue) { return copy(queue, {target, 0, 0}, {source, 0, 0}, bytes, 1, 1); });
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* given, CUstream stream) {
  return on_stream(stream, [&](Stream& queue) {
    const bool on_device = static_cast<int>(given->srcMemoryType) == kDeviceMemory &&
                           static_cast<int>(given->dstMemoryType) == kDeviceMemory;
    if (!on_device || given->srcXInBytes + given->srcY + given->dstXInBytes + given->dstY != 0)
      return int{kInvalidValue};
    return copy(queue, {given->dstDevice, given->dstPitch, 0}, {given->srcDevice, given->srcPitch, 0},
                given->WidthInBytes, given->Height, 1);
  });
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* given, CUstream stream) {
  return on_stream(stream, [&](Stream& queue) {
    const bool on_device = static_cast<int>(given->srcMemoryType) == kDeviceMemory &&
                           static_cast<int>(given->dstMemoryType) == kDeviceMemory;
    const std::size_t offsets = given->srcXInBytes + given->srcY + given->srcZ + given->srcLOD + given->dstXInBytes +
                                given->dstY + given->dstZ + given->dstLOD;
    if (!on_device || offsets != 0 || given->reserved0 != nullptr || given->reserved1 != nullptr)
      return int{kInvalidValue};
    return copy(queue, {given->dstDevice, given->dstPitch, given->dstPitch * given->dstHeight},
                {given->srcDevice, given->srcPitch, given->srcPitch * given->srcHeight}, given->WidthInBytes,
                given->Height, given->Depth);
  });
}
CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, std::size_t count, CUstream stream) {
  return fill(target, value, count, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, std::size_t count, CUstream stream) {
  return fill(target, value, count, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, std::size_t count, CUstream stream) {
  return fill(target, value, count, stream);
}
CUresult cuMemsetD2D8Async(CUdeviceptr target, std::size_t pitch, unsigned char value, std::size_t width,
                           std::size_t height, CUstream stream) {
  return on_stream(stream, [&](Stream& queue) {
    if (height > 1 && (pitch < width || pitch > driver().most_pitch)) return int{kInvalidValue};
    const Work work = [=] {
      for (std::size_t row = 0; row < height; ++row) {
        if (const int code = check_device(target + row * pitch, width)) return code;
        std::memset(at(target + row * pitch), value, width);
      }
      return int{kSuccess};
    };
    return enqueue(queue, {work, kFillNode});
  });
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  return guarded([&] {
    auto* made = new Stream;
    driver().streams.insert(made);
    *stream = reinterpret_cast<CUstream>(made);
    return int{kSuccess};
  });
}
CUresult cuStreamDestroy_v2(CUstream handle) {
  return on_stream(handle, [&](Stream& stream) {
    driver().streams.erase(&stream);
    driver().destroyed.insert(&stream);  // this does not wait: its work is still done
    return int{kSuccess};
  });
}
CUresult cuStreamSynchronize(CUstream handle) {
  return on_stream(handle, [&](Stream& stream) { return spoils_capture() ? int{kCaptureUnsupported} : drain(stream); });
}
CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return on_stream(handle, [&](Stream& stream) {
    const Work work = [=] {
      function(data);
      return int{kSuccess};
    };
    return enqueue(stream, {work, kHostNode});
  });
}

// A module is the emulator of tests/gpu/chain, by the name of its library and lines of "NAME=value" with its sizes.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return guarded([&] {
    const std::string text = static_cast<const char*>(image);
    const std::size_t end = text.find('\n');
    void* const library = dlopen(text.substr(0, end).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return int{kInvalidValue};
    *module = reinterpret_cast<CUmodule>(new Module{library, end == std::string::npos ? "" : text.substr(end + 1)});
    return int{kSuccess};
  });
}
CUresult cuModuleUnload(CUmodule module) {
  return guarded([&] {
    delete reinterpret_cast<Module*>(module);
    return int{kSuccess};
  });
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  return guarded([&] {
    const auto& module = *reinterpret_cast<Module*>(handle);
    using Bytes = std::size_t (*)(const char*);
    const auto bytes = reinterpret_cast<Bytes>(dlsym(module.library, "argument_bytes"))(name);
    if (bytes == 0) return int{kNotFound};
    auto* made = new Function{module, name, bytes};
    driver().functions.insert(made);
    *function = reinterpret_cast<CUfunction>(made);
    return int{kSuccess};
  });
}

// Kernels of other libraries compute nothing. Arguments are copied now, as CUDA does.
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream handle, void** arguments, void**) {
  return on_stream(handle, [&](Stream& stream) {
    if (driver().functions.count(function) == 0) return enqueue(stream, {[] { return int{kSuccess}; }, kKernelNode});
    const auto& emulated = *reinterpret_cast<Function*>(function);
    const char* first = static_cast<const char*>(arguments[0]);
    const std::vector<char> copied(first, first + emulated.bytes);
    return enqueue(stream, {[&emulated, copied, blocks] { return emulate(emulated, copied, blocks); }, kKernelNode});
  });
}
// The only attribute is that a kernel may begin before the one before it has ended.
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& attribute = config->attrs[i];
    const bool known = static_cast<int>(attribute.id) == kProgrammatic;
    if (!known || attribute.value.programmaticStreamSerializationAllowed != 1) return result(kInvalidValue);
  }
  return cuLaunchKernel(function, config->gridDimX, 1, 1, config->blockDimX, 1, 1, 0, config->hStream, arguments,
                        extra);
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  return guarded([&] {
    auto* made = new Event;
    driver().events.insert(made);
    *event = reinterpret_cast<CUevent>(made);
    return int{kSuccess};
  });
}
CUresult cuEventDestroy_v2(CUevent event) {
  return guarded([&] {
    if (driver().events.erase(event) == 0) return int{kInvalidHandle};
    delete reinterpret_cast<Event*>(event);
    return int{kSuccess};
  });
}
CUresult cuEventRecord(CUevent event, CUstream handle) {
  return on_stream(handle, [&](Stream& stream) {
    if (driver().events.count(event) == 0) return int{kInvalidHandle};
    *reinterpret_cast<Event*>(event) = {&stream, stream.done + stream.queue.size(), stream.recording != nullptr};
    return int{kSuccess};
  });
}
CUresult cuEventSynchronize(CUevent event) {
  return guarded([&] {
    if (driver().events.count(event) == 0) return int{kInvalidHandle};
    const Event& seen = *reinterpret_cast<Event*>(event);
    const bool spoilt = spoils_capture();
    if (seen.captured) return int{kCapturedEvent};
    if (spoilt) return int{kCaptureUnsupported};
    ++driver().calls;
    return seen.stream == nullptr ? int{kSuccess} : drain(*seen.stream, seen.place);
  });
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return on_stream(handle, [&](Stream& stream) {
    if (stream.recording != nullptr) return int{kCaptureUnsupported};
    stream.recording = new Nodes;
    stream.owner = std::this_thread::get_id();
    stream.global = static_cast<int>(mode) == kGlobalCapture;
    stream.invalid = false;
    return int{kSuccess};
  });
}
CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return on_stream(handle, [&](Stream& stream) {
    *status = static_cast<CUstreamCaptureStatus>(stream.recording == nullptr ? 0 : stream.invalid ? 2 : 1);
    return int{kSuccess};
  });
}
CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  *graph = nullptr;
  return on_stream(handle, [&](Stream& stream) {
    if (stream.recording == nullptr) return int{kCaptureUnmatched};
    if (stream.owner != std::this_thread::get_id()) return int{kCaptureWrongThread};
    auto* recorded = stream.recording;
    stream.recording = nullptr;
    if (std::exchange(stream.invalid, false)) {
      delete recorded;
      return int{kCaptureInvalidated};
    }
    auto* made = new Graph{std::move(*recorded)};
    delete recorded;
    driver().graphs.insert(made);
    *graph = reinterpret_cast<CUgraph>(made);
    return int{kSuccess};
  });
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* runnable, CUgraph graph, unsigned long long flags) {
  return guarded([&] {
    if (driver().graphs.count(graph) == 0) return int{kInvalidValue};
    auto* made = new Graph(*reinterpret_cast<Graph*>(graph));
    made->frees = (flags & kFreesOnLaunch) != 0;
    driver().graphs.insert(made);
    *runnable = reinterpret_cast<CUgraphExec>(made);
    return int{kSuccess};
  });
}
CUresult cuGraphDestroy(CUgraph graph) {
  return guarded([&] {
    if (driver().graphs.erase(graph) == 0) return int{kInvalidValue};
    delete reinterpret_cast<Graph*>(graph);
    return int{kSuccess};
  });
}
CUresult cuGraphExecDestroy(CUgraphExec runnable) { return cuGraphDestroy(reinterpret_cast<CUgraph>(runnable)); }
CUresult cuGraphLaunch(CUgraphExec runnable, CUstream handle) {
  return on_stream(handle, [&](Stream& stream) {
    if (driver().graphs.count(runnable) == 0) return int{kInvalidValue};
    auto& graph = *reinterpret_cast<Graph*>(runnable);
    if (graph.holds && !graph.frees) return int{kInvalidValue};
    for (const Node& node : graph.nodes) {
      if (const int code = enqueue(stream, node)) return code;
    }
    const auto count = [&](Kind kind) {
      return std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& each) { return each.kind == kind; });
    };
    graph.holds = count(kAllocationNode) > count(kFreeNode);
    return int{kSuccess};
  });
}

// Without `nodes` only their number; nodes live as long as their graph.
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  return guarded([&] {
    if (driver().graphs.count(graph) == 0) return int{kInvalidValue};
    auto& held = reinterpret_cast<Graph*>(graph)->nodes;
    for (std::size_t i = 0; nodes != nullptr && i < *count; ++i) {
      nodes[i] = i < held.size() ? reinterpret_cast<CUgraphNode>(&held[i]) : nullptr;
    }
    *count = nodes == nullptr ? held.size() : std::min(*count, held.size());
    return int{kSuccess};
  });
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  return guarded([&] {
    *type = static_cast<CUgraphNodeType>(reinterpret_cast<Node*>(node)->kind);
    return int{kSuccess};
  });
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* copy) {
  return guarded([&] {
    if (reinterpret_cast<Node*>(node)->kind != kCopyNode) return int{kInvalidValue};
    *copy = reinterpret_cast<Node*>(node)->copy;
    return int{kSuccess};
  });
}
// Of the type of memory alone; pageable memory has none.
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  return guarded([&] {
    const bool on_device = within(driver().device, address, 1);
    if (static_cast<int>(attribute) != 2 || !(on_device || within(driver().pinned, address, 1))) {
      return int{kInvalidValue};
    }
    *static_cast<unsigned*>(value) = on_device ? kDeviceMemory : kHostMemory;
    return int{kSuccess};
  });
}

// What is left, for tests: allocations, streams, events and graphs.
unsigned long long txport_test_cuda_left() {
  const std::lock_guard lock(driver().mutex);
  return driver().device.size() + driver().pinned.size() + driver().streams.size() + driver().events.size() +
         driver().graphs.size();
}

// How often work was enqueued or waited for, for tests.
unsigned long long txport_test_cuda_calls() {
  const std::lock_guard lock(driver().mutex);
  return driver().calls;
}

// The next call of a function fails; with 214, 700, 719 or 999 so does every later one. Its name has no "_v2".
void txport_test_cuda_fail(const char* name, int code) {
  const std::lock_guard lock(driver().mutex);
  driver().failing[name] = code;
}

// What no driver can: after an error that ends a context all is as before, but that the work of that time is lost.
void txport_test_cuda_recover() {
  const std::lock_guard lock(driver().mutex);
  driver().sticky = kSuccess;
  driver().failing.clear();
  for (const auto* streams : {&driver().streams, &driver().destroyed}) {
    for (Stream* stream : *streams) {
      stream->done += stream->queue.size();
      stream->queue.clear();
    }
  }
}

// Another process takes so much memory as soon as somebody has looked how much there is; with 0 it ends.
void txport_test_cuda_take(std::size_t bytes) {
  const std::lock_guard lock(driver().mutex);
  driver().waiting = bytes;
  if (bytes == 0) driver().others = 0;
}

// The largest pitch, and of what those of copies within the device must be multiples: cuda.h promises that cuMemcpy2D
// takes the pitches of cuMemAllocPitch, which are multiples of 512, and no others.
void txport_test_cuda_pitches(std::size_t most, std::size_t unit) {
  const std::lock_guard lock(driver().mutex);
  driver().most_pitch = most;
  driver().pitch_unit = unit;
}

// A function by the name that programs use: of a newer kind if there is one.
CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                             CUdriverProcAddressQueryResult* status) {
  static const std::map<std::string, std::string> renamed = {{"cuGraphInstantiate", "cuGraphInstantiateWithFlags"}};
  const auto found = renamed.find(name);
  const std::string base = found == renamed.end() ? name : found->second;
  static void* const self = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&cuInit), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  *function = dlsym(self, (base + "_v2").c_str());
  if (*function == nullptr) *function = dlsym(self, base.c_str());
  if (status != nullptr) *status = static_cast<CUdriverProcAddressQueryResult>(*function == nullptr ? 1 : 0);
  return result(*function == nullptr ? kNotFound : kSuccess);
}

}  // extern "C"
