// What the decoder state needs of a device with memory of its own: memory, copies, and one stream of ordered work.
//
// engine.cpp is written over this interface, so that its logic is tested in host memory, where every address can be
// checked; cuda.cpp is the implementation that ships.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace txport::core {

// A strided region of device memory: items of equal size, `stride` bytes from the start of one to the start of the
// next.
struct Buffer {
  std::byte* start;
  std::size_t stride;
};

// One stream. Calls enqueue work that runs in order and return before it is done, except `download` and `synchronize`,
// which wait for everything before them. One thread at a time may use a device. Every method may throw EngineError: the
// device failed.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Memory of the device, aligned to 256 bytes. Throws ResourceError: there is not enough.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* address) noexcept = 0;
  // Bytes that could still be allocated.
  virtual std::size_t free_memory() = 0;

  // Host to device; `from` may change as soon as this has returned.
  virtual void upload(std::byte* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const std::byte* from, std::size_t bytes) = 0;
  // Copy `count` items of `bytes` each.
  virtual void copy(Buffer to, Buffer from, std::size_t bytes, std::size_t count) = 0;
  // Write `count` items of 1, 2 or 4 bytes, each the low bytes of `pattern`.
  virtual void fill(std::byte* to, std::uint32_t pattern, std::size_t item_bytes, std::size_t count) = 0;
  virtual void synchronize() = 0;

  // Capture what `work` enqueues, without running it; each call of the result replays it. The result must not outlive
  // the device. Work that cannot be captured is returned unchanged, and `fault` says why.
  virtual std::function<void()> capture(std::function<void()> work, std::string& fault) = 0;

  // The handle of the stream, for the library that computes: a cudaStream_t on a GPU.
  virtual void* stream() const = 0;
};

// Opens another stream on the same device.
using MakeDevice = std::function<std::shared_ptr<Device>()>;

}  // namespace txport::core
