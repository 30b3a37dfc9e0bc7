#include "device/gpu.hpp"

#include <dlfcn.h>

#include <array>

namespace txport::core {

namespace {

// The parts of the driver's C ABI that are needed here, without CUDA's headers.
constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR

template <typename... Arguments>
int call(void* library, const char* name, Arguments... arguments) {
  void* function = ::dlsym(library, name);
  return function == nullptr ? 35 : reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

std::string reason(int result) {
  switch (result) {
    case 3:
      return "the driver is not initialised";
    case 35:
      return "the driver is too old";
    case 100:
      return "there is no NVIDIA GPU";
    default:
      return "the NVIDIA driver answers with error " + std::to_string(result);
  }
}

}  // namespace

std::variant<Gpu, std::string> find_gpu() {
  // Never closed: the driver keeps threads.
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
  call(library, "cuDeviceGetName", name.data(), static_cast<int>(name.size()) - 1, device);
  call(library, "cuDeviceGetAttribute", &major, kMajor, device);
  call(library, "cuDeviceGetAttribute", &minor, kMinor, device);
  return Gpu{name.data(), std::to_string(major) + "." + std::to_string(minor)};
}

}  // namespace txport::core
