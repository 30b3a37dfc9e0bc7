// The decoder state on a device: between two polls nothing of it crosses to the host.
//
// Rows of the state are rows of the buffers by way of a list of places, so that moving to fewer rows within the same
// buffers copies nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "device/latch.hpp"
#include "device/pool.hpp"
#include "engine.hpp"

namespace txport::core {

// Encoder output, in buffers that return to their pool with it.
class DeviceMemory : public Memory {
 public:
  DeviceMemory(Pool::Lease buffers, std::int64_t width) : buffers_(std::move(buffers)), width_(width) {}

  const DeviceBuffers& buffers() const { return *buffers_; }
  std::int64_t width() const { return width_; }  // of its rows, in tokens

 private:
  const Pool::Lease buffers_;
  const std::int64_t width_;
};

// What all states of an engine share; it must outlive them.
struct DeviceSteps {
  const DeviceGraph& graph;
  const Pool& pool;
  const Latch& latch;
  SpecialTokens tokens;
};

// Write ids from row `first` on, in the tensor's own type. Does nothing if the graph does not have the tensor.
void upload_ids(const DeviceBuffers& buffers, const std::string& name, const Ids& ids, std::size_t first = 0);

// Every row finished, as if it had never been placed.
void reset(const DeviceBuffers& buffers, std::int64_t pad);

// One running batch.
class DeviceState : public DecoderState {
 public:
  // Throws InputError: no bucket takes these sizes. ResourceError: the device has not enough memory.
  DeviceState(const DeviceSteps& steps, std::size_t rows, std::int64_t source, std::int64_t target, bool logits);

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
  std::unique_ptr<DecoderState> moved(const std::vector<std::size_t>& rows, std::int64_t target) override;

 private:
  const DeviceSteps& steps_;
  Pool::Lease buffers_;
  std::vector<std::size_t> places_;  // of each row, in the buffers
  std::int64_t source_;
  bool logits_;
  std::size_t pending_ = 0;  // steps in the ring
  Ids made_;                 // [steps, rows], taken from the ring

  DeviceState(const DeviceSteps& steps, Pool::Lease buffers, std::vector<std::size_t> places, std::int64_t source,
              bool logits);

  Device& device() const { return buffers_->device(); }
  std::vector<std::uint8_t> finished() const;
  void set_finished(std::size_t place, bool finished) const;
  Ids download_ids(const std::string& name) const;
  Ids download_ids(const std::byte* from, std::size_t count, std::size_t item_bytes) const;
  void take_pending();
  void place_row(const DeviceMemory& encoded, std::size_t memory_row, std::size_t place) const;
  void place_source(const DeviceMemory& encoded, std::size_t from_row, const DeviceTensor& to, const std::string& name,
                    std::size_t place) const;
  std::unique_ptr<DeviceState> rearranged(const std::vector<std::size_t>& rows);
  void copy_row(const DeviceBuffers& from, std::size_t from_place, std::size_t place) const;
};

}  // namespace txport::core
