// Buffers on a device are kept for the next batch of their sizes.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "device/buffers.hpp"

namespace txport::core {

// Threads may share one.
class Pool {
 public:
  struct Return {
    const Pool* pool;
    void operator()(DeviceBuffers* buffers) const noexcept { pool->give_back(buffers); }
  };
  // Buffers that one batch uses alone; they return to the pool by themselves. The pool must outlive them.
  using Lease = std::unique_ptr<DeviceBuffers, Return>;

  explicit Pool(MakeDevice make_device) : make_device_(std::move(make_device)) {}

  // Buffers of the bucket that serves these sizes; `graph` must outlive them. If the device's memory is exhausted,
  // everything that is idle is freed first. Throws InputError: no bucket serves them. ResourceError: there is not
  // enough memory; the message says which batch would fit.
  Lease take(const DeviceGraph& graph, const StepSizes& asked) const;

 private:
  const MakeDevice make_device_;
  mutable std::mutex mutex_;
  mutable std::list<std::unique_ptr<DeviceBuffers>> idle_;  // the most recently used first

  std::unique_ptr<DeviceBuffers> take_idle(const DeviceGraph& graph, const StepSizes& sizes) const;
  std::unique_ptr<DeviceBuffers> allocate(const DeviceGraph& graph, const StepSizes& sizes) const;
  std::string too_large(const DeviceGraph& graph, const StepSizes& sizes) const;
  void give_back(DeviceBuffers* buffers) const noexcept;
};

}  // namespace txport::core
