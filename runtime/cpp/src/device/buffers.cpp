#include "device/buffers.hpp"

#include <algorithm>
#include <utility>

#include "errors.hpp"

namespace txport::core {

namespace {

// More would only keep memory: a long text takes a few sizes at a time.
constexpr std::size_t kMostIdle = 8;

std::size_t bytes_of(const std::string& dtype) {
  if (dtype == "float32" || dtype == "int32") return 4;
  if (dtype == "float16") return 2;
  return dtype == "int64" ? 8 : 1;
}

}  // namespace

std::size_t DeviceTensor::count() const {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

DeviceBuffers::DeviceBuffers(const Graph& graph, const std::string& id_type, const Program& program,
                             std::shared_ptr<Device> device, const BatchSizes& sizes)
    : device_(std::move(device)), sizes_(sizes) {
  try {
    for (const Tensor& tensor : graph.inputs) inputs_[tensor.name] = made(tensor, id_type);
    all_ = inputs_;
    for (const auto& [input, output] : graph.aliases) all_[output] = inputs_.at(input);
    for (const Tensor& tensor : graph.outputs) {
      if (all_.count(tensor.name) == 0) all_[tensor.name] = made(tensor, id_type);
    }
    if (const DeviceTensor* tokens = find("token_ids")) ring_ = zeroed(kRingSteps * tokens->bytes());
    program_ = program.bind(*device_, all_, sizes_);
  } catch (...) {
    free();
    throw;
  }
}

DeviceBuffers::~DeviceBuffers() {
  replay_ = nullptr;  // what was recorded names the program's and the buffers' addresses
  program_.reset();
  free();
}

const DeviceTensor* DeviceBuffers::find(const std::string& name) const {
  const auto found = all_.find(name);
  return found == all_.end() ? nullptr : &found->second;
}

const DeviceTensor& DeviceBuffers::at(const std::string& name) const { return all_.at(name); }

DeviceTensor DeviceBuffers::made(const Tensor& tensor, const std::string& id_type) {
  DeviceTensor result;
  result.dtype = tensor.dtype == "int64" ? id_type : tensor.dtype;
  result.item_bytes = bytes_of(result.dtype);
  for (const Size& size : tensor.shape) {
    if (const auto* number = std::get_if<std::int64_t>(&size)) {
      result.shape.push_back(*number);
    } else {
      const auto& name = std::get<std::string>(size);
      result.shape.push_back(name == "batch" ? sizes_.batch : name == "source" ? sizes_.source : sizes_.target);
    }
  }
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

Pool::Pool(Graph graph, std::string id_type, const Program& program, MakeDevice make_device,
           std::function<void(DeviceBuffers&)> prepare)
    : graph_(std::move(graph)),
      id_type_(std::move(id_type)),
      program_(program),
      make_device_(std::move(make_device)),
      prepare_(std::move(prepare)) {}

Pool::Lease Pool::take(const BatchSizes& asked) {
  const BatchSizes sizes = program_.bucket(asked);
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(idle_.begin(), idle_.end(), [&](const auto& item) { return item->sizes() == sizes; });
    if (found != idle_.end()) {
      Lease lease(found->release(), Return{this});
      idle_.erase(found);
      return lease;
    }
  }
  auto fresh = std::make_unique<DeviceBuffers>(graph_, id_type_, program_, make_device_(), sizes);
  if (prepare_) prepare_(*fresh);
  return {fresh.release(), Return{this}};
}

void Pool::give_back(DeviceBuffers* buffers) noexcept {
  std::unique_ptr<DeviceBuffers> surplus(buffers);  // freed after the lock is
  const std::lock_guard lock(mutex_);
  idle_.push_front(std::move(surplus));
  if (idle_.size() <= kMostIdle) return;
  surplus = std::move(idle_.back());
  idle_.pop_back();
}

}  // namespace txport::core
