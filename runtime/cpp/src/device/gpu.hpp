// The GPU of this machine, as the driver reports it, so that an engine can be chosen before any library is loaded.
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
  std::string driver = {};  // the newest CUDA that its driver supports, as "12.4"

  std::string title() const { return name + " (" + compute_capability + ")"; }
};

// The GPU that will be used, or the reason why there is none.
std::variant<Gpu, std::string> find_gpu();

}  // namespace txport::core
