// Tensors in host memory for ONNX Runtime, and the ones that a decoder state allocates.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bundle/manifest.hpp"
#include "engines/ort_session.hpp"

namespace txport::core {

// Sizes of named dimensions.
using Sizes = std::map<std::string, std::int64_t>;

// One tensor in host memory. Copies share it.
class HostTensor {
 public:
  // Zeros. Throws std::bad_alloc.
  HostTensor(const Tensor& tensor, const Sizes& sizes);

  // The same memory as a tensor of its first rows.
  HostTensor front(std::size_t rows) const;
  // Another tensor of this shape except the number of rows, not initialised. Throws std::bad_alloc.
  HostTensor like(std::size_t rows) const;

  // A view of the whole tensor for ONNX Runtime.
  Ort::Value value() const;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  std::int64_t size(std::size_t axis) const { return shape_[axis]; }
  bool is_half() const { return type_.onnx == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16; }
  // Bytes of one entry of the first axis.
  std::size_t row_bytes() const { return bytes_ / static_cast<std::size_t>(shape_[0]); }
  std::size_t item_bytes() const { return type_.bytes; }

  // The following take tensors [rows, heads, tokens, ...].
  // Zero the first tokens of each head of one row.
  void clear_tokens(std::size_t row, std::int64_t tokens) const;
  // Copy the first tokens of each head of a row of `from`, whose tokens are as large.
  void copy_tokens(std::size_t row, const HostTensor& from, std::size_t from_row, std::int64_t tokens) const;
  // Copy a whole row of a tensor of the same row size.
  void copy_row(std::size_t row, const HostTensor& from, std::size_t from_row) const;

 private:
  Type type_;
  std::vector<std::int64_t> shape_;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte> data_;

  std::size_t token_bytes() const;  // of one head
  void own(void* data);
};

using HostTensors = std::map<std::string, HostTensor>;

// What the encoder returned: cross-attention keys, values and bias by name.
class OrtMemory : public Memory {
 public:
  explicit OrtMemory(HostTensors tensors) : tensors_(std::move(tensors)) {}
  const HostTensors& tensors() const { return tensors_; }

 private:
  HostTensors tensors_;
};

// Allocates the tensors of one bundle's graphs. Every method throws ResourceError: there is not enough memory. Threads
// may share one.
class OrtBuffers {
 public:
  OrtBuffers(Graph encoder, Graph step);

  const Graph& step() const { return step_; }

  // Inputs and outputs of the encoder, all zeros.
  HostTensors encoder_inputs(std::int64_t batch, std::int64_t source) const;
  HostTensors encoder_outputs(std::int64_t batch, std::int64_t source) const;
  // What a decoder state has beside cross-attention's tensors: all rows finished, caches zero.
  HostTensors state(std::size_t rows, std::int64_t source, std::int64_t target, bool logits) const;
  // The inputs of a step except cross-attention's, and its named outputs, all zeros.
  HostTensors inputs(const Sizes& sizes) const;
  HostTensors outputs(const Sizes& sizes, const std::vector<std::string>& names) const;
  // Cross-attention's keys, values, bias and ids, all zeros.
  HostTensors cross(std::size_t rows, std::int64_t source) const;

 private:
  const Graph encoder_;
  const Graph step_;
};

}  // namespace txport::core
