// Groups of decoder steps, and runs of the encoder, as CUDA graphs; launched operator by operator where the device
// refuses to capture them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
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

// Work that is captured when it comes again with the same key, and replayed from then on. One thread at a time.
//
// What a library allocates in a capture spoils it, and so does another library of the process, as PyTorch, that waits
// for the device meanwhile. Such work is launched operator by operator, which allocates, and captured the next time.
class CapturedRuns {
 public:
  // One key means the same kernels over the same addresses: where the work's memory is, and its sizes.
  using Key = std::tuple<const void*, std::int64_t, std::int64_t>;
  // Called after the last of some failures, with the message of the device or the library: capturing stops.
  using Refused = std::function<void(const std::string& fault)>;

  // Captures what comes for the time `often`: before, a library has allocated what it needs and has chosen its kernels.
  CapturedRuns(Device& device, int often, Refused refused)
      : device_(device), often_(often), refused_(std::move(refused)) {}

  // Enqueue work, which is not called any more when this has returned. Throws EngineError: the device or the library
  // failed. ResourceError: for want of memory.
  void launch(const Key& key, const std::function<void()>& work);

 private:
  struct Run {
    Key key;
    int times = 0;
    std::function<void()> replay;
  };

  Device& device_;
  const int often_;
  const Refused refused_;
  int attempts_ = 5;
  std::list<Run> runs_;  // the latest first

  Run& run_of(const Key& key);
  void capture(Run& run, const std::function<void()>& work);
};

// The steps of one set of buffers: the first group of each size is captured, and replayed from then on.
class StepGroups {
 public:
  // Enqueues one step, and a copy of its tokens to this slot of the ring.
  using Step = std::function<void(std::size_t slot)>;

  // `step` has run before, with nothing left to do. Without `refused` nothing is captured.
  StepGroups(Device& device, Step step, const CapturedRuns::Refused& refused) : step_(std::move(step)) {
    if (refused) runs_.emplace(device, 1, refused);
  }

  // Enqueue `count` steps. Throws as CapturedRuns.
  void launch(std::size_t count);

 private:
  const Step step_;
  std::optional<CapturedRuns> runs_;
};

}  // namespace txport::core
