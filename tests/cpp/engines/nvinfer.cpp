// libnvinfer as far as txport opens it: what it makes comes from test_trt.cpp.
#include <NvInferRuntime.h>

#include <cstdint>

namespace {
using Make = void* (*)(void* logger);
Make& maker() {
  static Make made = nullptr;
  return made;
}
}  // namespace

extern "C" {

void txport_test_nvinfer(Make make) { maker() = make; }
std::int32_t getInferLibVersion() noexcept { return NV_TENSORRT_VERSION; }
void* createInferRuntime_INTERNAL(void* logger, std::int32_t /*version*/) noexcept { return maker()(logger); }

}  // extern "C"
