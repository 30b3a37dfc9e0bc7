// The processor's cores, and how an engine may use them.
#pragma once

namespace txport::core {

// How many this process may run on; at least 1.
int usable_cores();

// The share of the processor that a bundle may use.
struct CpuShare {
  int threads = 0;    // of each operator; 0 for as many as there are cores
  bool many = false;  // many sentences will come at once, not one by one
};

}  // namespace txport::core
