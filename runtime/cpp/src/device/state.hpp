// The decoder state on a device: only one small block of it is copied to the host, after each group of steps.
//
// Rows of the state are rows of the buffers by way of a list of places, so that taking fewer rows within the same
// buffers copies nothing. While no step is under way the host's block equals the device's: `place` and
// `override_tokens` change the host's and upload all of it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "../engine.hpp"
#include "device/latch.hpp"
#include "device/pool.hpp"

namespace txport::core {

// Encoder output: keys and values, and the bias `[batch, 1, 1, width]`.
class DeviceMemory : public Memory {
 public:
  DeviceMemory(Pool::Lease<Block> memory, std::vector<Stack> sources, DeviceTensor bias)
      : sources(std::move(sources)), bias(std::move(bias)), memory_(std::move(memory)) {}

  const std::vector<Stack> sources;  // as DeviceBuffers::sources
  const DeviceTensor bias;

 private:
  const Pool::Lease<Block> memory_;
};

// What all states of an engine share; it must outlive them.
struct DeviceSteps {
  const DeviceGraph& graph;
  const Pool& pool;
  const Latch& latch;
  SpecialTokens tokens;
};

// One running batch.
class DeviceState : public DecoderState {
 public:
  // Throws BundleError: no bucket takes these sizes. ResourceError: the device has not enough memory.
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

  // Buffers, and which of their entries the state has.
  struct Room {
    Pool::Lease<DeviceBuffers> buffers;
    Places places;
  };

  DeviceState(const DeviceSteps& steps, Room room, std::int64_t source);

  const DeviceSteps& steps() const { return steps_; }
  DeviceBuffers& buffers() const { return *buffers_; }
  const Places& places() const { return places_; }
  // Where an entry of the state is in the buffers, and a row of it among their rows.
  Places places_of(const std::vector<std::size_t>& entries) const;
  virtual std::size_t place_of_row(std::size_t row) const { return places_[row]; }

  // Give these places what the encoder made of their sentences, and empty caches.
  void place_sources(const Places& here, const DeviceMemory& memory, const std::vector<std::size_t>& memory_rows) const;
  // Where these places go for caches of `target` tokens: ours, if the same buffers serve. This state is then invalid.
  Room relocated(const Places& here, std::int64_t target);
  // These places of the old buffers, which may be ours, become our entries, except the host's block.
  void copy_from(const DeviceBuffers& old, const Places& here) const;

 private:
  const DeviceSteps& steps_;
  Pool::Lease<DeviceBuffers> buffers_;
  Places places_;  // of each row, in the buffers
  std::int64_t source_;
  std::size_t groups_ = 0;  // groups of steps so far, and how many of them were read
  std::size_t read_ = 0;

  void place_run(std::size_t place, const DeviceMemory& memory, std::size_t memory_row, std::size_t count) const;
  void take_over(const DeviceBuffers& old, const Places& here) const;
};

}  // namespace txport::core
