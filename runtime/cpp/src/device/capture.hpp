// Groups of decoder steps, and runs of the encoder, as CUDA graphs; launched operator by operator where the device
// refuses to capture them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <utility>

#include "device/device.hpp"

namespace txport::core {

// Held alone while a stream is captured, and together while libraries open, prepare or close models, for which they may
// wait for the whole device. No thread may do that while a stream of the device is captured: it fails, and spoils the
// capture (CUDA C++ Programming Guide, "Prohibited and Unhandled Operations"). A thread that holds the latch of a pool
// may take this one, never the reverse.
std::shared_mutex& whole_device();

// The steps of one set of buffers: the first group of each size is captured, and replayed from then on.
//
// What a library allocates in a capture spoils it, and so does another library of the process, as PyTorch, that waits
// for the device meanwhile. Such a group is launched operator by operator, which allocates, and the next one is
// captured. After some failures steps over these buffers are not captured any more.
class StepGroups {
 public:
  // Enqueues one step, and a copy of its tokens to this slot of the ring.
  using Step = std::function<void(std::size_t slot)>;
  // Called after the last failure, with what the device or the library said.
  using Refused = std::function<void(const std::string& fault)>;

  // `step` has run before, with nothing left to do. Without `refused` nothing is captured.
  StepGroups(Device& device, Step step, Refused refused)
      : device_(device), step_(std::move(step)), refused_(std::move(refused)), attempts_(refused_ ? 5 : 0) {}

  // Enqueue `count` steps. Throws EngineError: the device or the library failed. ResourceError: for want of memory.
  void launch(std::size_t count);

 private:
  Device& device_;
  const Step step_;
  const Refused refused_;
  int attempts_;
  std::map<std::size_t, std::function<void()>> graphs_;

  void capture(std::size_t count, const std::function<void()>& group);
};

// Work that is captured once it has come often with the same key, and replayed from then on. One thread at a time.
class FrequentRuns {
 public:
  // One key means the same kernels over the same addresses: where the work's memory is, and its sizes.
  using Key = std::tuple<const void*, std::int64_t, std::int64_t>;

  explicit FrequentRuns(Device& device) : device_(device) {}

  // Enqueue work, which is not called any more when this has returned. Throws as it does.
  void launch(const Key& key, const std::function<void()>& work);

 private:
  struct Run {
    Key key;
    int times = 0;
    std::function<void()> replay;
  };

  Device& device_;
  int attempts_ = 5;     // failed captures after which nothing is captured any more
  std::list<Run> runs_;  // the latest first

  void capture(Run& run, const std::function<void()>& work);
};

}  // namespace txport::core
