#include "device/buffers.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "bundle/interface.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::size_t kAlignment = 256;

// Inputs and outputs of a beam search step, except caches, logits and encoder outputs.
constexpr std::array kInputs{"token_ids", "positions", "rows", "first_slots", kAncestors};
constexpr std::array kOutputs{kTopIds, kTopLogits, kNormaliser};

Exchange exchange_of(const StepSizes& sizes, const StateLayout& layout, const DeviceTensors& tensors) {
  return sizes.beams == 1 ? Exchange(layout) : Exchange(tensors);
}

// Return whether a library must not overwrite the inputs of a step with its outputs.
bool needs_shadow_state(const Program& program, const StepSizes& sizes) {
  return sizes.beams == 1 && !program.runs_in_order();
}

// Return the size of the block including the shadow state.
std::size_t state_bytes(const Exchange& exchange, const StateLayout& layout, bool needs_shadow) {
  return aligned(exchange.bytes) + (needs_shadow ? layout.written : 0);
}

bool is_key_value_cache(const std::string& name) { return is_cache(name) && name != kAncestors; }

// Return whether a tensor has a separate allocation.
bool has_own_allocation(const Graph& graph, const Exchange& exchange, const std::string& name) {
  const auto aliased = std::any_of(graph.aliases.begin(), graph.aliases.end(),
                                   [&](const auto& alias) { return alias.first == name || alias.second == name; });
  return !aliased && !is_of_source(name) && exchange.offsets.count(name) == 0;
}

// Return a bias tensor in which all positions of all rows are masked.
std::vector<std::byte> masked_bias(const DeviceTensor& bias) {
  std::vector<std::byte> bytes(bias.bytes());
  for (std::size_t at = 0; at < bytes.size(); at += bias.item_bytes) {
    const void* item = bias.item_bytes == sizeof(float) ? static_cast<const void*>(&kMasked) : &kMaskedHalf;
    std::memcpy(&bytes[at], item, bias.item_bytes);
  }
  return bytes;
}

}  // namespace

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Stack::Stack(const DeviceTensors& tensors, const std::function<bool(const std::string&)>& belongs) {
  for (const auto& [name, tensor] : tensors) {
    if (!belongs(name)) continue;
    names.push_back(name);
    heads = static_cast<std::size_t>(tensor.shape[1]);
    row = tensor.row_bytes();
    line = row / heads;
    const std::size_t unit = std::lcm(kAlignment, std::max<std::size_t>(line, 1));
    plane = (tensor.bytes() + unit - 1) / unit * unit;
  }
}

void Stack::put(std::byte* address, DeviceTensors& tensors) {
  start = address;
  for (std::size_t i = 0; i < names.size(); ++i) tensors.at(names[i]).address = start + i * plane;
}

std::vector<Stack> source_stacks(const DeviceTensors& tensors) {
  std::vector<Stack> stacks{{tensors, [](const std::string& name) { return is_of_source(name) && name != kCrossIds; }}};
  if (tensors.count(kCrossIds) == 1) {
    stacks.emplace_back(tensors, [](const std::string& name) { return name == kCrossIds; });
  }
  return stacks;
}

bool is_of_source(const std::string& name) { return is_cross(name) && name != kCrossBias; }

StateLayout::StateLayout(std::size_t rows, const std::string& id_type)
    : rows(rows),
      id_bytes(id_type == "int64" ? sizeof(std::int64_t) : sizeof(std::int32_t)),
      positions(aligned(rows * id_bytes)),
      finished(2 * positions),
      target_limits(finished + aligned(rows)),
      written(finished + rows),
      bytes(target_limits + positions) {}

std::int64_t StateLayout::id(const std::byte* block, std::size_t offset, std::size_t index) const {
  std::int64_t wide = 0;
  std::int32_t narrow = 0;
  const std::byte* from = block + offset + index * id_bytes;
  if (id_bytes == sizeof(wide)) return std::memcpy(&wide, from, sizeof(wide)), wide;
  return std::memcpy(&narrow, from, sizeof(narrow)), narrow;
}

void StateLayout::set_id(std::byte* block, std::size_t offset, std::size_t index, std::int64_t id) const {
  const auto narrow = static_cast<std::int32_t>(id);
  const void* from = id_bytes == sizeof(id) ? static_cast<const void*>(&id) : &narrow;
  std::memcpy(block + offset + index * id_bytes, from, id_bytes);
}

