// The buffers of one graph on a device, allocated and bound once: binding and capturing cost more than a step.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "device/program.hpp"

namespace txport::core {

// Steps whose tokens the device keeps until the host polls.
inline constexpr std::size_t kRingSteps = 16;

class DeviceBuffers;

// A graph that runs on a device.
struct DeviceGraph {
  Graph graph;
  std::string id_type;  // int32 or int64
  const Program& program;
  // Called once for new buffers: warms them up and returns what replays a run. Empty for a graph that is not replayed.
  std::function<std::function<void()>(const DeviceBuffers&)> prepare;
};

// Device memory that buffers of these sizes take.
std::size_t bytes_needed(const DeviceGraph& graph, const StepSizes& sizes);

// Every input and bound output of a graph, zeroed, with the program that is bound to them, on a stream of their own.
class DeviceBuffers {
 public:
  // Throws ResourceError: the device has not enough memory. EngineError: the library or the device failed.
  DeviceBuffers(const DeviceGraph& graph, std::shared_ptr<Device> device, const StepSizes& sizes);
  ~DeviceBuffers();
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  const DeviceTensors& inputs() const { return inputs_; }
  // An input or output by name; a null pointer if the graph does not have it.
  const DeviceTensor* find(const std::string& name) const;
  const DeviceTensor& at(const std::string& name) const;

  const DeviceGraph& graph() const { return graph_; }
  Device& device() const { return *device_; }
  BoundProgram& program() const { return *program_; }
  const StepSizes& sizes() const { return sizes_; }
  // kRingSteps times the bytes of `token_ids`; of a step only.
  std::byte* ring() const { return ring_; }

  void set_replay(std::function<void()> replay) { replay_ = std::move(replay); }
  void replay() const { replay_(); }

 private:
  const DeviceGraph& graph_;
  std::shared_ptr<Device> device_;
  StepSizes sizes_;
  DeviceTensors inputs_;
  DeviceTensors all_;
  std::list<std::byte*> allocated_;
  std::byte* ring_ = nullptr;
  std::unique_ptr<BoundProgram> program_;
  std::function<void()> replay_;

  DeviceTensor allocated(const Tensor& tensor);
  std::byte* zeroed(std::size_t bytes);
  void free() noexcept;
};

}  // namespace txport::core
