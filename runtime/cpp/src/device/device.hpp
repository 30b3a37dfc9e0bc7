// What the decoding state needs of a device with memory of its own: a queue of work in order, and nothing else.
//
// device_engine.cpp is written over this, so that its logic is tested in host memory, where every address can be
// checked; cuda.cpp is the one that ships.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace txport::core {

// Equal pieces of memory: `count` of `bytes` each, `stride` bytes from the start of one to the start of the next.
struct Pieces {
  std::byte* start;
  std::size_t stride;
};

// One queue. What is asked for runs in order, after the call has returned, but for `download` and `synchronize`, which
// wait for all before them. One thread at a time may use a device.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Memory of the device, on 256 bytes. Throws InputError: there is not enough.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* address) noexcept = 0;

  // Host to device; `from` may change as soon as this has returned.
  virtual void upload(std::byte* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void copy(Pieces to, Pieces from, std::size_t bytes, std::size_t count) = 0;
  // Write `count` items of 1, 2 or 4 bytes, each the low bytes of `pattern`.
  virtual void fill(std::byte* to, std::uint32_t pattern, std::size_t item_bytes, std::size_t count) = 0;
  virtual void synchronize() = 0;

  // Record what `work` asks for, without running it; calling the result runs it again and again. The result must not
  // outlive the device. Work that cannot be recorded comes back as it is, and `fault` says why.
  virtual std::function<void()> record(std::function<void()> work, std::string& fault) = 0;

  // The queue's handle for the library that computes: a cudaStream_t on a GPU.
  virtual void* queue() const = 0;
};

// Makes one more queue on the same device.
using MakeDevice = std::function<std::shared_ptr<Device>()>;

}  // namespace txport::core
