// Half precision, as weights and logits have it.
#pragma once

#include <cstdint>
#include <cstring>

namespace txport::core {

// IEEE 754 binary16: 1 bit of sign, 5 of exponent, 10 of fraction. Without branches or libraries: bundles have
// millions.
inline float float_of_half(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7FFFU;
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  // Normal numbers, whose exponent counts from -127 and not from -15; infinities and NaN have the
  // largest.
  const std::uint32_t normal = (magnitude << 13U) + (magnitude >= 0x7C00U ? 0x70000000U : 0x38000000U);
  const float fraction = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;  // of those below 2^-14
  std::uint32_t bits = 0;
  std::memcpy(&bits, &fraction, sizeof(bits));
  bits = (magnitude < 0x400U ? bits : normal) | sign;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace txport::core
