// Vectors of float32 and int32 with at most 16 lanes, for one instruction set.
//
// Files named -inl are compiled once for each instruction set: Highway includes them again for each one.

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "fused/matrix.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kPanel>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
constexpr DF df;
constexpr DI di;
constexpr std::size_t kLanes = hn::MaxLanes(df);
constexpr std::size_t kParts = kPanel / kLanes;  // vectors of a panel's step

// Vectors that stay in registers. GCC keeps an array's elements in memory, and copies __m512i, which it counts as eight
// int64, around each operation on int32: so members, and of the lane's own type.
template <class V, std::size_t kI>
struct Register {
  typedef hn::TFromV<V> Plain __attribute__((vector_size(sizeof(V))));
  Plain plain;
};
template <class V, class Indices>
struct Registers;
template <class V, std::size_t... kI>
struct Registers<V, std::index_sequence<kI...>> : Register<V, kI>... {
  template <std::size_t kAt>
  HWY_INLINE V Get() const {
    return V{(decltype(V::raw))static_cast<const Register<V, kAt>&>(*this).plain};
  }
  template <std::size_t kAt>
  HWY_INLINE void Set(V v) {
    static_cast<Register<V, kAt>&>(*this).plain = (typename Register<V, kAt>::Plain)v.raw;
  }
};

// Evaluate the polynomial with these coefficients, that of the highest power first.
template <class... Rest>
HWY_INLINE VF Polynomial(VF x, float first, Rest... rest) {
  VF y = hn::Set(df, first);
  ((y = hn::MulAdd(y, x, hn::Set(df, rest))), ...);
  return y;
}

// Compute e^x, within 2 units in the last place. x is clamped to [-87, 87]. The polynomial is that of Cephes.
HWY_INLINE VF Exp(VF x) {
  x = hn::Min(hn::Max(x, hn::Set(df, -87.0F)), hn::Set(df, 87.0F));
  const VI n = hn::NearestInt(hn::Mul(x, hn::Set(df, 1.44269504F)));
  const VF nf = hn::ConvertTo(df, n);
  const VF r = hn::NegMulAdd(nf, hn::Set(df, -2.12194440e-4F), hn::NegMulAdd(nf, hn::Set(df, 0.693359375F), x));
  VF y = Polynomial(r, 1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F, 4.1665795894e-2F, 1.6666665459e-1F,
                    5.0000001201e-1F);
  y = hn::Add(hn::MulAdd(hn::Mul(r, r), y, r), hn::Set(df, 1.0F));
  return hn::Mul(y, hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127)))));
}

// Compute the error function, within 4e-7, by the rational approximation of Eigen. x is clamped to [-4, 4].
HWY_INLINE VF Erf(VF x) {
  x = hn::Min(hn::Max(x, hn::Set(df, -4.0F)), hn::Set(df, 4.0F));
  const VF s = hn::Mul(x, x);
  const VF p =
      Polynomial(s, -2.72614225801306e-10F, 2.77068142495902e-08F, -2.10102402082508e-06F, -5.69250639462346e-05F,
                 -7.34990630326855e-04F, -2.95459980854025e-03F, -1.60960333262415e-02F);
  const VF q = Polynomial(s, -1.45660718464996e-05F, -2.13374055278905e-04F, -1.68282697438203e-03F,
                          -7.37332916720468e-03F, -1.42647390514189e-02F);
  return hn::Mul(x, hn::Div(p, q));
}

// Return the sum of f(0), f(kLanes) and so on below `size`, a multiple of 16, in two chains.
template <class F>
HWY_INLINE float Sum(std::size_t size, F f) {
  VF even = hn::Zero(df);
  VF odd = hn::Zero(df);
  std::size_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    even = hn::Add(even, f(i));
    odd = hn::Add(odd, f(i + kLanes));
  }
  if (i < size) even = hn::Add(even, f(i));
  return hn::ReduceSum(df, hn::Add(even, odd));
}

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
