#include "device/buffers.hpp"

#include <algorithm>
#include <utility>

#include "bundle/interface.hpp"

namespace txport::core {

namespace {

std::size_t bytes_of(const std::string& dtype) {
  if (dtype == "float32" || dtype == "int32") return 4;
  if (dtype == "float16") return 2;
  return dtype == "int64" ? 8 : 1;
}

// A tensor that is not allocated yet.
DeviceTensor described(const Tensor& tensor, const std::string& id_type, const StepSizes& sizes) {
  DeviceTensor result;
  result.dtype = tensor.dtype == "int64" ? id_type : tensor.dtype;
  result.item_bytes = bytes_of(result.dtype);
  for (const Size& size : tensor.shape) {
    if (const auto* number = std::get_if<std::int64_t>(&size)) {
      result.shape.push_back(*number);
    } else {
      const auto& name = std::get<std::string>(size);
      result.shape.push_back(name == "batch" ? sizes.batch : name == "source" ? sizes.source : sizes.target);
    }
  }
  return result;
}

// Outputs that are bound and do not share their input's memory.
std::vector<Tensor> own_outputs(const Graph& graph) {
  std::vector<Tensor> outputs;
  for (const Tensor& tensor : graph.outputs) {
    bool own = is_bound(tensor);
    for (const auto& [input, output] : graph.aliases) own = own && output != tensor.name;
    if (own) outputs.push_back(tensor);
  }
  return outputs;
}

}  // namespace

std::int64_t source_bucket(std::int64_t source, std::int64_t most) {
  std::int64_t width = 32;
  while (width < source) width *= 2;
  return std::min(width, most);
}

std::size_t DeviceTensor::count() const {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

std::size_t bytes_needed(const DeviceGraph& graph, const StepSizes& sizes) {
  std::size_t bytes = 0;
  const auto add = [&](const Tensor& tensor) {
    const std::size_t more = described(tensor, graph.id_type, sizes).bytes();
    bytes += tensor.name == "token_ids" ? (1 + kRingSteps) * more : more;
  };
  for (const Tensor& tensor : graph.graph.inputs) add(tensor);
  for (const Tensor& tensor : own_outputs(graph.graph)) add(tensor);
  return bytes;
}

DeviceBuffers::DeviceBuffers(const DeviceGraph& graph, std::shared_ptr<Device> device, const StepSizes& sizes)
    : graph_(graph), device_(std::move(device)), sizes_(sizes) {
  try {
    for (const Tensor& tensor : graph.graph.inputs) inputs_[tensor.name] = allocated(tensor);
    all_ = inputs_;
    for (const auto& [input, output] : graph.graph.aliases) all_[output] = inputs_.at(input);
    for (const Tensor& tensor : own_outputs(graph.graph)) all_[tensor.name] = allocated(tensor);
    if (const DeviceTensor* tokens = find("token_ids")) ring_ = zeroed(kRingSteps * tokens->bytes());
    program_ = graph.program.bind(*device_, all_, sizes_);
  } catch (...) {
    free();
    throw;
  }
}

DeviceBuffers::~DeviceBuffers() {
  replay_ = nullptr;  // what was captured refers to the program and to the buffers
  program_.reset();
  free();
}

const DeviceTensor* DeviceBuffers::find(const std::string& name) const {
  const auto found = all_.find(name);
  return found == all_.end() ? nullptr : &found->second;
}

const DeviceTensor& DeviceBuffers::at(const std::string& name) const { return all_.at(name); }

DeviceTensor DeviceBuffers::allocated(const Tensor& tensor) {
  DeviceTensor result = described(tensor, graph_.id_type, sizes_);
  result.address = zeroed(result.bytes());
  return result;
}

std::byte* DeviceBuffers::zeroed(std::size_t bytes) {
  allocated_.push_back(device_->allocate(bytes));
  device_->fill(allocated_.back(), 0, 1, bytes);
  return allocated_.back();
}

void DeviceBuffers::free() noexcept {
  for (std::byte* address : allocated_) device_->free(address);
}

}  // namespace txport::core
