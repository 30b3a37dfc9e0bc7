// Half precision against the definition in IEEE 754.

#include <doctest/doctest.h>

#include <cmath>

#include "half.hpp"

TEST_CASE("every half is the number that IEEE 754 says") {
  for (unsigned half = 0; half < 65536; ++half) {
    CAPTURE(half);
    const int exponent = static_cast<int>(half >> 10U & 31U);
    const double fraction = (half & 1023U) / 1024.0;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
    const float found = txport::core::float_of_half(static_cast<std::uint16_t>(half));
    REQUIRE(std::signbit(found) == (half >= 0x8000U));
    if (exponent < 31) {
      REQUIRE(std::abs(static_cast<double>(found)) == magnitude);
    } else {
      REQUIRE((fraction == 0 ? std::isinf(found) : std::isnan(found)));
    }
  }
}