Exchange::Exchange(const StateLayout& layout)
    : offsets{{"token_ids", layout.token_ids},
              {"positions", layout.positions},
              {"finished", layout.finished},
              {"target_limits", layout.target_limits}},
      uploaded(layout.bytes),
      bytes(layout.bytes_with(kRingSteps)) {}

Exchange::Exchange(const DeviceTensors& tensors) {
  const auto add = [&](const char* name) {
    offsets[name] = bytes;
    bytes += aligned(tensors.at(name).bytes());
  };
  for (const char* name : kInputs) add(name);
  uploaded = download_start = bytes;
  for (const char* name : kOutputs) add(name);
}

std::size_t bytes_needed(const DeviceGraph& device_graph, const StepSizes& sizes) {
  const Graph& graph = device_graph.of(sizes);
  const DeviceTensors tensors = tensors_of(graph, device_graph.id_type, sizes);
  const StateLayout layout(static_cast<std::size_t>(sizes.batch), device_graph.id_type);
  const Exchange exchange = exchange_of(sizes, layout, tensors);
  std::size_t bytes = state_bytes(exchange, layout, needs_shadow_state(device_graph.program, sizes));
  bytes += tensors.at(kCrossBias).bytes();  // the copy that is completely masked
  bytes += Stack(tensors, is_key_value_cache).bytes();
  for (const Stack& stack : source_stacks(tensors)) bytes += stack.bytes();
  for (const auto& [name, tensor] : tensors) bytes += has_own_allocation(graph, exchange, name) ? tensor.bytes() : 0;
  return bytes;
}

DeviceBuffers::DeviceBuffers(const DeviceGraph& graph, Device& device, const StepSizes& sizes)
    : device_(device),
      sizes_(sizes),
      layout_(static_cast<std::size_t>(sizes.batch), graph.id_type),
      tensors_(tensors_of(graph.of(sizes), graph.id_type, sizes)),
      exchange_(exchange_of(sizes, layout_, tensors_)),
      caches_(tensors_, is_key_value_cache),
      sources_(source_stacks(tensors_)),
      host_(exchange_.uploaded) {
  try {
    place_tensors(graph);
    for (Upload& upload : uploads_) {
      upload.block = allocate_pinned(exchange_.uploaded);
      upload.done = device_.create_event();
    }
    for (Poll& poll : polls_) {
      poll.block = allocate_pinned(exchange_.bytes - exchange_.download_start);
      poll.done = device_.create_event();
    }
    write_first_contents(graph);
    run_step_ = graph.program.bind(tensors_, sizes_);
  } catch (...) {
    free();
    throw;
  }
}

DeviceBuffers::~DeviceBuffers() { free(); }

void DeviceBuffers::place_tensors(const DeviceGraph& device_graph) {
  const Graph& graph = device_graph.of(sizes_);
  const bool needs_shadow = needs_shadow_state(device_graph.program, sizes_);
  caches_.put(allocate_device(caches_.bytes()), tensors_);
  for (Stack& stack : sources_) stack.put(allocate_device(stack.bytes()), tensors_);
  state_ = allocate_device(state_bytes(exchange_, layout_, needs_shadow));
  for (const auto& [name, offset] : exchange_.offsets) tensors_.at(name).address = state_ + offset;
  for (auto& [name, tensor] : tensors_) {
    if (has_own_allocation(graph, exchange_, name)) tensor.address = allocate_device(tensor.bytes());
  }
  masked_ = allocate_device(at(kCrossBias).bytes());
  for (const auto& [input, output] : graph.aliases) tensors_.at(output).address = at(input).address;
  if (!needs_shadow) return;
  // The library may compute cheap values twice and read an input again after it was overwritten. Caches may still be
  // updated in place: only the write to the cache reads its input, and repeating the write has the same result.
  shadow_state_ = state_ + aligned(exchange_.bytes);
  for (const auto& [input, output] : graph.aliases) {
    if (!is_cache(input)) tensors_.at(output).address = shadow_state_ + (at(input).address - state_);
  }
}

