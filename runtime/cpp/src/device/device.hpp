// Interface of devices with separate memory: allocation, copies, and one stream of ordered work.
//
// engine.cpp uses this interface, so that tests can run it in host memory and check every address. cuda.cpp is the real
// implementation.
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

// A point in the ordered work of a stream.
class Event {
 public:
  Event() = default;
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Move the event after all work enqueued so far.
  virtual void record() = 0;
  // Wait for the work before the event. Other threads may use the device during this.
  virtual void synchronize() = 0;
};

// Device memory and one stream. Methods enqueue work, which runs in order, and return before it is done. Only one
// thread at a time may use a device. Every method may throw EngineError if the device failed.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Make it the device of the calling thread, for the library that computes on it.
  virtual void activate() = 0;

  // Allocate device memory, aligned to 256 bytes. Throws ResourceError if it does not suffice.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* address) noexcept = 0;
  // Return the number of free bytes.
  virtual std::size_t free_memory() = 0;
  // Allocate page-locked host memory, which the device can access directly. Throws ResourceError if it does not
  // suffice.
  virtual std::byte* allocate_host(std::size_t bytes) = 0;
  virtual void free_host(std::byte* address) noexcept = 0;

  // Copy from host to device. Page-locked memory must not change until the copy is done; other memory may.
  virtual void upload(std::byte* to, const void* from, std::size_t bytes) = 0;
  // Copy from device to host. The copy is complete after `synchronize`, or after synchronizing with a later event.
  virtual void download(void* to, const std::byte* from, std::size_t bytes) = 0;
  // Copy `planes` of `rows` of `width` bytes within the device.
  virtual void copy(Buffer to, Buffer from, std::size_t width, std::size_t rows = 1, std::size_t planes = 1) = 0;
  // Set each byte of `rows` of `width` bytes.
  virtual void fill(Buffer to, unsigned char value, std::size_t width, std::size_t rows = 1) = 0;
  virtual void synchronize() = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  // Capture what `work` enqueues, without running it. Each call of the result replays it. The result must not outlive
  // the device. If the work cannot be captured, return it unchanged and store the reason in `fault`.
  virtual std::function<void()> capture(std::function<void()> work, std::string& fault) = 0;

  // Return the handle of the stream for libraries: a cudaStream_t on a GPU.
  virtual void* stream() const = 0;
};

}  // namespace txport::core
