#include "device/gpu.hpp"

#include <dlfcn.h>

#include <array>

namespace txport::core {

namespace {

// Constants of the driver's C ABI.
constexpr int kMajor = 75;            // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kMinor = 76;            // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
constexpr int kMultiprocessors = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

template <typename... Arguments>
int call(void* library, const char* name, Arguments... arguments) {
  void* function = ::dlsym(library, name);
  return function == nullptr ? 35 : reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

std::string reason(int result) {
  switch (result) {
    case 3:
      return "the NVIDIA driver is not initialised";
    case 34:
      return "the NVIDIA driver is a stub for linking (libcuda.so.1 of the CUDA toolkit)";
    case 35:
      return "the driver is too old";
    case 100:
      return "there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it";
    case 803:
      return "the NVIDIA driver's library and its kernel module are of different versions: restart the machine";
    case 804:
      return "CUDA's forward-compatibility libraries do not run on this GPU: remove them, or install a newer driver";
    case 999:
      return "the NVIDIA driver cannot start (unknown error): see whether nvidia-smi works";
    default:
      return "the NVIDIA driver reports error " + std::to_string(result);
  }
}

}  // namespace

std::variant<Gpu, std::string> find_gpu() {
  // The library is never closed, since the driver has running threads.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "there is no NVIDIA driver (libcuda.so.1)";
  int count = 0;
  int device = 0;
  if (const int result = call(library, "cuInit", 0U)) return reason(result);
  if (const int result = call(library, "cuDeviceGetCount", &count)) return reason(result);
  if (count == 0 || call(library, "cuDeviceGet", &device, 0) != 0) return "there is no NVIDIA GPU";
  std::array<char, 256> name{};
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  call(library, "cuDeviceGetName", name.data(), static_cast<int>(name.size()) - 1, device);
  call(library, "cuDeviceGetAttribute", &major, kMajor, device);
  call(library, "cuDeviceGetAttribute", &minor, kMinor, device);
  call(library, "cuDeviceGetAttribute", &multiprocessors, kMultiprocessors, device);
  int version = 0;  // 12040 is 12.4
  call(library, "cuDriverGetVersion", &version);
  return Gpu{name.data(), std::to_string(major) + "." + std::to_string(minor), multiprocessors,
             std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10)};
}

}  // namespace txport::core
