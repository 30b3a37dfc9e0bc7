// The processor's cores, and how an engine may use them.
#pragma once

#include <filesystem>

namespace txport::core {

// How many this process may use, by its affinity and by the quota of its control group; at least 1.
int usable_cores();
// That if a quota reduces them, which ONNX Runtime ignores; else 0.
int limited_cores();

// Cores whose time the control group of this process may take, as of a container: 0 if nothing limits it. A part of a
// core counts as one, as in the JVM and Go; more threads than that stand still for parts of each period. `root` is
// where /proc and /sys are.
int quota(const std::filesystem::path& root = "/");

// The share of the processor that a bundle may use.
struct CpuShare {
  int threads = 0;    // of each operator; 0 for as many as there are cores
  bool many = false;  // many sentences will come at once, not one by one
};

}  // namespace txport::core
