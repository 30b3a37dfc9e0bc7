// Every instruction set that this processor has and the engine is compiled for.
#pragma once

#include <doctest/doctest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <functional>
#include <string>

#include "fused/compute.hpp"

namespace targets {

// 0: the best one.
inline void use(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Calls body(target) with each of them in use, and once more as if the processor had no extension to it; the engine
// itself has none for SSE2.
inline void on_each(const std::function<void(std::int64_t)>& body, bool engine = true) {
  using txport::core::fused::Extensions;
  using txport::core::fused::extensions;
  const Extensions here = extensions();
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (engine && target == HWY_SSE2) continue;
    for (const bool extended : {false, true}) {
      if (extended && !here.avx512_vnni && !here.avx_vnni && !here.i8mm) continue;
      extensions() = extended ? here : Extensions{};
      const std::string name = hwy::TargetName(target);
      CAPTURE(name);
      CAPTURE(extended);
      use(target);
      body(target);
    }
  }
  extensions() = here;
  use(0);
}

}  // namespace targets
