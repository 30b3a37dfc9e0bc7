// What a library adds to the device layer: a bundle's two graphs, run over tensors in device memory.
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

// Entries of caches and cross-attention, source tokens and cache length: of a request, or of the buffers that serve it.
struct StepSizes {
  std::int64_t batch = 0;  // rows or, where these share an entry, sentences
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::int64_t beams = 1;  // rows that share an entry; more than 1 are of the step of beam search

  bool operator==(const StepSizes& other) const {
    return batch == other.batch && source == other.source && target == other.target && beams == other.beams;
  }
  // The size of a named dimension of a step.
  std::int64_t of(const std::string& dimension) const;
};

// The width of source buffers: the smallest power of two that holds `source`, from 32, at most `most`.
std::int64_t source_bucket(std::int64_t source, std::int64_t most);

// One tensor in device memory.
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

// By name: inputs and bound outputs.
using DeviceTensors = std::map<std::string, DeviceTensor>;

// The tensors of a graph at these sizes, without addresses. `id_type` is the library's type for the manifest's int64.
DeviceTensors tensors_of(const Graph& graph, const std::string& id_type, const StepSizes& sizes);

// A bundle's encoder and its decoder steps, loaded by a library for one device. One thread at a time runs it. Methods
// throw EngineError: the library failed. ResourceError: the GPU's memory is exhausted.
class Program {
 public:
  Program() = default;
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The step of beam search for this number of rows per sentence; null if there is none.
  virtual const Graph* beam_graph(std::int64_t /*beams*/) const { return nullptr; }
  // The sizes of the step's buffers that serve a batch. Throws BundleError: the library has none that large.
  virtual StepSizes bucket(const StepSizes& asked) const = 0;
  // Bind the step to its buffers. Each call of the result enqueues one run over all rows; it must go before they do.
  virtual std::function<void()> bind(const DeviceTensors& tensors, const StepSizes& sizes) const = 0;
  // Enqueue a run of the encoder over tensors of its sizes.
  virtual void encode(const DeviceTensors& tensors, const StepSizes& sizes) const = 0;

  // Whether a device may capture a step and replay it.
  virtual bool can_be_captured() const = 0;
  // Whether each operator runs once, in order, so that a step may write ids, positions and flags over those it reads.
  virtual bool runs_in_order() const = 0;
};

}  // namespace txport::core
