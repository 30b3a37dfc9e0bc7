// The device memory of one engine: leased to batches, kept while idle, freed when others need the room.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>

#include "device/buffers.hpp"
#include "device/latch.hpp"

namespace txport::core {

// Some device memory.
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

// Threads may share one.
class Pool {
 public:
  struct Return {
    const Pool* pool;
    void operator()(DeviceBuffers* buffers) const noexcept { pool->give_back(pool->steps_, buffers); }
    void operator()(Block* block) const noexcept { pool->give_back(pool->blocks_, block); }
  };
  // What one batch uses alone; it is idle again when the lease ends. Work on it that was enqueued by then still runs
  // before any reuse, since all work is on one stream. The pool must outlive it.
  template <typename Item>
  using Lease = std::unique_ptr<Item, Return>;

  // Called once for new buffers: warms them up and returns what launches their steps.
  using Prepare = std::function<std::unique_ptr<StepGroups>(const DeviceBuffers&)>;

  // Everything that is given must outlive the pool.
  Pool(const DeviceGraph& graph, Device& device, const Latch& latch, std::int64_t pad, Prepare prepare)
      : graph_(graph), device_(device), latch_(latch), pad_(pad), prepare_(std::move(prepare)) {}

  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Buffers of the bucket that serves these sizes, all rows finished. If the device's memory is exhausted, everything
  // that is idle is freed first. Throws BundleError: no bucket serves them. ResourceError: there is not enough memory;
  // the message contains the batch size that would fit.
  Lease<DeviceBuffers> step(const StepSizes& asked) const;

  // Memory for the encoder's inputs and outputs. Throws ResourceError.
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
