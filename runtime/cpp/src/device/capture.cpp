#include "device/capture.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "errors.hpp"
#include "system/system.hpp"

namespace txport::core {

std::shared_mutex& whole_device() {
  // NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
  static std::shared_mutex mutex;
  static std::shared_mutex of_forked;  // a thread of the parent may have locked the other one
  // NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
  static const unsigned first = forks();
  return forks() == first ? mutex : of_forked;
}

void CapturedRuns::launch(const Key& key, const std::function<void()>& work) {
  Run& run = run_of(key);
  if (++run.times >= runs_before_capture_ && !run.replay && attempts_ > 0) capture(run, work);
  run.replay ? run.replay() : work();
}

// Return the run of a key. For a new key, the least recently used run may be removed.
CapturedRuns::Run& CapturedRuns::run_of(const Key& key) {
  constexpr std::size_t kMaxRuns = 64;
  auto found = std::find_if(runs_.begin(), runs_.end(), [&](const Run& run) { return run.key == key; });
  if (found == runs_.end()) found = runs_.insert(runs_.begin(), Run{key, 0, {}});
  runs_.splice(runs_.begin(), runs_, found);
  if (runs_.size() > kMaxRuns) {
    if (runs_.back().replay) device_.synchronize();  // it may still be running
    runs_.pop_back();
  }
  return runs_.front();
}

void CapturedRuns::capture(Run& run, const std::function<void()>& work) {
  std::string fault;
  try {
    const std::unique_lock alone(whole_device());
    auto replay = device_.capture(work, fault);
    if (fault.empty()) run.replay = std::move(replay);
  } catch (const ResourceError& error) {  // an allocation that fails because of the capture looks like exhausted memory
    fault = error.what();
  }
  if (!fault.empty() && --attempts_ == 0 && on_refused_) on_refused_(fault);
}

void StepGroups::launch(std::size_t count) {
  const auto group = [this, count] {
    for (std::size_t ring_index = 0; ring_index < count; ++ring_index) step_(ring_index);
  };
  runs_ ? runs_->launch({nullptr, static_cast<std::int64_t>(count), 0}, group) : group();
}

}  // namespace txport::core
