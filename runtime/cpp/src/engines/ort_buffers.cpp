#include "engines/ort_buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "bundle/interface.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

// Allocate tensors of zeros, by name.
HostTensors zeros(const std::vector<Tensor>& tensors, const Sizes& sizes) {
  try {
    HostTensors result;
    for (const Tensor& tensor : tensors) result.emplace(tensor.name, HostTensor(tensor, sizes));
    return result;
  } catch (const std::bad_alloc&) {
    const auto length = std::max(sizes.at("source"), sizes.count("target") == 1 ? sizes.at("target") : 0);
    throw ResourceError("not enough memory for a batch of " + std::to_string(sizes.at("batch")) + " rows of " +
                        std::to_string(length) + " tokens: use a smaller batch");
  }
}

template <typename Wanted>
std::vector<Tensor> filtered(const std::vector<Tensor>& tensors, const Wanted& wanted) {
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
  take_ownership(std::calloc(std::max<std::size_t>(bytes_, 1), 1));
}

void HostTensor::take_ownership(void* data) {
  if (data == nullptr) throw std::bad_alloc();
  data_ = {static_cast<std::byte*>(data), [](std::byte* owned) { std::free(owned); }};
}

HostTensor HostTensor::front(std::size_t rows) const {
  HostTensor result = *this;
  result.bytes_ = rows * row_bytes();
  result.shape_[0] = static_cast<std::int64_t>(rows);
  return result;
}

HostTensor HostTensor::like(std::size_t rows) const {
  HostTensor result = front(rows);
  result.take_ownership(std::malloc(std::max<std::size_t>(result.bytes_, 1)));
  return result;
}

Ort::Value HostTensor::value() const {
  static const Ort::MemoryInfo host = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor(host, data_.get(), bytes_, shape_.data(), shape_.size(), type_.onnx);
}

std::size_t HostTensor::token_bytes() const { return row_bytes() / static_cast<std::size_t>(size(1) * size(2)); }

void HostTensor::clear_tokens(std::size_t row, std::int64_t tokens) const {
  const auto heads = static_cast<std::size_t>(size(1));
  const std::size_t head_bytes = row_bytes() / heads;
  const std::size_t bytes = static_cast<std::size_t>(tokens) * token_bytes();
  for (std::size_t head = 0; head < heads; ++head) {
    std::memset(data() + (row * heads + head) * head_bytes, 0, bytes);
  }
}

void HostTensor::copy_tokens(std::size_t row, const HostTensor& from, std::size_t from_row, std::int64_t tokens) const {
  const auto heads = static_cast<std::size_t>(size(1));
  const std::size_t head_bytes = row_bytes() / heads;
  const std::size_t from_bytes = from.row_bytes() / heads;
  const std::size_t bytes = static_cast<std::size_t>(tokens) * token_bytes();
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
  return zeros(encoder_.inputs, {{"batch", batch}, {"source", source}});
}

HostTensors OrtBuffers::encoder_outputs(std::int64_t batch, std::int64_t source) const {
  return zeros(filtered(encoder_.outputs, is_bound), {{"batch", batch}, {"source", source}});
}

HostTensors OrtBuffers::state(std::size_t rows, std::int64_t source, std::int64_t target, bool logits) const {
  const Sizes sizes{{"batch", static_cast<std::int64_t>(rows)}, {"source", source}, {"target", target}};
  HostTensors result = inputs(sizes);
  if (logits) result.merge(outputs(sizes, {kLogits}));
  std::fill_n(result.at("finished").as<bool>(), rows, true);
  std::fill_n(result.at("target_limits").as<std::int64_t>(), rows, 1);
  if (const auto positions = result.find(kCachePositions); positions != result.end()) {
    for (std::int64_t i = 0; i < target; ++i) positions->second.as<std::int64_t>()[i] = i;
  }
  return result;
}

// Tensors of cross-attention are added when the first sentences are placed.
HostTensors OrtBuffers::inputs(const Sizes& sizes) const {
  return zeros(filtered(step_.inputs, [](const Tensor& tensor) { return !is_cross(tensor.name); }), sizes);
}

HostTensors OrtBuffers::outputs(const Sizes& sizes, const std::vector<std::string>& names) const {
  const auto is_named = [&](const Tensor& tensor) {
    return std::find(names.begin(), names.end(), tensor.name) != names.end();
  };
  return zeros(filtered(step_.outputs, is_named), sizes);
}

HostTensors OrtBuffers::cross(std::size_t rows, std::int64_t source) const {
  const auto tensors = filtered(step_.inputs, [](const Tensor& tensor) { return is_cross(tensor.name); });
  return zeros(tensors, {{"batch", static_cast<std::int64_t>(rows)}, {"source", source}});
}

}  // namespace txport::core
