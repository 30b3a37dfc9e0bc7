// What the decoder state needs of a device with memory of its own: memory, copies, and one stream of ordered work.
//
// engine.cpp is written over this interface, so that its logic is tested in host memory, where every address can be
// checked; cuda.cpp is the implementation that ships.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace txport::core {

// A strided region of device memory: planes of rows of bytes.
struct Buffer {
  std::byte* start = nullptr;
  std::size_t row = 0;    // bytes from one row to the next
  std::size_t plane = 0;  // bytes from one plane to the next; a multiple of `row`
};

// A place in the order of a stream's work.
class Event {
 public:
  Event() = default;
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Put it behind all work that has been enqueued so far.
  virtual void record() = 0;
  // Wait for the work before it. Another thread may use the device meanwhile.
  virtual void synchronize() = 0;
};

// Memory and one stream. Calls enqueue work that runs in order, and return before it is done. One thread at a time may
// use a device. Every method may throw EngineError: the device failed.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Make it the device of the calling thread, for the library that computes on it.
  virtual void activate() = 0;

  // Memory of the device, aligned to 256 bytes. Throws ResourceError: there is not enough.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* address) noexcept = 0;
  // Bytes that could still be allocated.
  virtual std::size_t free_memory() = 0;
  // Page-locked memory of the host, which the device reads and writes by itself. Throws ResourceError likewise.
  virtual std::byte* allocate_host(std::size_t bytes) = 0;
  virtual void free_host(std::byte* address) noexcept = 0;

  // Host to device. Page-locked memory must not change until this is done; other memory may.
  virtual void upload(std::byte* to, const void* from, std::size_t bytes) = 0;
  // Device to host; complete after `synchronize`, or after synchronizing with an event that was recorded later.
  virtual void download(void* to, const std::byte* from, std::size_t bytes) = 0;
  // Copy `planes` of `rows` of `width` bytes within the device.
  virtual void copy(Buffer to, Buffer from, std::size_t width, std::size_t rows = 1, std::size_t planes = 1) = 0;
  // Set each byte of `rows` of `width` bytes.
  virtual void fill(Buffer to, unsigned char value, std::size_t width, std::size_t rows = 1) = 0;
  virtual void synchronize() = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  // Capture what `work` enqueues, without running it; each call of the result replays it. The result must not outlive
  // the device. Work that cannot be captured is returned unchanged, and `fault` contains the reason.
  virtual std::function<void()> capture(std::function<void()> work, std::string& fault) = 0;

  // The handle of the stream, for the library that computes: a cudaStream_t on a GPU.
  virtual void* stream() const = 0;
};

}  // namespace txport::core
