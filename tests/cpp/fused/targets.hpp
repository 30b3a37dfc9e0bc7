// Every instruction set of Highway that this processor has and the engine is compiled for.
#pragma once

#include <doctest/doctest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <functional>
#include <string>

namespace targets {

// 0: the best one.
inline void use(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Calls body(target) with each of them in use; the engine itself has none for SSE2.
inline void on_each(const std::function<void(std::int64_t)>& body, bool engine = true) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (engine && target == HWY_SSE2) continue;
    const std::string name = hwy::TargetName(target);
    CAPTURE(name);
    use(target);
    body(target);
  }
  use(0);
}

}  // namespace targets
