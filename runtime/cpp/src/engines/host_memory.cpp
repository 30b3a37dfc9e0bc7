#include "engines/host_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace txport::core {

namespace {

// Bytes of a large page; whole ones are asked for, since the system aligns and joins only those.
constexpr std::size_t kPage = std::size_t{2} << 20;

HostMemory::Piece map(std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  ::madvise(data, bytes, MADV_HUGEPAGE);  // a system may be built without them
  return {static_cast<std::byte*>(data), bytes, true};
}

}  // namespace

HostMemory::~HostMemory() {
  for (const Piece& piece : idle_) ::munmap(piece.data, piece.bytes);
}

HostMemory::Piece HostMemory::take(std::size_t bytes) {
  if (bytes > PTRDIFF_MAX - kPage) throw std::bad_alloc();
  const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  auto found = idle_.end();
  for (auto piece = idle_.begin(); piece != idle_.end(); ++piece) {
    const bool fits = piece->bytes >= whole && piece->bytes < 2 * whole;
    if (fits && (found == idle_.end() || piece->bytes < found->bytes)) found = piece;
  }
  if (found != idle_.end()) {
    Piece piece = *found;
    idle_.erase(found);
    idle_bytes_ -= piece.bytes;
    piece.zero = false;
    use(piece.bytes);
    return piece;
  }
  idle_.reserve(count_ + 1);  // so that a piece comes back without asking for memory
  const Piece piece = map(whole);
  ++count_;
  use(piece.bytes);
  return piece;
}

void HostMemory::give_back(Piece piece) noexcept {
  const std::lock_guard lock(mutex_);
  used_ -= piece.bytes;
  idle_.push_back(piece);
  idle_bytes_ += piece.bytes;
  drop();
}

void HostMemory::use(std::size_t bytes) {
  used_ += bytes;
  most_used_ = std::max(most_used_, used_);
  drop();
}

void HostMemory::drop() noexcept {
  while (idle_bytes_ + used_ > most_used_) {
    const Piece piece = idle_.front();
    idle_.erase(idle_.begin());
    idle_bytes_ -= piece.bytes;
    --count_;
    ::munmap(piece.data, piece.bytes);
  }
}

SharedPiece share_piece(const std::shared_ptr<HostMemory>& memory, std::size_t bytes) {
  if (bytes >= kLarge) {
    const HostMemory::Piece piece = memory->take(bytes);
    return {{piece.data, [memory, piece](std::byte*) { memory->give_back(piece); }}, piece.zero};
  }
  void* data = std::calloc(std::max<std::size_t>(bytes, 1), 1);
  if (data == nullptr) throw std::bad_alloc();
  return {{static_cast<std::byte*>(data), [](std::byte* piece) { std::free(piece); }}, true};
}

}  // namespace txport::core
