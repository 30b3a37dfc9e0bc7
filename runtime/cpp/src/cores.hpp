// Number of cores that this process may use.
#pragma once

#include <filesystem>

namespace txport::core {

// Return the number of usable cores, according to the affinity and the control group quota of this process; at least 1.
int usable_cores();
// Return the number of usable cores if a quota reduces it, otherwise 0. ONNX Runtime ignores quotas.
int limited_cores();

// Return the quota of the control group of this process (for example of a container) in cores, rounded up as in the JVM
// and Go; 0 if there is none. With more threads than this, all are paused for a part of each period. `root` is the
// directory that contains /proc and /sys.
int quota(const std::filesystem::path& root = "/");

// CPU settings of an engine.
struct CpuShare {
  int threads = 0;    // threads of each operator; 0: one per core
  bool many = false;  // optimize for many concurrent sentences instead of single ones
};

}  // namespace txport::core
