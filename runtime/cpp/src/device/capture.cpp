#include "device/capture.hpp"

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

}  // namespace txport::core
