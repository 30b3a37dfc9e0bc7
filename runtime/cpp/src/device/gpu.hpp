// The GPU of this machine, asked of the driver itself, so that a choice needs no other library.
#pragma once

#include <string>
#include <variant>

namespace txport::core {

// Device 0.
struct Gpu {
  std::string name;
  std::string compute_capability;  // "MAJOR.MINOR"

  std::string title() const { return name + " (" + compute_capability + ")"; }
};

// The GPU that will be used, or why there is none, in words.
std::variant<Gpu, std::string> find_gpu();

}  // namespace txport::core
