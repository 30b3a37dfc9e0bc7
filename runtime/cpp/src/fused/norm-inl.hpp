// Operations between sublayers: embeddings, residual sums and norms.
#if defined(TXPORT_FUSED_NORM_INL) == defined(HWY_TARGET_TOGGLE)  // once for each instruction set
#ifdef TXPORT_FUSED_NORM_INL
#undef TXPORT_FUSED_NORM_INL
#else
#define TXPORT_FUSED_NORM_INL
#endif

#include <cmath>

#include "fused/products-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused::HWY_NAMESPACE {

// Compute y = RMSNorm(x) of `d` numbers (Zhang and Sennrich 2019). y may be x. Both are padded with zeros to a multiple
// of 16.
HWY_INLINE void RmsNorm(const float* x, const Norm& norm, float epsilon, std::size_t d, float* y) {
  const auto square = [x](std::size_t i) HWY_ATTR { return hn::Mul(hn::Load(df, x + i), hn::Load(df, x + i)); };
  const VF by = hn::Set(df, 1.0F / std::sqrt(Sum(padded(d), square) / static_cast<float>(d) + epsilon));
  for (std::size_t i = 0; i < padded(d); i += kLanes) {
    hn::Store(hn::Mul(hn::Mul(hn::Load(df, x + i), by), hn::LoadU(df, norm.weight.data() + i)), df, y + i);
  }
}

// Compute y = LayerNorm(x) of `d` numbers, or RMSNorm(x) if the norm has no bias. y may be x; both are padded as above.
HWY_INLINE void LayerNorm(const float* x, const Norm& norm, float epsilon, std::size_t d, float* y) {
  if (norm.bias.empty()) return RmsNorm(x, norm, epsilon, d, y);
  const std::size_t width = padded(d);
  const auto count = static_cast<float>(d);
  const VF mean = hn::Set(df, Sum(width, [&](std::size_t i) HWY_ATTR { return hn::Load(df, x + i); }) / count);
  const float square = Sum(width, [&](std::size_t i) HWY_ATTR {
    VF off = hn::Sub(hn::Load(df, x + i), mean);
    if (HWY_UNLIKELY(i + kLanes > d)) off = hn::IfThenElseZero(hn::FirstN(df, i < d ? d - i : 0), off);
    return hn::Mul(off, off);
  });
  const VF by = hn::Set(df, 1.0F / std::sqrt(square / count + epsilon));
  for (std::size_t i = 0; i < width; i += kLanes) {
    const VF normed = hn::Mul(hn::Sub(hn::Load(df, x + i), mean), by);
    hn::Store(hn::MulAdd(normed, hn::LoadU(df, norm.weight.data() + i), hn::LoadU(df, norm.bias.data() + i)), df,
              y + i);
  }
}

// Compute the embedding of a token, x [width].
HWY_INLINE void Embed(const Model& model, const Embedding& embedding, std::size_t id, std::size_t position, float* x) {
  embed(embedding.tokens, id, model.embedding_scale, embedding.positions.data() + position * embedding.next, x);
  if (!embedding.norm.weight.empty()) LayerNorm(x, embedding.norm, model.epsilon, model.d, x);
}

// Add the position to a projected feature vector, x [width], and apply the norm of embeddings.
HWY_INLINE void Place(const Model& model, const Embedding& embedding, std::size_t position, float* x) {
  const float* at = embedding.positions.data() + position * embedding.next;
  for (std::size_t i = 0; i < model.width; i += kLanes) {
    hn::Store(hn::Add(hn::Load(df, x + i), hn::LoadU(df, at + i)), df, x + i);
  }
  if (!embedding.norm.weight.empty()) LayerNorm(x, embedding.norm, model.epsilon, model.d, x);
}

// Apply "Add & Norm" (Vaswani et al. 2017, figure 1) between two sublayers: add delta to x, then normalise. With
// pre-norm, x stays the sum; with post-norm, it becomes the normalised sum. After the last sublayer there may be a
// second norm.
HWY_INLINE Input AddNorm(const Model& model, const Norm& norm, std::size_t rows, const float* delta,
                         const OwnBuffers& own, const Norm& second = {}) {
  for (std::size_t i = 0; i < rows; ++i) {
    float* x = own.x + i * model.width;
    for (std::size_t j = 0; delta != nullptr && j < model.width; j += kLanes) {
      hn::Store(hn::Add(hn::Load(df, x + j), hn::Load(df, delta + i * model.width + j)), df, x + j);
    }
    float* normed = own.normed + i * model.width;
    if (!norm.weight.empty()) LayerNorm(x, norm, model.epsilon, model.d, normed);
    if (!second.weight.empty()) LayerNorm(normed, second, model.epsilon, model.d, normed);
  }
  return {own, own.normed, rows, model.width};
}

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TXPORT_FUSED_NORM_INL
