#include "engines/ort_buffers.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "bundle/interface.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

// Each tensor begins at a multiple of this many bytes: a cache line of the processor.
constexpr std::size_t kAligned = 64;

// Tensors by name, in one block, and whether they hold zeros.
struct Allocated {
  HostTensors tensors;
  bool zero = true;
};

Allocated allocate(const std::shared_ptr<HostMemory>& memory, const std::vector<Tensor>& tensors, const Sizes& sizes) {
  Allocated result;
  try {
    std::size_t end = 0;
    std::map<std::string, std::size_t> starts;
    for (const Tensor& tensor : tensors) {
      const HostTensor& made = result.tensors.emplace(tensor.name, HostTensor(tensor, sizes)).first->second;
      starts[tensor.name] = end;
      if (made.bytes() > PTRDIFF_MAX - kAligned - end) throw std::bad_alloc();
      end += (made.bytes() + kAligned - 1) / kAligned * kAligned;
    }
    const SharedBlock block = share_block(memory, end);
    for (auto& [name, tensor] : result.tensors) tensor.place_in(block.data, starts.at(name));
    result.zero = block.zero;
  } catch (const std::bad_alloc&) {
    const auto length = std::max(sizes.at("source"), sizes.count("target") == 1 ? sizes.at("target") : 0);
    throw ResourceError("not enough memory for a batch of " + std::to_string(sizes.at("batch")) + " rows of " +
                        std::to_string(length) + " tokens: use a smaller batch");
  }
  return result;
}

template <typename Wanted>
std::vector<Tensor> those(const std::vector<Tensor>& tensors, const Wanted& wanted) {
  std::vector<Tensor> result;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(result), wanted);
  return result;
}

}  // namespace

HostTensor::HostTensor(const Tensor& tensor, const Sizes& sizes) : type_(type_of(tensor.dtype)) {
  std::size_t count = 1;
  for (const Size& size : tensor.shape) {
    const auto* number = std::get_if<std::int64_t>(&size);
    shape_.push_back(number != nullptr ? *number : sizes.at(std::get<std::string>(size)));
    const auto extent = static_cast<std::size_t>(shape_.back());
    if (extent != 0 && count > PTRDIFF_MAX / type_.bytes / extent) throw std::bad_alloc();
    count *= extent;
  }
  bytes_ = count * type_.bytes;
}

HostTensor HostTensor::front(std::size_t rows) const {
  HostTensor result = *this;
  result.bytes_ = rows * row_bytes();
  result.shape_[0] = static_cast<std::int64_t>(rows);
  return result;
}

Ort::Value HostTensor::value() const {
  static const Ort::MemoryInfo host = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor(host, data_.get(), bytes_, shape_.data(), shape_.size(), type_.onnx);
}

void HostTensor::clear_tokens(std::size_t row, std::int64_t tokens) const {
  const auto heads = static_cast<std::size_t>(size(1));
  const std::size_t head_bytes = row_bytes() / heads;
  const std::size_t bytes = static_cast<std::size_t>(tokens * size(3)) * item_bytes();
  for (std::size_t head = 0; head < heads; ++head) {
    std::memset(data() + (row * heads + head) * head_bytes, 0, bytes);
  }
}

void HostTensor::copy_tokens(std::size_t row, const HostTensor& from, std::size_t from_row, std::int64_t tokens) const {
  const auto heads = static_cast<std::size_t>(size(1));
  const std::size_t head_bytes = row_bytes() / heads;
  const std::size_t from_bytes = from.row_bytes() / heads;
  const std::size_t bytes = static_cast<std::size_t>(tokens * size(3)) * item_bytes();
  for (std::size_t head = 0; head < heads; ++head) {
    std::memcpy(data() + (row * heads + head) * head_bytes, from.data() + (from_row * heads + head) * from_bytes,
                bytes);
  }
}

void HostTensor::copy_row(std::size_t row, const HostTensor& from, std::size_t from_row) const {
  std::memcpy(data() + row * row_bytes(), from.data() + from_row * row_bytes(), row_bytes());
}

OrtBuffers::OrtBuffers(Graph encoder, Graph step) : encoder_(std::move(encoder)), step_(std::move(step)) {}

HostTensors OrtBuffers::encoder_inputs(std::int64_t batch, std::int64_t source) const {
  return allocate(memory_, encoder_.inputs, {{"batch", batch}, {"source", source}}).tensors;
}

HostTensors OrtBuffers::encoder_outputs(std::int64_t batch, std::int64_t source) const {
  return allocate(memory_, those(encoder_.outputs, is_bound), {{"batch", batch}, {"source", source}}).tensors;
}

HostTensors OrtBuffers::state(std::size_t rows, std::int64_t source, std::int64_t target, bool logits) const {
  const Sizes sizes{{"batch", static_cast<std::int64_t>(rows)}, {"source", source}, {"target", target}};
  // Cross-attention's come with the first sentences.
  auto tensors = those(step_.inputs, [](const Tensor& tensor) { return !is_cross(tensor.name); });
  if (logits) {
    for (const Tensor& tensor : those(step_.outputs, [](const Tensor& output) { return output.name == kLogits; })) {
      tensors.push_back(tensor);
    }
  }
  Allocated allocated = allocate(memory_, tensors, sizes);
  for (const auto& [name, tensor] : allocated.tensors) {
    if (!allocated.zero) std::memset(tensor.data(), 0, tensor.bytes());
  }
  std::fill_n(allocated.tensors.at("finished").as<bool>(), rows, true);
  std::fill_n(allocated.tensors.at("target_limits").as<std::int64_t>(), rows, 1);
  if (const auto found = allocated.tensors.find(kCachePositions); found != allocated.tensors.end()) {
    for (std::int64_t i = 0; i < target; ++i) found->second.as<std::int64_t>()[i] = i;
  }
  return std::move(allocated.tensors);
}

HostTensors OrtBuffers::cross(std::size_t rows, std::int64_t source) const {
  const auto tensors = those(step_.inputs, [](const Tensor& tensor) { return is_cross(tensor.name); });
  auto made = allocate(memory_, tensors, {{"batch", static_cast<std::int64_t>(rows)}, {"source", source}}).tensors;
  // A step looks them up, also those of rows that never get a sentence.
  if (const auto ids = made.find(kCrossIds); ids != made.end()) std::memset(ids->second.data(), 0, ids->second.bytes());
  return made;
}

}  // namespace txport::core
