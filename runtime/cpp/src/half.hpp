// Half precision, as weights and logits have it.
#pragma once

#include <cmath>
#include <cstdint>

namespace txport::core {

// IEEE 754 binary16: 1 bit of sign, 5 of exponent, 10 of fraction.
inline float float_of_half(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const float fraction = static_cast<float>(half & 1023) / 1024;
  const float sign = (half & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15));
}

}  // namespace txport::core
