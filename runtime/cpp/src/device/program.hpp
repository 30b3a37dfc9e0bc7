// What a library adds to the device layer: one program for each graph, bound to tensors in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace txport::core {

// Rows, source tokens and cache length: of a request, or of the buffers that serve it.
struct StepSizes {
  std::int64_t batch = 0;
  std::int64_t source = 0;
  std::int64_t target = 0;

  bool operator==(const StepSizes& other) const {
    return batch == other.batch && source == other.source && target == other.target;
  }
};

// The width of source buffers: the smallest power of two that holds `source`, from 32, at most `most`.
std::int64_t source_bucket(std::int64_t source, std::int64_t most);

// One tensor in device memory. `shape` is that of the largest batch that it holds.
struct DeviceTensor {
  std::byte* address = nullptr;
  std::string dtype;  // as in the manifest, except ids: int32 or int64
  std::vector<std::int64_t> shape;
  std::size_t item_bytes = 0;

  std::size_t count() const;
  std::size_t bytes() const { return count() * item_bytes; }
  // Bytes of one entry of the first axis.
  std::size_t row_bytes() const { return bytes() / static_cast<std::size_t>(shape[0]); }
};

// By name, bound outputs too; an output that is aliased has the address of its input.
using DeviceTensors = std::map<std::string, DeviceTensor>;

// A graph with its tensors bound, ready to run on one stream.
class BoundProgram {
 public:
  BoundProgram() = default;
  virtual ~BoundProgram() = default;
  BoundProgram(const BoundProgram&) = delete;
  BoundProgram& operator=(const BoundProgram&) = delete;

  // Enqueue one run on the first `batch` rows of `source` tokens, which are contiguous in the encoder's tensors. A step
  // always runs on all of its rows. Throws EngineError: the library failed. ResourceError: the GPU's memory is
  // exhausted.
  virtual void run(const StepSizes& sizes) = 0;
};

// One graph of a bundle, loaded by a library. Threads may share one.
class Program {
 public:
  Program() = default;
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The sizes of the buffers that serve a batch. Throws InputError: the library has none that large.
  virtual StepSizes bucket(const StepSizes& asked) const = 0;
  virtual std::unique_ptr<BoundProgram> bind(Device& device, const DeviceTensors& tensors,
                                             const StepSizes& bucket) const = 0;
  // Whether a device may capture a run and replay it.
  virtual bool can_be_captured() const = 0;
};

}  // namespace txport::core
