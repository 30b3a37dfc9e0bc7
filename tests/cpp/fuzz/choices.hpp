// What a fuzzer's bytes choose, one after the other; all is 0 or usual after their end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

class Choices {
 public:
  Choices(const unsigned char* bytes, std::size_t size) : bytes_(bytes), left_(size) {}

  bool any() const { return left_ > 0; }

  // Below `bound`, which is at most 65536.
  std::size_t below(std::size_t bound) {
    const std::size_t high = bound > 256 ? byte() : 0;
    return (high << 8U | byte()) % bound;
  }

  // Most often `usual`; else a number near it, a small one, or one that breaks sums and products.
  std::int64_t number(std::int64_t usual) {
    constexpr std::array<std::int64_t, 10> kFar{
        0, 1, -1, 1 << 20, INT32_MAX, std::int64_t{1} << 32U, 1 << 16, INT64_MAX, INT64_MIN, std::int64_t{1} << 62U};
    if (!any()) return usual;
    const std::size_t choice = below(256);
    if (choice < kFar.size()) return kFar[choice];
    if (choice < 192) return usual;
    if (choice < 224) return static_cast<std::int64_t>(choice) - 192;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(usual) + choice -
                                     240);  // an earlier one may be the largest
  }

 private:
  const unsigned char* bytes_;
  std::size_t left_;

  unsigned byte() {
    if (left_ == 0) return 0;
    --left_;
    return *bytes_++;
  }
};
