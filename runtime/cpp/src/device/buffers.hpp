// Device memory of one running batch, and its layout. The Python twin is txport.runtime.device.buffers.
//
// Tensors of one kind (all self-attention caches, or all keys and values of cross-attention) share one allocation, with
// one plane per tensor. A single copy or fill then reaches a row in all of them. All state that the host reads is in
// one block.
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

// Maximum number of steps of a group. Their tokens are collected on the device and downloaded together.
inline constexpr std::size_t kRingSteps = 64;

// Round a size up to the alignment of tensors that a library binds.
std::size_t aligned(std::size_t bytes);

// Addresses and strides of consecutive tensors: `[rows, heads, length, head_dim]`, or ids `[rows, length]`.
struct Stack {
  Stack() = default;
  // Stack the tensors whose names `belongs` selects, sorted by name.
  Stack(const DeviceTensors& tensors, const std::function<bool(const std::string&)>& belongs);

  std::byte* start = nullptr;
  std::vector<std::string> names;
  std::size_t heads = 0;
  std::size_t line = 0;  // bytes per head
  std::size_t row = 0;   // bytes per row, all heads
  std::size_t plane =
      0;  // bytes from one tensor to the next; a multiple of `line`, which copies of several planes require

  std::size_t bytes() const { return names.size() * plane; }
  // Place the stack at an address with `bytes()` of memory, and set the addresses of the tensors.
  void put(std::byte* address, DeviceTensors& tensors);
  // Return the region that begins at row `first` in all tensors, with one line per head.
  Buffer at(std::size_t first) const { return {start + first * row, line, plane}; }
  // Set `count` rows in all tensors to zero.
  void clear(Device& device, std::size_t first, std::size_t count) const {
    device.fill({start + first * row, plane}, 0, count * row, names.size());
  }
};

// Stack the outputs of the encoder except the bias: keys and values of cross-attention, and source ids if the model
// copies.
std::vector<Stack> source_stacks(const DeviceTensors& tensors);
// Return whether a tensor is part of these stacks.
bool is_of_source(const std::string& name);

// Offsets of the small tensors of a step in their block. Outputs come first, so that one copy downloads all of them.
struct StateLayout {
  StateLayout(std::size_t rows, const std::string& id_type);

  std::size_t rows;
  std::size_t id_bytes;
  // Offsets.
  std::size_t token_ids = 0;
  std::size_t positions;
  std::size_t finished;
  std::size_t target_limits;
  std::size_t written;  // bytes that a step writes, at the beginning of the block
  std::size_t bytes;    // size of all tensors; the tokens of kRingSteps steps (the ring) follow

  std::size_t step_bytes() const { return rows * id_bytes; }
  std::size_t bytes_with(std::size_t steps) const { return bytes + steps * step_bytes(); }
  // Read or write an id in a copy of the block, in the array that begins at `offset`.
  std::int64_t id(const std::byte* block, std::size_t offset, std::size_t index) const;
  void set_id(std::byte* block, std::size_t offset, std::size_t index, std::int64_t id) const;
};

// The parts of the block of small tensors that the host uploads and downloads.
struct Exchange {
  // For ordinary steps: the whole block is uploaded. After a group of steps, it is downloaded together with their
  // tokens.
  explicit Exchange(const StateLayout& layout);
  // For steps of beam search: inputs are uploaded before each step, and outputs are downloaded after it.
  explicit Exchange(const DeviceTensors& tensors);

  std::map<std::string, std::size_t> offsets;  // by name of the tensor
  std::size_t uploaded = 0;                    // number of bytes to upload, from the beginning
  std::size_t download_start = 0;              // offset of the bytes to download
  std::size_t bytes = 0;                       // size of the block
};

// A decoder step that runs on a device.
struct DeviceGraph {
  Graph graph;
  std::string id_type;  // int32 or int64
  const Program& program;

  // The graph of a step of these sizes.
  const Graph& of(const StepSizes& sizes) const { return sizes.beams == 1 ? graph : *program.beam_graph(sizes.beams); }
};

// Return the size of device memory for buffers of these sizes.
std::size_t bytes_needed(const DeviceGraph& graph, const StepSizes& sizes);

// The memory of one batch, with its bound step.
class DeviceBuffers {
 public:
  // Outputs that the host downloads: for ordinary steps, a copy of the block followed by the tokens of each step of a
  // group; for beam search, the outputs of one step.
  struct Poll {
    std::byte* block = nullptr;  // page-locked
    std::size_t steps = 0;
    std::unique_ptr<Event> done;
  };

  // Throws ResourceError: device memory does not suffice (nothing stays allocated); EngineError: the library or the
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
  // Return the mask of cross-attention from this row on. It is added to scores.
  Buffer bias(std::size_t row) const;
  // Return a mask of all positions. It is copied over `bias` before the mask of a new sentence, which may be shorter.
  Buffer masked() const { return {masked_}; }
  // Return the offset of a small tensor in the uploaded block or, for outputs, in the block of a poll.
  std::size_t offset(const std::string& name) const;
  // The host's copy of the block. It equals the device's block while no step is in flight.
  std::byte* host() { return host_.data(); }
  const std::byte* host() const { return host_.data(); }
  // There are two polls, so that the host can read one group while the device computes the next.
  std::array<Poll, 2>& polls() { return polls_; }

  // Mark every row as finished, as if it had never been placed.
  void reset(std::int64_t pad);
  // Upload ids, positions, limits and flags. The host's copy may change immediately afterwards.
  void upload_state();
  // Enqueue one step of the library and, for ordinary steps, a copy of its tokens to an entry of the ring.
  void step(std::size_t ring_index) const;
  // Set the object that launches groups of steps.
  void set_groups(std::unique_ptr<StepGroups> groups) { groups_ = std::move(groups); }
  // Enqueue `count` steps and the download of their outputs to `poll`.
  void launch(std::size_t count, Poll& poll) const;

 private:
  // Buffers for uploads, which the device reads asynchronously. Up to kUploads uploads may be pending. Three actions
  // upload the state without a step in between: creating buffers, moving rows into them, and placing sentences there.
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
  std::byte* shadow_state_ = nullptr;  // output of the state if a step must not write it in place; else null
  std::vector<std::byte> host_;
  std::array<Upload, kUploads> uploads_;
  std::size_t upload_ = 0;  // index of the next upload buffer
  std::array<Poll, 2> polls_;
  std::function<void()> run_step_;
  std::unique_ptr<StepGroups> groups_;

  void place_tensors(const DeviceGraph& device_graph);
  void write_first_contents(const DeviceGraph& graph) const;
  std::byte* allocate_device(std::size_t bytes);
  std::byte* allocate_pinned(std::size_t bytes);
  void wait() const noexcept;
  void free() noexcept;
};

}  // namespace txport::core
