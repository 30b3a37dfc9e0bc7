// Large pieces of the host's memory, for the buffers of batches, kept from one batch to the next.
//
// The system clears a page at its first write, and a virtual machine may have to ask its host for it: for the caches of
// a batch that took as long as several steps. What is kept is never more than what was in use at once.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace txport::core {

// Bytes from which memory is worth taking from the system directly.
inline constexpr std::size_t kLarge = std::size_t{4} << 20;

// Threads may share one.
class HostMemory {
 public:
  struct Piece {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool zero = false;  // or else it holds what an earlier user has left there
  };

  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // At least `bytes`, at a multiple of a page. Throws std::bad_alloc.
  Piece take(std::size_t bytes);
  // A piece that nobody uses any more.
  void give_back(Piece piece) noexcept;

 private:
  std::mutex mutex_;
  std::vector<Piece> idle_;  // the one that came back first in front
  std::size_t idle_bytes_ = 0;
  std::size_t used_ = 0;
  std::size_t most_used_ = 0;
  std::size_t count_ = 0;  // of all pieces

  void use(std::size_t bytes);
  void drop() noexcept;
};

// Zeros, or what an earlier user has left there: memory of malloc if it is little, else a piece that goes back to
// `memory` with the last pointer to it.
struct SharedPiece {
  std::shared_ptr<std::byte> data;
  bool zero = true;
};
SharedPiece share_piece(const std::shared_ptr<HostMemory>& memory, std::size_t bytes);

}  // namespace txport::core
