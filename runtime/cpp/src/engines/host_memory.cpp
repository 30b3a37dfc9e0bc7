#include "engines/host_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace txport::core {

namespace {

// Bytes of a huge page; sizes are rounded up to it, since the system aligns and merges whole ones only.
constexpr std::size_t kPage = std::size_t{2} << 20;

HostMemory::Block map(std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  ::madvise(data, bytes, MADV_HUGEPAGE);  // fails on systems without huge pages, which is fine
  return {static_cast<std::byte*>(data), bytes, true};
}

}  // namespace

HostMemory::~HostMemory() {
  for (const Block& block : idle_) ::munmap(block.data, block.bytes);
}

HostMemory::Block HostMemory::take(std::size_t bytes) {
  if (bytes > PTRDIFF_MAX - kPage) throw std::bad_alloc();
  const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  auto found = idle_.end();
  for (auto block = idle_.begin(); block != idle_.end(); ++block) {
    const bool fits = block->bytes >= whole && block->bytes < 2 * whole;
    if (fits && (found == idle_.end() || block->bytes < found->bytes)) found = block;
  }
  if (found != idle_.end()) {
    Block block = *found;
    idle_.erase(found);
    idle_bytes_ -= block.bytes;
    block.zero = false;
    use(block.bytes);
    return block;
  }
  idle_.reserve(count_ + 1);  // so that returning a block allocates nothing
  const Block block = map(whole);
  ++count_;
  use(block.bytes);
  return block;
}

void HostMemory::give_back(Block block) noexcept {
  const std::lock_guard lock(mutex_);
  used_ -= block.bytes;
  idle_.push_back(block);
  idle_bytes_ += block.bytes;
  drop();
}

void HostMemory::use(std::size_t bytes) {
  used_ += bytes;
  most_used_ = std::max(most_used_, used_);
  drop();
}

void HostMemory::drop() noexcept {
  while (idle_bytes_ + used_ > most_used_) {
    const Block block = idle_.front();
    idle_.erase(idle_.begin());
    idle_bytes_ -= block.bytes;
    --count_;
    ::munmap(block.data, block.bytes);
  }
}

SharedBlock share_block(const std::shared_ptr<HostMemory>& memory, std::size_t bytes) {
  if (bytes >= kLarge) {
    const HostMemory::Block block = memory->take(bytes);
    return {{block.data, [memory, block](std::byte*) { memory->give_back(block); }}, block.zero};
  }
  void* data = std::calloc(std::max<std::size_t>(bytes, 1), 1);
  if (data == nullptr) throw std::bad_alloc();
  return {{static_cast<std::byte*>(data), [](std::byte* block) { std::free(block); }}, true};
}

}  // namespace txport::core
