// CUDA graphs of groups of decoder steps and of encoder runs. If the device cannot capture them, they are launched
// operator by operator.
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

// Lock that is exclusive while a stream is captured, and shared while libraries open, prepare or close models, since
// they may then synchronize the whole device. No thread may do so during a capture: the call fails and invalidates the
// capture (CUDA C++ Programming Guide, "Prohibited and Unhandled Operations"). A thread that holds the latch of a pool
// may lock this mutex, but not the reverse.
std::shared_mutex& whole_device();

// Work that is captured when it is launched repeatedly with the same key, and then replayed. For one thread at a time.
//
// A capture becomes invalid if a library allocates memory during it, or if another library of the process, such as
// PyTorch, synchronizes the device. Such work is launched operator by operator, which performs the allocations, and
// captured the next time.
class CapturedRuns {
 public:
  // Address and sizes of the work. Equal keys mean the same kernels on the same addresses.
  using Key = std::tuple<const void*, std::int64_t, std::int64_t>;
  // Called when capturing is disabled after several failures, with the message of the device or the library.
  using OnRefused = std::function<void(const std::string& fault)>;

  // Work is captured in its run number `runs_before_capture`. In the runs before, the library allocates memory and
  // chooses kernels.
  CapturedRuns(Device& device, int runs_before_capture, OnRefused on_refused)
      : device_(device), runs_before_capture_(runs_before_capture), on_refused_(std::move(on_refused)) {}

  // Enqueue work. `work` is only called during this call. Throws EngineError: the device or the library failed;
  // ResourceError: memory does not suffice.
  void launch(const Key& key, const std::function<void()>& work);

 private:
  struct Run {
    Key key;
    int times = 0;
    std::function<void()> replay;
  };

  Device& device_;
  const int runs_before_capture_;
  const OnRefused on_refused_;
  int attempts_ = 5;
  std::list<Run> runs_;  // the most recently used first

  Run& run_of(const Key& key);
  void capture(Run& run, const std::function<void()>& work);
};

// Steps on one set of buffers. The first group of each size is captured and then replayed.
class StepGroups {
 public:
  // Function that enqueues one step and a copy of its tokens to this entry of the ring.
  using Step = std::function<void(std::size_t ring_index)>;

  // `step` must have run before and be idle. Without `on_refused`, nothing is captured.
  StepGroups(Device& device, Step step, const CapturedRuns::OnRefused& on_refused) : step_(std::move(step)) {
    if (on_refused) runs_.emplace(device, 1, on_refused);
  }

  // Enqueue `count` steps. Throws the errors of CapturedRuns.
  void launch(std::size_t count);

 private:
  const Step step_;
  std::optional<CapturedRuns> runs_;
};

}  // namespace txport::core
