#include "cores.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "system/system.hpp"

namespace txport::core {

namespace fs = std::filesystem;

namespace {

// Return the limit of a control group in cores, from the files of cgroups(7) version 2 or 1; 0 if there is no limit or
// no such group.
int limit_of(const fs::path& group, bool version_2) {
  double time = 0;
  double period = 0;
  if (version_2) {
    std::ifstream(group / "cpu.max") >> time >> period;  // "max", which is not a number, if there is no limit
  } else {
    std::ifstream(group / "cpu.cfs_quota_us") >> time;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  return time > 0 && period > 0 ? static_cast<int>(std::ceil(time / period)) : 0;
}

// Return whether the list contains "cpu".
bool has_cpu(const std::string& controllers) { return ("," + controllers + ",").find(",cpu,") != std::string::npos; }

}  // namespace

int usable_cores() {
  const int cores = affinity();
  const int limit = quota();
  return limit > 0 ? std::min(cores, limit) : cores;
}

int limited_cores() { return usable_cores() < affinity() ? usable_cores() : 0; }

int quota(const fs::path& root) {
  int lowest = 0;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::istringstream fields(line);
    std::string number;
    std::string controllers;
    std::string path;
    if (!std::getline(std::getline(std::getline(fields, number, ':'), controllers, ':'), path)) continue;
    if (!controllers.empty() && !has_cpu(controllers)) continue;
    const fs::path top = root / "sys/fs/cgroup" / controllers;
    // In a container, the group may appear as the root.
    for (fs::path group = fs::path(path).relative_path();; group = group.parent_path()) {
      const int limit = limit_of(top / group, controllers.empty());
      if (limit > 0) lowest = lowest == 0 ? limit : std::min(lowest, limit);
      if (group.empty()) break;
    }
  }
  return lowest;
}

}  // namespace txport::core
