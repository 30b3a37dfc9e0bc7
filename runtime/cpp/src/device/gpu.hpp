// The GPU of this machine according to the driver, so that an engine can be chosen before any library is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

namespace txport::core {

// Device 0.
struct Gpu {
  std::string name;
  std::string compute_capability;  // "MAJOR.MINOR"
  std::int64_t multiprocessors = 0;
  std::string driver = {};  // newest CUDA version that the driver supports, for example "12.4"

  std::string title() const { return name + " (" + compute_capability + ")"; }
};

// Return the GPU, or the reason why none can be used.
std::variant<Gpu, std::string> find_gpu();

}  // namespace txport::core
