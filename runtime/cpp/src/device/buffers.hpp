// The buffers of one graph on a device, bound once, and a pool of them: binding and recording cost more than a step.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "device/engine.hpp"

namespace txport::core {

// Steps whose tokens the device keeps until the host looks.
inline constexpr std::size_t kRingSteps = 16;

// Every input and output of a graph, zeroed, with the program that is bound to them, on a queue of their own.
class DeviceBuffers {
 public:
  DeviceBuffers(const Graph& graph, const std::string& id_type, const Program& program, std::shared_ptr<Device> device,
                const BatchSizes& sizes);
  ~DeviceBuffers();
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  const DeviceTensors& inputs() const { return inputs_; }
  // An input or output by name; a null pointer if the graph has none.
  const DeviceTensor* find(const std::string& name) const;
  const DeviceTensor& at(const std::string& name) const;

  Device& device() const { return *device_; }
  BoundProgram& program() const { return *program_; }
  const BatchSizes& sizes() const { return sizes_; }
  // kRingSteps times the bytes of `token_ids`; of a step only.
  std::byte* ring() const { return ring_; }

  void set_replay(std::function<void()> replay) { replay_ = std::move(replay); }
  void replay() const { replay_(); }

 private:
  std::shared_ptr<Device> device_;
  BatchSizes sizes_;
  DeviceTensors inputs_;
  DeviceTensors all_;
  std::list<std::byte*> allocated_;
  std::byte* ring_ = nullptr;
  std::unique_ptr<BoundProgram> program_;
  std::function<void()> replay_;

  DeviceTensor made(const Tensor& tensor, const std::string& id_type);
  std::byte* zeroed(std::size_t bytes);
  void free() noexcept;
};

// Buffers of one graph that nobody uses are kept for the next batch of their sizes.
class Pool {
 public:
  struct Return {
    Pool* pool;
    void operator()(DeviceBuffers* buffers) const noexcept { pool->give_back(buffers); }
  };
  // Buffers that one batch has for itself; they go back by themselves. The pool must outlive them.
  using Lease = std::unique_ptr<DeviceBuffers, Return>;

  // `prepare` is called once for new buffers; it may be empty.
  Pool(Graph graph, std::string id_type, const Program& program, MakeDevice make_device,
       std::function<void(DeviceBuffers&)> prepare);

  // Buffers of the bucket that takes these sizes. Throws InputError: no bucket does, or there is not enough memory.
  Lease take(const BatchSizes& asked);

 private:
  const Graph graph_;
  const std::string id_type_;
  const Program& program_;
  const MakeDevice make_device_;
  const std::function<void(DeviceBuffers&)> prepare_;
  std::mutex mutex_;
  std::list<std::unique_ptr<DeviceBuffers>> idle_;  // the one that was used last comes first

  void give_back(DeviceBuffers* buffers) noexcept;
};

}  // namespace txport::core
