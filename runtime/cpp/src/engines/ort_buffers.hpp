// Tensors in host memory for ONNX Runtime, and the buffers of decoder states.
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

// A tensor in host memory. Copies share the memory.
class HostTensor {
 public:
  // Allocate a tensor of zeros. Throws std::bad_alloc.
  HostTensor(const Tensor& tensor, const Sizes& sizes);

  // Return a view of the first rows.
  HostTensor front(std::size_t rows) const;
  // Allocate an uninitialised tensor of this shape with another number of rows. Throws std::bad_alloc.
  HostTensor like(std::size_t rows) const;

  // Return a view of the whole tensor for ONNX Runtime.
  Ort::Value value() const;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  std::int64_t size(std::size_t axis) const { return shape_[axis]; }
  bool is_half() const { return type_.onnx == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16; }
  // Return the size of one entry of the first axis in bytes.
  std::size_t row_bytes() const { return bytes_ / static_cast<std::size_t>(shape_[0]); }
  std::size_t item_bytes() const { return type_.bytes; }

  // These functions are for tensors [rows, heads, tokens, ...]. Set the first tokens of each head of one row to zero.
  void clear_tokens(std::size_t row, std::int64_t tokens) const;
  // Copy the first tokens of each head from a row of `from`, whose tokens have the same size.
  void copy_tokens(std::size_t row, const HostTensor& from, std::size_t from_row, std::int64_t tokens) const;
  // Copy a row from a tensor with the same row size.
  void copy_row(std::size_t row, const HostTensor& from, std::size_t from_row) const;

 private:
  Type type_;
  std::vector<std::int64_t> shape_;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte> data_;

  std::size_t token_bytes() const;  // size of a token of one head
  void take_ownership(void* data);
};

using HostTensors = std::map<std::string, HostTensor>;

// Encoder output: keys, values and bias of cross-attention, by name.
class OrtMemory : public Memory {
 public:
  explicit OrtMemory(HostTensors tensors) : tensors_(std::move(tensors)) {}
  const HostTensors& tensors() const { return tensors_; }

 private:
  HostTensors tensors_;
};

// Allocates the tensors of a bundle's graphs. Methods throw ResourceError if memory does not suffice. Threads may share
// one object.
class OrtBuffers {
 public:
  OrtBuffers(Graph encoder, Graph step);

  const Graph& step() const { return step_; }

  // Inputs and outputs of the encoder, all zeros.
  HostTensors encoder_inputs(std::int64_t batch, std::int64_t source) const;
  HostTensors encoder_outputs(std::int64_t batch, std::int64_t source) const;
  // Tensors of a decoder state except those of cross-attention. All rows are finished, caches are zero.
  HostTensors state(std::size_t rows, std::int64_t source, std::int64_t target, bool logits) const;
  // Inputs of a step except those of cross-attention, and the outputs with the given names, all zeros.
  HostTensors inputs(const Sizes& sizes) const;
  HostTensors outputs(const Sizes& sizes, const std::vector<std::string>& names) const;
  // Keys, values, bias and ids of cross-attention, all zeros.
  HostTensors cross(std::size_t rows, std::int64_t source) const;

 private:
  const Graph encoder_;
  const Graph step_;
};

}  // namespace txport::core
