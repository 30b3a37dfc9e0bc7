// The decoder state on a device. Only one small block is downloaded after each group of steps.
//
// A place is the index of a row in the buffers. The state maps its rows to places, so removing rows copies nothing.
// While no step is in flight, the host's block equals the device's block: `place` and `override_tokens` change the
// host's block and upload all of it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "../engine.hpp"
#include "device/latch.hpp"
#include "device/pool.hpp"

namespace txport::core {

// Encoder output: keys, values, and the bias `[batch, 1, 1, source length]`.
class DeviceMemory : public Memory {
 public:
  DeviceMemory(Pool::Lease<Block> memory, std::vector<Stack> sources, DeviceTensor bias)
      : sources(std::move(sources)), bias(std::move(bias)), memory_(std::move(memory)) {}

  const std::vector<Stack> sources;  // like DeviceBuffers::sources
  const DeviceTensor bias;

 private:
  const Pool::Lease<Block> memory_;
};

// Data that all states of an engine share. It must outlive them.
struct DeviceSteps {
  const DeviceGraph& graph;
  const Pool& pool;
  const Latch& latch;
  SpecialTokens tokens;
};

// One running batch.
class DeviceState : public DecoderState {
 public:
  // Throws BundleError: no bucket is large enough; ResourceError: device memory does not suffice.
  DeviceState(const DeviceSteps& steps, std::size_t rows, std::int64_t source, std::int64_t target);

  std::size_t rows() const override { return places_.size(); }
  std::int64_t source() const override { return source_; }
  std::int64_t target() const override { return buffers_->sizes().target; }

  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override;
  void step(std::int64_t count) override;
  StepOutput read() override;
  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override;
  std::vector<float> logits(std::size_t row) override;
  void reorder(const std::vector<std::size_t>& rows) override;
  std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) override;

 protected:
  using Places = std::vector<std::size_t>;

  // Buffers, and the places in them that a state uses.
  struct Room {
    Pool::Lease<DeviceBuffers> buffers;
    Places places;
  };

  DeviceState(const DeviceSteps& steps, Room room, std::int64_t source);

  const DeviceSteps& steps() const { return steps_; }
  DeviceBuffers& buffers() const { return *buffers_; }
  const Places& places() const { return places_; }
  // Return the places of entries of the state, and the place of a row.
  Places places_of(const std::vector<std::size_t>& entries) const;
  virtual std::size_t place_of_row(std::size_t row) const { return places_[row]; }

  // Copy encoder output to these places and clear their caches.
  void place_sources(const Places& entries, const DeviceMemory& memory,
                     const std::vector<std::size_t>& memory_rows) const;
  // Return buffers and places for caches of `target` tokens. If the bucket is the same, these are the buffers of this
  // state, which becomes invalid.
  Room relocated(const Places& entries, std::int64_t target);
  // Copy these places of the old buffers, which may be the same buffers, to the places of this state. The host's block
  // is not copied.
  void copy_from(const DeviceBuffers& old, const Places& entries) const;

 private:
  const DeviceSteps& steps_;
  Pool::Lease<DeviceBuffers> buffers_;
  Places places_;  // place of each row
  std::int64_t source_;
  std::size_t groups_ = 0;  // groups of steps so far; `read_` of them were read
  std::size_t read_ = 0;

  void place_run(std::size_t place, const DeviceMemory& memory, std::size_t memory_row, std::size_t count) const;
  void copy_host_block(const DeviceBuffers& old, const Places& entries) const;
};

}  // namespace txport::core
