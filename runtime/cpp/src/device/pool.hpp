// The device memory of one engine. It is leased to batches, reused when idle, and freed when other sizes need the
// memory.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>

#include "device/buffers.hpp"
#include "device/latch.hpp"

namespace txport::core {

// A block of device memory.
class Block {
 public:
  Block(Device& device, std::size_t bytes) : bytes(bytes), device_(device), address_(device.allocate(bytes)) {}
  ~Block() { device_.free(address_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const std::size_t bytes;
  std::byte* address() const { return address_; }

 private:
  Device& device_;
  std::byte* const address_;
};

// Pool of buffers and blocks. Threads may share a pool.
class Pool {
 public:
  struct Return {
    const Pool* pool;
    void operator()(DeviceBuffers* buffers) const noexcept { pool->give_back(pool->steps_, buffers); }
    void operator()(Block* block) const noexcept { pool->give_back(pool->blocks_, block); }
  };
  // An item that one batch uses exclusively. It becomes idle when the lease ends. Work that was already enqueued for it
  // runs before any reuse, since all work is on one stream. The pool must outlive leases.
  template <typename Item>
  using Lease = std::unique_ptr<Item, Return>;

  // Called once for new buffers: warms them up and returns the object that launches their steps.
  using Prepare = std::function<std::unique_ptr<StepGroups>(const DeviceBuffers&)>;

  // All arguments must outlive the pool.
  Pool(const DeviceGraph& graph, Device& device, const Latch& latch, std::int64_t pad, Prepare prepare)
      : graph_(graph), device_(device), latch_(latch), pad_(pad), prepare_(std::move(prepare)) {}

  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Lease buffers of the bucket for these sizes. All rows are finished. If device memory is exhausted, idle items are
  // freed first. Throws BundleError: no bucket is large enough; ResourceError: memory does not suffice. The message
  // contains the batch size that would fit.
  Lease<DeviceBuffers> step(const StepSizes& requested) const;

  // Lease memory for inputs and outputs of the encoder. Throws ResourceError.
  Lease<Block> memory(std::size_t bytes) const;

 private:
  template <typename Item>
  using Idle = std::list<std::unique_ptr<Item>>;  // the most recently used first

  const DeviceGraph& graph_;
  Device& device_;
  const Latch& latch_;
  const std::int64_t pad_;
  const Prepare prepare_;
  mutable Idle<DeviceBuffers> steps_;
  mutable Idle<Block> blocks_;

  std::unique_ptr<DeviceBuffers> prepared(const StepSizes& sizes) const;
  std::string too_large(const StepSizes& sizes) const;
  template <typename Item, typename Fits>
  static std::unique_ptr<Item> take(Idle<Item>& idle, const Fits& fits);
  template <typename Make>
  auto with_room(const Make& make) const;
  void clear() const;
  template <typename Item>
  void give_back(Idle<Item>& idle, Item* item) const noexcept;
};

}  // namespace txport::core
