#include "cores.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace txport::core {

int usable_cores() {
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof(usable), &usable) == 0) return CPU_COUNT(&usable);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace txport::core
