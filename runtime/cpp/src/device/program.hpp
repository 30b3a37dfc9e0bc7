// Interface of libraries in the device layer: they run the graphs of a bundle on tensors in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bundle/manifest.hpp"
#include "device/device.hpp"

namespace txport::core {

// Sizes of a request or of buffers: entries of caches and cross-attention, source tokens, and cache length.
struct StepSizes {
  std::int64_t batch = 0;  // rows or, with several beams, sentences
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::int64_t beams = 1;  // rows that share an entry; more than 1 for the beam search graph

  bool operator==(const StepSizes& other) const {
    return batch == other.batch && source == other.source && target == other.target && beams == other.beams;
  }
  // Return the size of a named dimension of a step.
  std::int64_t of(const std::string& dimension) const;
};

// Return the length of source buffers: the smallest power of two that is at least `source` and 32, but at most
// `maximum`.
std::int64_t source_bucket(std::int64_t source, std::int64_t maximum);

// A tensor in device memory.
struct DeviceTensor {
  std::byte* address = nullptr;
  std::string dtype;  // as in the manifest, but ids may be int32
  std::vector<std::int64_t> shape;
  std::size_t item_bytes = 0;

  std::size_t count() const;
  std::size_t bytes() const { return count() * item_bytes; }
  // Return the size of one entry of the first axis in bytes.
  std::size_t row_bytes() const { return bytes() / static_cast<std::size_t>(shape[0]); }
};

// Inputs and bound outputs of a graph, by name.
using DeviceTensors = std::map<std::string, DeviceTensor>;

// Return the tensors of a graph with these sizes, without addresses. `id_type` is the type of the library for tensors
// that are int64 in the manifest.
DeviceTensors tensors_of(const Graph& graph, const std::string& id_type, const StepSizes& sizes);

// The encoder and decoder steps of a bundle, loaded by a library for one device. Only one thread at a time may use a
// program. Methods throw EngineError if the library failed, and ResourceError if GPU memory is exhausted.
class Program {
 public:
  Program() = default;
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Return the beam search graph for this number of rows per sentence; null if there is none.
  virtual const Graph* beam_graph(std::int64_t /*beams*/) const { return nullptr; }
  // Return the sizes of step buffers for a batch. Throws BundleError: the library does not support sizes this large.
  virtual StepSizes bucket(const StepSizes& requested) const = 0;
  // Bind the step to its buffers. Each call of the result enqueues one run on all rows. The result must be destroyed
  // before the buffers.
  virtual std::function<void()> bind(const DeviceTensors& tensors, const StepSizes& sizes) const = 0;
  // Enqueue a run of the encoder on tensors with these sizes.
  virtual void encode(const DeviceTensors& tensors, const StepSizes& sizes) const = 0;

  // Return whether a device may capture and replay steps.
  virtual bool can_be_captured() const = 0;
  // Return whether each operator runs once and in order, so that a step may overwrite the ids, positions and flags that
  // it reads.
  virtual bool runs_in_order() const = 0;
};

}  // namespace txport::core
