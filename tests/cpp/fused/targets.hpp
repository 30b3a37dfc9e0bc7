// Every instruction set of Highway that this processor has and the engine is compiled for.
#pragma once

#include <doctest/doctest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <functional>

namespace targets {

inline void use(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

inline void on_each(const std::function<void()>& body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    CAPTURE(hwy::TargetName(target));
    use(target);
    body();
  }
  use(0);
}

}  // namespace targets
