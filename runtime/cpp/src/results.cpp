#include "results.hpp"

#include <algorithm>

namespace txport::core {

bool looped(const Ids& ids) {
  constexpr std::size_t kMinRepetitions = 3;
  constexpr std::size_t kMinTokens = 12;
  for (std::size_t period = 1; period <= ids.size() / kMinRepetitions; ++period) {
    const auto [end, shifted] = std::mismatch(ids.rbegin(), ids.rend() - static_cast<std::ptrdiff_t>(period),
                                              ids.rbegin() + static_cast<std::ptrdiff_t>(period));
    const auto repeated = static_cast<std::size_t>(end - ids.rbegin()) + period;
    if (repeated >= std::max(kMinRepetitions * period, kMinTokens)) return true;
  }
  return false;
}

}  // namespace txport::core
