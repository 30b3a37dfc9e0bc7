// An engine whose state never leaves its device: written once for every library that runs there.
//
// A library gives two programs, encoder and step; buffers, buckets, the ring of tokens that the host looks at every few
// steps, refill and moves are here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bundle/manifest.hpp"
#include "device/device.hpp"
#include "engine.hpp"

namespace txport::core {

// Rows, source tokens and cache length: what was asked for, or what buffers are made for.
struct BatchSizes {
  std::int64_t batch = 0;
  std::int64_t source = 0;
  std::int64_t target = 0;

  bool operator==(const BatchSizes& other) const {
    return batch == other.batch && source == other.source && target == other.target;
  }
};

// The width of source buffers: the smallest power of two that holds `source`, from 32, at most `most`.
std::int64_t source_bucket(std::int64_t source, std::int64_t most);

// One tensor in device memory. `shape` is that of the largest batch that it takes.
struct DeviceTensor {
  std::byte* address = nullptr;
  std::string dtype;  // as the manifest has it, but for the ids: int32 or int64
  std::vector<std::int64_t> shape;
  std::size_t item_bytes = 0;

  std::size_t count() const;
  std::size_t bytes() const { return count() * item_bytes; }
  // Of one entry of the first axis.
  std::size_t row_bytes() const { return bytes() / static_cast<std::size_t>(shape[0]); }
};

// By name, outputs too; an output that is aliased has the address of its input.
using DeviceTensors = std::map<std::string, DeviceTensor>;

// A graph with its tensors bound, ready to run on one queue.
class BoundProgram {
 public:
  BoundProgram() = default;
  virtual ~BoundProgram() = default;
  BoundProgram(const BoundProgram&) = delete;
  BoundProgram& operator=(const BoundProgram&) = delete;

  // Enqueue one run on the first `batch` rows of `source` tokens, which stand without gaps in the encoder's tensors.
  // A step always runs on all of its rows.
  virtual void run(const BatchSizes& sizes) = 0;
};

// One graph of a bundle as a library has it. Threads may share one.
class Program {
 public:
  Program() = default;
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The sizes that buffers get for a batch. Throws InputError: no bucket takes it.
  virtual BatchSizes bucket(const BatchSizes& asked) const = 0;
  virtual std::unique_ptr<BoundProgram> bind(Device& device, const DeviceTensors& tensors,
                                             const BatchSizes& bucket) const = 0;
  // Whether a device may record a run and replay it.
  virtual bool can_be_recorded() const = 0;
};

// What a library knows about a bundle.
struct DeviceParts {
  std::string name;     // of the engine, for people
  Limits limits;        // of its buckets
  std::string id_type;  // int32 or int64: what became of the manifest's int64
  std::string lowering;
  MakeDevice make_device;
  std::unique_ptr<Program> encoder;
  std::unique_ptr<Program> step;
  std::function<void(const std::string&)> warn;  // is told once, in the thread of a call, if steps cannot be recorded
};

std::unique_ptr<Engine> make_device_engine(const Manifest& manifest, DeviceParts parts);

}  // namespace txport::core
