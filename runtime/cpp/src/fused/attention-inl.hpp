// LayerNorm, and attention over cached keys and values, row by row.
#if defined(TXPORT_FUSED_ATTENTION_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TXPORT_FUSED_ATTENTION_INL_HPP
#undef TXPORT_FUSED_ATTENTION_INL_HPP
#else
#define TXPORT_FUSED_ATTENTION_INL_HPP
#endif

#include <cmath>
#include <cstring>

#include "fused/model.hpp"
#include "fused/vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused {
namespace HWY_NAMESPACE {

// y := LayerNorm(x) of `d` numbers; y, which may be x, has padding up to a multiple of 16 as x, zeros.
HWY_INLINE void LayerNorm(const float* x, const Norm& norm, float epsilon, std::size_t d, float* y) {
  const std::size_t width = padded(d);
  const float count = static_cast<float>(d);
  const VF mean = hn::Set(df, Sum(width, [&](std::size_t i) HWY_ATTR { return hn::Load(df, x + i); }) / count);
  const float square = Sum(width, [&](std::size_t i) HWY_ATTR {
    VF off = hn::Sub(hn::Load(df, x + i), mean);
    if (HWY_UNLIKELY(i + kLanes > d)) off = hn::IfThenElseZero(hn::FirstN(df, i < d ? d - i : 0), off);
    return hn::Mul(off, off);
  });
  const VF by = hn::Set(df, 1.0F / std::sqrt(square / count + epsilon));
  for (std::size_t i = 0; i < width; i += kLanes) {
    const VF normed = hn::Mul(hn::Sub(hn::Load(df, x + i), mean), by);
    hn::Store(hn::MulAdd(normed, hn::Load(df, norm.weight + i), hn::Load(df, norm.bias + i)), df, y + i);
  }
}

HWY_INLINE void AddTo(float* x, const float* delta, std::size_t width) {
  for (std::size_t i = 0; i < width; i += kLanes) {
    hn::Store(hn::Add(hn::Load(df, x + i), hn::Load(df, delta + i)), df, x + i);
  }
}

// Keys and values are float16 beside int8 weights: half the memory to read, and finer than the weights.
HWY_INLINE VF LoadCache(const float* at) { return hn::Load(df, at); }
HWY_INLINE VF LoadCache(const hwy::float16_t* at) {
  return hn::PromoteTo(df, hn::Load(hn::Rebind<hwy::float16_t, DF>(), at));
}
HWY_INLINE void StoreCache(VF v, float* to) { hn::Store(v, df, to); }
HWY_INLINE void StoreCache(VF v, hwy::float16_t* to) {
  const hn::Rebind<hwy::float16_t, DF> half;
  const VF most = hn::Set(df, 65504.0F);
  hn::Store(hn::DemoteTo(half, hn::Min(hn::Max(v, hn::Neg(most)), most)), half, to);
}

// One head's keys and values of a sentence: keys in blocks of 16 positions, [k][16], so that 16 scores need no sum
// across lanes; values [positions][k].
template <class C>
struct HeadCache {
  C* keys;
  C* values;
  std::size_t k;  // width of a head

  void Store(std::size_t position, const float* key, const float* value) const {
    C* to = keys + position / kPanel * kPanel * k + position % kPanel;
    alignas(64) C part[kPanel];
    for (std::size_t i = 0; i < k; i += kPanel) {
      for (std::size_t j = 0; j < kPanel; j += kLanes) StoreCache(hn::Load(df, key + i + j), part + j);
      for (std::size_t j = 0; j < kPanel; ++j) to[(i + j) * kPanel] = part[j];
    }
    for (std::size_t i = 0; i < k; i += kLanes) StoreCache(hn::Load(df, value + i), values + position * k + i);
  }
};

// kC vectors of the weighted sum of values, over two chains of positions.
template <class C, std::size_t... kC>
HWY_INLINE void Weigh(const float* weights, const C* values, std::size_t length, std::size_t k, VF by, float* out,
                      std::index_sequence<kC...>) {
  Pack<VF, std::index_sequence<kC...>> even;
  Pack<VF, std::index_sequence<kC...>> odd;
  ((even.template Set<kC>(hn::Zero(df)), odd.template Set<kC>(hn::Zero(df))), ...);
  const auto add = [&](auto& sum, std::size_t t) HWY_ATTR {
    const VF weight = hn::Set(df, weights[t]);
    (sum.template Set<kC>(hn::MulAdd(weight, LoadCache(values + t * k + kC * kLanes), sum.template Get<kC>())), ...);
  };
  std::size_t t = 0;
  for (; t + 2 <= length; t += 2) {
    add(even, t);
    add(odd, t + 1);
  }
  if (t < length) add(even, t);
  (hn::Store(hn::Mul(hn::Add(even.template Get<kC>(), odd.template Get<kC>()), by), df, out + kC * kLanes), ...);
}

// One query of one head over the first `length` positions of its cache; `scores` has room for them, padded.
template <class C>
void Attend(const float* query, const HeadCache<C>& cache, std::size_t length, float* scores, float* out) {
  const std::size_t k = cache.k;
  VF most = hn::Set(df, -1e30F);
  for (std::size_t t = 0; t < length; t += kLanes) {
    const C* block = cache.keys + t / kPanel * kPanel * k + t % kPanel;
    VF s0 = hn::Zero(df);
    VF s1 = s0;
    VF s2 = s0;
    VF s3 = s0;
    for (std::size_t i = 0; i < k; i += 4, block += 4 * kPanel) {
      s0 = hn::MulAdd(hn::Set(df, query[i]), LoadCache(block), s0);
      s1 = hn::MulAdd(hn::Set(df, query[i + 1]), LoadCache(block + kPanel), s1);
      s2 = hn::MulAdd(hn::Set(df, query[i + 2]), LoadCache(block + 2 * kPanel), s2);
      s3 = hn::MulAdd(hn::Set(df, query[i + 3]), LoadCache(block + 3 * kPanel), s3);
    }
    VF score = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
    // What lies beyond the end is an earlier sentence's, or anything.
    if (t + kLanes > length) score = hn::IfThenElse(hn::FirstN(df, length - t), score, hn::Set(df, -1e30F));
    hn::Store(score, df, scores + t);
    most = hn::Max(most, score);
  }
  most = hn::Set(df, hn::ReduceMax(df, most));
  VF total = hn::Zero(df);
  for (std::size_t t = 0; t < length; t += kLanes) {
    const VF e = Exp(hn::Sub(hn::Load(df, scores + t), most));
    hn::Store(e, df, scores + t);
    total = hn::Add(total, t + kLanes > length ? hn::IfThenElseZero(hn::FirstN(df, length - t), e) : e);
  }
  const VF by = hn::Set(df, 1.0F / hn::ReduceSum(df, total));
  std::size_t c = 0;
  const C* values = cache.values;
  for (; c + 4 * kLanes <= k; c += 4 * kLanes) {
    Weigh(scores, values + c, length, k, by, out + c, std::make_index_sequence<4>());
  }
  for (; c + 2 * kLanes <= k; c += 2 * kLanes) {
    Weigh(scores, values + c, length, k, by, out + c, std::make_index_sequence<2>());
  }
  for (; c < k; c += kLanes) Weigh(scores, values + c, length, k, by, out + c, std::make_index_sequence<1>());
}

}  // namespace HWY_NAMESPACE
}  // namespace txport::core::fused
HWY_AFTER_NAMESPACE();
#endif
