// What one running batch holds in device memory, and where, as txport.runtime.device.buffers has it.
//
// Tensors of a kind (all self-attention caches, all cross keys and values) share one allocation, one plane each, so
// that one copy or one fill reaches a row in all of them. The state that the host reads is one block.
#pragma once

#include <array>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "bundle/manifest.hpp"
#include "device/capture.hpp"
#include "device/program.hpp"

namespace txport::core {

// The most steps of one group, whose tokens the device keeps.
inline constexpr std::size_t kRingSteps = 64;

// Bytes, rounded up to the alignment of every tensor that a library binds.
std::size_t aligned(std::size_t bytes);

// Tensors `[rows, heads, length, numbers]` one after the other.
struct Stack {
  Stack() = default;
  // Those of the tensors with such a name, in the order of their names.
  Stack(const DeviceTensors& tensors, const std::function<bool(const std::string&)>& belongs);

  std::byte* start = nullptr;
  std::vector<std::string> names;
  std::size_t heads = 0;
  std::size_t line = 0;   // bytes of one head
  std::size_t row = 0;    // bytes of one row, all heads
  std::size_t plane = 0;  // bytes from one tensor to the next: of whole lines, as copies of several planes require

  std::size_t bytes() const { return names.size() * plane; }
  // Use `bytes()` of memory, and set the addresses of the tensors.
  void put(std::byte* address, DeviceTensors& tensors);
  // The heads of this row and the rows after it, in all tensors.
  Buffer at(std::size_t first) const { return {start + first * row, line, plane}; }
  // Zero `count` rows in all tensors.
  void clear(Device& device, std::size_t first, std::size_t count) const {
    device.fill({start + first * row, plane}, 0, count * row, names.size());
  }
};

// Outputs of the encoder except the bias: keys and values of cross-attention, and ids to copy, if the model copies.
std::vector<Stack> source_stacks(const DeviceTensors& tensors);
// Whether a tensor is in one of these.
bool is_of_source(const std::string& name);

// Offsets of the small tensors of a step in their block: first its outputs, so that one copy suffices.
struct StateLayout {
  StateLayout(std::size_t rows, const std::string& id_type);

  std::size_t rows;
  std::size_t id_bytes;
  // Offsets.
  std::size_t token_ids = 0;
  std::size_t positions;
  std::size_t finished;
  std::size_t target_limits;
  std::size_t written;  // bytes up to the last that a step writes
  std::size_t bytes;    // of all; behind them lies the ring, the tokens of kRingSteps steps

  std::size_t step_bytes() const { return rows * id_bytes; }
  std::size_t bytes_with(std::size_t steps) const { return bytes + steps * step_bytes(); }
  // An id of a copy of the block, in an array that begins at `offset`.
  std::int64_t id(const std::byte* block, std::size_t offset, std::size_t index) const;
  void set_id(std::byte* block, std::size_t offset, std::size_t index, std::int64_t id) const;
};

// The block of small tensors of a step, as the host exchanges it with the device.
struct Exchange {
  // Of a plain step: all is uploaded, and downloaded after a group of steps with their tokens behind it.
  explicit Exchange(const StateLayout& layout);
  // Of a step of beam search: what it reads is uploaded, and what it makes is downloaded, step by step.
  explicit Exchange(const DeviceTensors& tensors);

  std::map<std::string, std::size_t> offsets;  // by name
  std::size_t uploaded = 0;                    // bytes, from the first on
  std::size_t made = 0;                        // where what is downloaded begins
  std::size_t bytes = 0;                       // of all
};

// A decoder step that runs on a device.
struct DeviceGraph {
  Graph graph;
  std::string id_type;  // int32 or int64
  const Program& program;

  // The graph of a step of these sizes.
  const Graph& of(const StepSizes& sizes) const { return sizes.beams == 1 ? graph : *program.beam_graph(sizes.beams); }
};

// Device memory that buffers of these sizes take.
std::size_t bytes_needed(const DeviceGraph& graph, const StepSizes& sizes);

// All memory of one batch, with the step that is bound to it.
class DeviceBuffers {
 public:
  // What the host sees after a group of steps: a copy of the block, with the tokens of each step behind it; or what a
  // step of beam search has made.
  struct Poll {
    std::byte* block = nullptr;  // page-locked
    std::size_t steps = 0;
    std::unique_ptr<Event> done;
  };

  // Throws ResourceError: the device has not enough memory; nothing is left allocated. EngineError: the library or the
  // device failed.
  DeviceBuffers(const DeviceGraph& graph, Device& device, const StepSizes& sizes);
  ~DeviceBuffers();
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  Device& device() const { return device_; }
  const StepSizes& sizes() const { return sizes_; }
  const StateLayout& layout() const { return layout_; }
  const Stack& caches() const { return caches_; }
  const std::vector<Stack>& sources() const { return sources_; }
  const DeviceTensor& at(const std::string& name) const { return tensors_.at(name); }
  // The bias of this row and the rows after it, and that of a row without a source.
  Buffer bias(std::size_t row) const;
  Buffer masked() const { return {masked_}; }
  // Where a small tensor begins in the block that is uploaded, or in that of a poll.
  std::size_t offset(const std::string& name) const;
  // The host's copy of the block: the device's while no step is under way.
  std::byte* host() { return host_.data(); }
  const std::byte* host() const { return host_.data(); }
  // Two, so that the host can read one group while the device works on the next.
  std::array<Poll, 2>& polls() { return polls_; }

  // Every row finished, as if it had never been placed.
  void reset(std::int64_t pad);
  // Copy ids, positions, limits and flags from the host to the device; the host's copy may change at once.
  void upload_state();
  // Enqueue one step, as the library does it, and a copy of its tokens to a slot of the ring, if it chooses them.
  void step(std::size_t slot) const;
  // How groups of steps are launched from now on.
  void set_groups(std::unique_ptr<StepGroups> groups) { groups_ = std::move(groups); }
  // Enqueue `count` steps, and the poll of what they make.
  void launch(std::size_t count, Poll& poll) const;

 private:
  // Host data that the device reads when the stream arrives. This number may be pending: new buffers, rows
  // that move into them and rows that are placed there upload without a step between.
  static constexpr std::size_t kUploads = 4;
  struct Upload {
    std::byte* block = nullptr;  // page-locked
    std::unique_ptr<Event> done;
  };

  Device& device_;
  const StepSizes sizes_;
  const StateLayout layout_;
  DeviceTensors tensors_;
  const Exchange exchange_;
  Stack caches_;
  std::vector<Stack> sources_;
  std::list<std::byte*> allocated_;
  std::list<std::byte*> pinned_;
  std::byte* masked_ = nullptr;
  std::byte* state_ = nullptr;
  std::byte* aside_ = nullptr;  // where a step writes its state if it may not write it in place
  std::vector<std::byte> host_;
  std::array<Upload, kUploads> uploads_;
  std::size_t upload_ = 0;  // the next of them
  std::array<Poll, 2> polls_;
  std::function<void()> bound_;
  std::unique_ptr<StepGroups> groups_;

  void place_tensors(const DeviceGraph& device_graph);
  void write_constants(const DeviceGraph& graph) const;
  std::byte* allocated(std::size_t bytes);
  std::byte* pinned(std::size_t bytes);
  void wait() const noexcept;
  void free() noexcept;
};

}  // namespace txport::core
