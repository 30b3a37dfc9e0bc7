// Large blocks of host memory for the buffers of batches, kept from one batch to the next.
//
// The system clears a page at its first write, and a virtual machine may have to request it from its host: for the
// caches of a batch that took as long as several steps. Never more is kept than was in use at once.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace txport::core {

// Allocations from this size on are mapped from the system directly.
inline constexpr std::size_t kLarge = std::size_t{4} << 20;

// Threads may share one.
class HostMemory {
 public:
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool zero = false;  // else it holds what an earlier user left there
  };

  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // At least `bytes`, page-aligned. Throws std::bad_alloc.
  Block take(std::size_t bytes);
  // Return a block that is no longer used.
  void give_back(Block block) noexcept;

 private:
  std::mutex mutex_;
  std::vector<Block> idle_;  // the first to come back in front
  std::size_t idle_bytes_ = 0;
  std::size_t used_ = 0;
  std::size_t most_used_ = 0;
  std::size_t count_ = 0;  // of all blocks

  void use(std::size_t bytes);
  void drop() noexcept;
};

// Zeros, or what an earlier user left there. A small one is allocated by calloc; a large one returns to `memory` with
// the last pointer to it.
struct SharedBlock {
  std::shared_ptr<std::byte> data;
  bool zero = true;
};
SharedBlock share_block(const std::shared_ptr<HostMemory>& memory, std::size_t bytes);

}  // namespace txport::core
