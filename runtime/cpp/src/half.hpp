// Conversion of float16, the type of some weights and logits.
#pragma once

#include <cstdint>
#include <cstring>

namespace txport::core {

// Convert IEEE 754 binary16: 1 sign bit, 5 exponent bits, 10 fraction bits. The code has no branches, since bundles
// contain millions of such values.
inline float float_of_half(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7FFFU;
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  // Normal numbers: change the exponent bias from 15 to 127. Infinities and NaN get the largest exponent.
  const std::uint32_t normal = (magnitude << 13U) + (magnitude >= 0x7C00U ? 0x70000000U : 0x38000000U);
  const float fraction =
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;  // subnormal numbers, below 2^-14
  std::uint32_t bits = 0;
  std::memcpy(&bits, &fraction, sizeof(bits));
  bits = (magnitude < 0x400U ? bits : normal) | sign;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace txport::core
