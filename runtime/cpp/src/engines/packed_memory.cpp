#include "engines/packed_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

#ifndef MADV_POPULATE_WRITE  // of Linux 5.14; an older system refuses it, and then gives each page at its first touch
#define MADV_POPULATE_WRITE 23
#endif

namespace txport::core {

namespace {

constexpr std::size_t kAlignment = 64;  // what ONNX Runtime's kernels ask for
constexpr std::size_t kPage = 4096;
constexpr std::size_t kLeast = std::size_t{64} << 10;     // smaller blocks are not worth a mapping
constexpr std::size_t kMapping = std::size_t{256} << 20;  // of addresses; memory is only what blocks use

std::uintptr_t round_up(std::uintptr_t number, std::size_t step) { return (number + step - 1) / step * step; }

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): addresses are rounded as numbers
}

// Addresses from which blocks are cut, one behind the other.
struct Mapping {
  void* start = nullptr;
  std::size_t bytes = 0;
  std::uintptr_t next = 0;  // where the next block begins
  std::uintptr_t end = 0;   // where the addresses end
  std::size_t used = 0;     // blocks that are not free yet
};

// Stands before each block.
struct alignas(kAlignment) Header {
  Mapping* mapping;  // a null pointer for memory of malloc
  std::size_t bytes;
};

void populate(const Header* header) {
  const auto address = reinterpret_cast<std::uintptr_t>(header);
  const auto start = address / kPage * kPage;
  ::madvise(pointer(start), round_up(address + header->bytes, kPage) - start, MADV_POPULATE_WRITE);
}

class Mappings {
 public:
  // Addresses of `bytes` in whole multiples of the alignment, with the mapping that they are of.
  Header* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (current_ == nullptr || current_->end - current_->next < bytes) {
      Mapping* fresh = map(std::max(bytes, kMapping));
      if (fresh == nullptr) return nullptr;
      current_ = fresh;  // the one before is unmapped with its last block
    }
    auto* header = static_cast<Header*>(pointer(current_->next));
    current_->next += bytes;
    ++current_->used;
    *header = {current_, bytes};
    return header;
  }

  void give_back(Header* header) {
    const std::lock_guard lock(mutex_);
    Mapping* mapping = header->mapping;
    // The mapping lives on with its other blocks; the whole pages of this one go back to the system at once.
    const auto start = round_up(reinterpret_cast<std::uintptr_t>(header), kPage);
    const auto end = (reinterpret_cast<std::uintptr_t>(header) + header->bytes) / kPage * kPage;
    if (start < end) ::madvise(pointer(start), end - start, MADV_DONTNEED);
    if (--mapping->used > 0) return;
    if (mapping == current_) current_ = nullptr;
    unmap(mapping);
  }

 private:
  std::mutex mutex_;
  Mapping* current_ = nullptr;

  static Mapping* map(std::size_t bytes) {
    const std::size_t whole = round_up(bytes, kPage);
    void* start = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(start);
    auto* mapping = new (std::nothrow) Mapping{start, whole, address, address + whole};
    if (mapping == nullptr) ::munmap(start, whole);
    return mapping;
  }

  static void unmap(Mapping* mapping) {
    ::munmap(mapping->start, mapping->bytes);
    delete mapping;
  }
};

// Never destroyed: sessions may live until the process ends.
Mappings& mappings() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const all = new Mappings;
  return *all;
}

}  // namespace

void* packed_allocate(std::size_t bytes) noexcept {
  if (bytes < kLeast) return plain_allocate(bytes);
  if (bytes > PTRDIFF_MAX - 2 * kPage) return nullptr;
  Header* header = mappings().take(sizeof(Header) + round_up(bytes, kAlignment));
  if (header == nullptr) return plain_allocate(bytes);
  populate(header);
  return header + 1;
}

void* plain_allocate(std::size_t bytes) noexcept {
  if (bytes > PTRDIFF_MAX - sizeof(Header)) return nullptr;
  void* memory = nullptr;
  if (::posix_memalign(&memory, kAlignment, sizeof(Header) + bytes) != 0) return nullptr;
  auto* header = static_cast<Header*>(memory);
  *header = {nullptr, bytes};
  return header + 1;
}

void packed_free(void* block) noexcept {
  if (block == nullptr) return;
  Header* header = static_cast<Header*>(block) - 1;
  if (header->mapping == nullptr) {
    std::free(header);
  } else {
    mappings().give_back(header);
  }
}

}  // namespace txport::core