// Write zeros to caches, cross keys and values, and ids; then masks and the constant cache positions. Uninitialised
// memory may contain NaN, which would pass the mask, and ids beyond the vocabulary.
void DeviceBuffers::write_first_contents(const DeviceGraph& graph) const {
  caches_.clear(device_, 0, layout_.rows);
  for (const Stack& stack : sources_) stack.clear(device_, 0, layout_.rows);
  const std::vector<std::byte> masked = masked_bias(at(kCrossBias));
  device_.upload(at(kCrossBias).address, masked.data(), masked.size());
  device_.upload(masked_, masked.data(), masked.size());
  const auto positions = tensors_.find(sizes_.beams == 1 ? kCachePositions : kSlotPositions);
  if (positions == tensors_.end()) return;
  const StateLayout one_row(positions->second.count(), graph.id_type);
  std::vector<std::byte> counted(positions->second.bytes());
  for (std::size_t i = 0; i < one_row.rows; ++i) {
    one_row.set_id(counted.data(), 0, i, static_cast<std::int64_t>(i) / sizes_.beams);
  }
  device_.upload(positions->second.address, counted.data(), counted.size());
}

std::size_t DeviceBuffers::offset(const std::string& name) const {
  const std::size_t offset = exchange_.offsets.at(name);
  return offset < exchange_.uploaded ? offset : offset - exchange_.download_start;
}

Buffer DeviceBuffers::bias(std::size_t row) const {
  const DeviceTensor& tensor = at(kCrossBias);
  return {tensor.address + row * tensor.row_bytes(), tensor.row_bytes()};
}

void DeviceBuffers::reset(std::int64_t pad) {
  if (sizes_.beams > 1) {  // other values may stay: zeros or those of an earlier batch
    for (std::int64_t row = 0; row < sizes_.of("rows"); ++row) {
      layout_.set_id(host(), offset("rows"), static_cast<std::size_t>(row), row);
    }
    return upload_state();
  }
  for (std::size_t row = 0; row < layout_.rows; ++row) {
    layout_.set_id(host(), layout_.token_ids, row, pad);
    layout_.set_id(host(), layout_.positions, row, 0);
    layout_.set_id(host(), layout_.target_limits, row, 1);
    host_[layout_.finished + row] = std::byte{1};
  }
  upload_state();
}

void DeviceBuffers::upload_state() {
  Upload& upload = uploads_[upload_++ % kUploads];
  upload.done->synchronize();
  std::memcpy(upload.block, host(), exchange_.uploaded);
  device_.upload(state_, upload.block, exchange_.uploaded);
  upload.done->record();
}

void DeviceBuffers::step(std::size_t ring_index) const {
  run_step_();
  if (sizes_.beams > 1) return;  // the host chooses tokens after each step
  if (shadow_state_ != nullptr) device_.copy({state_}, {shadow_state_}, layout_.written);
  device_.copy({state_ + layout_.bytes_with(ring_index)}, {state_ + layout_.token_ids}, layout_.step_bytes());
}

void DeviceBuffers::launch(std::size_t count, Poll& poll) const {
  groups_->launch(count);
  poll.steps = count;
  const std::size_t bytes = sizes_.beams == 1 ? layout_.bytes_with(count) : exchange_.bytes - exchange_.download_start;
  device_.download(poll.block, state_ + exchange_.download_start, bytes);
  poll.done->record();
}

std::byte* DeviceBuffers::allocate_device(std::size_t bytes) {
  allocated_.push_back(device_.allocate(bytes));
  return allocated_.back();
}

std::byte* DeviceBuffers::allocate_pinned(std::size_t bytes) {
  pinned_.push_back(device_.allocate_host(bytes));
  return pinned_.back();
}

// Wait for the work of the last batch, which may have ended while the device was still busy.
void DeviceBuffers::wait() const noexcept {
  try {
    for (const Upload& upload : uploads_) {
      if (upload.done != nullptr) upload.done->synchronize();
    }
    for (const Poll& poll : polls_) {
      if (poll.done != nullptr) poll.done->synchronize();
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a failed device is not busy
  }
}

void DeviceBuffers::free() noexcept {
  wait();
  groups_ = nullptr;  // captured groups refer to bound steps, which refer to the buffers
  run_step_ = nullptr;
  for (std::byte* address : allocated_) device_.free(address);
  for (std::byte* address : pinned_) device_.free_host(address);
}

}  // namespace txport::core
