#include "device/pool.hpp"

#include <algorithm>
#include <cmath>
#include <shared_mutex>
#include <string>
#include <utility>

#include "device/capture.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

// Maximum number of idle items. A long text needs only a few sizes at a time.
constexpr std::size_t kMaxIdle = 16;

std::string megabytes(std::size_t bytes) { return std::to_string(std::llround(static_cast<double>(bytes) / 1e6)); }

}  // namespace

template <typename Item, typename Fits>
std::unique_ptr<Item> Pool::take(Idle<Item>& idle, const Fits& fits) {
  const auto found = std::find_if(idle.begin(), idle.end(), [&](const auto& item) { return fits(*item); });
  if (found == idle.end()) return nullptr;
  auto item = std::move(*found);
  idle.erase(found);
  return item;
}

// Call `make`. If memory is exhausted, free all idle items and call it again.
template <typename Make>
auto Pool::with_room(const Make& make) const {
  try {
    return make();
  } catch (const ResourceError&) {
    clear();
  }
  return make();
}

Pool::~Pool() { clear(); }

// Contexts of the library are destroyed with the buffers. The library may wait for the whole device then.
void Pool::clear() const {
  const std::shared_lock uncaptured(whole_device());
  steps_.clear();
  blocks_.clear();
}

Pool::Lease<DeviceBuffers> Pool::step(const StepSizes& requested) const {
  const auto locked = latch_.lock();
  const StepSizes sizes = graph_.program.bucket(requested);
  auto idle_buffers = take(steps_, [&](const DeviceBuffers& buffers) { return buffers.sizes() == sizes; });
  if (idle_buffers == nullptr) {
    try {
      idle_buffers = with_room([&] { return prepared(sizes); });
    } catch (const ResourceError&) {
      throw ResourceError(too_large(sizes));
    }
  }
  idle_buffers->reset(pad_);
  return {idle_buffers.release(), Return{this}};
}

Pool::Lease<Block> Pool::memory(std::size_t bytes) const {
  const auto locked = latch_.lock();
  std::size_t rounded = 1;
  while (rounded < bytes) rounded *= 2;
  auto idle_block = take(blocks_, [&](const Block& block) { return block.bytes == rounded; });
  if (idle_block == nullptr) {
    try {
      idle_block = with_room([&] { return std::make_unique<Block>(device_, rounded); });
    } catch (const ResourceError& error) {
      throw ResourceError(std::string(error.what()) + " for a batch's encoder output: use a smaller batch");
    }
  }
  return {idle_block.release(), Return{this}};
}

std::unique_ptr<DeviceBuffers> Pool::prepared(const StepSizes& sizes) const {
  const std::shared_lock uncaptured(whole_device());  // buffers have the library's contexts from the start
  auto buffers = std::make_unique<DeviceBuffers>(graph_, device_, sizes);
  buffers->reset(pad_);
  buffers->set_groups(prepare_(*buffers));
  return buffers;
}

std::string Pool::too_large(const StepSizes& sizes) const {
  const std::size_t free = device_.free_memory();
  std::int64_t fits = 0;
  for (std::int64_t rows = 1; rows < sizes.batch; ++rows) {
    const StepSizes smaller = graph_.program.bucket({rows, sizes.source, sizes.target, sizes.beams});
    if (bytes_needed(graph_, smaller) <= free) fits = std::max(fits, smaller.batch);
  }
  const std::string kind =
      sizes.beams == 1 ? " rows of " : " sentences in " + std::to_string(sizes.beams) + " rows each, of ";
  return "the GPU has no room for a batch of " + std::to_string(sizes.batch) + kind + std::to_string(sizes.source) +
         " source and " + std::to_string(sizes.target) + " target tokens: it needs " +
         megabytes(bytes_needed(graph_, sizes)) + " MB and " + megabytes(free) + " MB are free; " +
         (fits > 0 ? "a batch of " + std::to_string(fits) + " would fit" : "not even one row would fit");
}

template <typename Item>
void Pool::give_back(Idle<Item>& idle, Item* item) const noexcept {
  if (latch_.is_forked()) return;  // it is the parent's
  const auto locked = latch_.lock();
  idle.emplace_front(item);
  if (idle.size() <= kMaxIdle) return;
  const std::shared_lock uncaptured(whole_device());
  idle.pop_back();
}

// Functions for Return, which other files instantiate.
template void Pool::give_back(Idle<DeviceBuffers>& idle, DeviceBuffers* item) const noexcept;
template void Pool::give_back(Idle<Block>& idle, Block* item) const noexcept;

}  // namespace txport::core
