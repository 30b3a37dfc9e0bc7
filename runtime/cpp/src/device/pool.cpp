#include "device/pool.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "errors.hpp"

namespace txport::core {

namespace {

// More would only occupy memory: a long text needs a few sizes at a time, of two graphs.
constexpr std::size_t kMostIdle = 16;

std::string megabytes(std::size_t bytes) { return std::to_string(std::llround(static_cast<double>(bytes) / 1e6)); }

}  // namespace

Pool::Lease Pool::take(const DeviceGraph& graph, const StepSizes& asked) const {
  const StepSizes sizes = graph.program.bucket(asked);
  if (auto idle = take_idle(graph, sizes)) return {idle.release(), Return{this}};
  try {
    return {allocate(graph, sizes).release(), Return{this}};
  } catch (const ResourceError&) {
    std::list<std::unique_ptr<DeviceBuffers>> idle;  // freed without the lock
    const std::lock_guard lock(mutex_);
    idle.swap(idle_);
  }
  try {
    return {allocate(graph, sizes).release(), Return{this}};
  } catch (const ResourceError&) {
    throw ResourceError(too_large(graph, sizes));
  }
}

std::unique_ptr<DeviceBuffers> Pool::take_idle(const DeviceGraph& graph, const StepSizes& sizes) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const auto& buffers) {
    return &buffers->graph() == &graph && buffers->sizes() == sizes;
  });
  if (found == idle_.end()) return nullptr;
  auto buffers = std::move(*found);
  idle_.erase(found);
  return buffers;
}

std::unique_ptr<DeviceBuffers> Pool::allocate(const DeviceGraph& graph, const StepSizes& sizes) const {
  auto buffers = std::make_unique<DeviceBuffers>(graph, make_device_(), sizes);
  if (graph.prepare) buffers->set_replay(graph.prepare(*buffers));
  return buffers;
}

std::string Pool::too_large(const DeviceGraph& graph, const StepSizes& sizes) const {
  const std::size_t free = make_device_()->free_memory();
  std::int64_t fits = 0;
  for (std::int64_t rows = 1; rows < sizes.batch; ++rows) {
    const StepSizes smaller = graph.program.bucket({rows, sizes.source, sizes.target});
    if (bytes_needed(graph, smaller) <= free) fits = std::max(fits, smaller.batch);
  }
  const std::string target = sizes.target > 0 ? " and " + std::to_string(sizes.target) + " target" : "";
  return "the GPU has no room for a batch of " + std::to_string(sizes.batch) + " rows of " +
         std::to_string(sizes.source) + " source" + target + " tokens: it needs " +
         megabytes(bytes_needed(graph, sizes)) + " MB and " + megabytes(free) + " MB are free; " +
         (fits > 0 ? "a batch of " + std::to_string(fits) + " would fit" : "not even one row would fit");
}

void Pool::give_back(DeviceBuffers* buffers) const noexcept {
  std::unique_ptr<DeviceBuffers> surplus(buffers);  // freed without the lock
  const std::lock_guard lock(mutex_);
  idle_.push_front(std::move(surplus));
  if (idle_.size() <= kMostIdle) return;
  surplus = std::move(idle_.back());
  idle_.pop_back();
}

}  // namespace txport::core
