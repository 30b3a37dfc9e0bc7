#include "device/capture.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "errors.hpp"

namespace txport::core {

std::shared_mutex& whole_device() {
  static std::shared_mutex one;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  return one;
}

void StepGroups::launch(std::size_t count) {
  const std::function<void()> group = [this, count] {
    for (std::size_t slot = 0; slot < count; ++slot) step_(slot);
  };
  if (attempts_ > 0 && graphs_.count(count) == 0) capture(count, group);
  const auto graph = graphs_.find(count);
  graph == graphs_.end() ? group() : graph->second();
}

void StepGroups::capture(std::size_t count, const std::function<void()>& group) {
  std::string fault;
  try {
    const std::unique_lock alone(whole_device());
    auto replay = device_.capture(group, fault);
    if (fault.empty()) graphs_.emplace(count, std::move(replay));
  } catch (const ResourceError& error) {  // an allocation that a capture refuses looks like one for want of memory
    fault = error.what();
  }
  if (!fault.empty() && --attempts_ == 0) refused_(fault);
}

void FrequentRuns::launch(const Key& key, const std::function<void()>& work) {
  // Before the third time a library has allocated what it needs and has chosen its kernels.
  constexpr int kOften = 3;
  constexpr std::size_t kMost = 64;
  auto found = std::find_if(runs_.begin(), runs_.end(), [&](const Run& run) { return run.key == key; });
  if (found == runs_.end()) found = runs_.insert(runs_.begin(), Run{key, 0, {}});
  runs_.splice(runs_.begin(), runs_, found);
  if (runs_.size() > kMost) {
    if (runs_.back().replay) device_.synchronize();  // it may still be under way
    runs_.pop_back();
  }
  Run& run = runs_.front();
  if (++run.times >= kOften && !run.replay && attempts_ > 0) capture(run, work);
  run.replay ? run.replay() : work();
}

void FrequentRuns::capture(Run& run, const std::function<void()>& work) {
  std::string fault;
  try {
    const std::unique_lock alone(whole_device());
    auto replay = device_.capture(work, fault);
    if (fault.empty()) run.replay = std::move(replay);
  } catch (const ResourceError& error) {  // an allocation that a capture refuses looks like one for want of memory
    fault = error.what();
  }
  if (!fault.empty()) --attempts_;
}

}  // namespace txport::core
