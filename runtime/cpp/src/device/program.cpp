#include "device/program.hpp"

#include <algorithm>

#include "bundle/interface.hpp"

namespace txport::core {

namespace {

std::size_t bytes_of(const std::string& dtype) {
  if (dtype == "float32" || dtype == "int32") return 4;
  if (dtype == "float16") return 2;
  return dtype == "int64" ? 8 : 1;
}

DeviceTensor described(const Tensor& tensor, const std::string& id_type, const StepSizes& sizes) {
  DeviceTensor result;
  result.dtype = tensor.dtype == "int64" ? id_type : tensor.dtype;
  result.item_bytes = bytes_of(result.dtype);
  for (const Size& size : tensor.shape) {
    if (const auto* number = std::get_if<std::int64_t>(&size)) {
      result.shape.push_back(*number);
    } else {
      result.shape.push_back(sizes.of(std::get<std::string>(size)));
    }
  }
  return result;
}

}  // namespace

std::int64_t StepSizes::of(const std::string& dimension) const {
  if (dimension == "batch") return batch;
  if (dimension == "source") return source;
  if (dimension == "beam") return beams;
  if (dimension == "rows") return batch * beams;
  return dimension == "slots" ? target * beams : target;
}

std::int64_t source_bucket(std::int64_t source, std::int64_t maximum) {
  std::int64_t width = 32;
  while (width < source) width *= 2;
  return std::min(width, maximum);
}

std::size_t DeviceTensor::count() const {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

DeviceTensors tensors_of(const Graph& graph, const std::string& id_type, const StepSizes& sizes) {
  DeviceTensors tensors;
  for (const Tensor& tensor : graph.inputs) tensors[tensor.name] = described(tensor, id_type, sizes);
  for (const Tensor& tensor : graph.outputs) {
    if (is_bound(tensor)) tensors[tensor.name] = described(tensor, id_type, sizes);
  }
  return tensors;
}

}  // namespace txport::core
