// The encoder over some sentences at once, without padding: rows are their tokens.
#if defined(TXPORT_FUSED_ENCODER_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TXPORT_FUSED_ENCODER_INL_HPP
#undef TXPORT_FUSED_ENCODER_INL_HPP
#else
#define TXPORT_FUSED_ENCODER_INL_HPP
#endif

#include "fused/attention-inl.hpp"
#include "fused/compute.hpp"
#include "fused/products-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused {
namespace HWY_NAMESPACE {

// x [width] := the embedding of a token.
HWY_INLINE void Embed(const Model& model, const Embedding& embedding, std::size_t id, std::size_t position, float* x) {
  read_row(embedding.tokens, id, x);
  add_row(embedding.positions, position, model.embedding_scale, x);
  for (std::size_t i = model.d; i < model.width; ++i) x[i] = 0;
  if (embedding.norm.weight != nullptr) LayerNorm(x, embedding.norm, model.epsilon, model.d, x);
}

// The border between two sublayers: x += delta, LayerNorm. Pre-norm keeps the sum in x, post-norm what is normed. After
// the last sublayer there may be a second norm.
HWY_INLINE Input Border(const Model& model, const Norm& norm, std::size_t rows, const float* delta, const Buffers& own,
                        const Norm& second = {}) {
  for (std::size_t i = 0; i < rows; ++i) {
    float* x = own.x + i * model.width;
    if (delta != nullptr) AddTo(x, delta + i * model.width, model.width);
    float* normed = own.normed + i * model.width;
    if (norm.weight != nullptr) LayerNorm(x, norm, model.epsilon, model.d, normed);
    if (second.weight != nullptr) LayerNorm(normed, second, model.epsilon, model.d, normed);
  }
  return {own.normed, rows, model.width, false, own};
}

// Keys and values of one head in a sentence's cache.
template <class C>
HWY_INLINE HeadCache<C> At(C* cache, const CacheShape& shape, std::size_t layer, std::size_t head) {
  const std::size_t each = shape.positions * shape.k;
  C* keys = cache + (layer * 2 * shape.heads + head) * each;
  return {keys, keys + shape.heads * each, shape.k};
}

template <class C>
class Encoder {
 public:
  Encoder(const EncodeJob& job, const Member& member)
      : job_(job), m_(job.model), member_(member), own_(job.workspace.of(job.user + member.rank)) {}

  // Tokens are shared out; only attention needs those of the others: one barrier a layer, since layers take turns with
  // two caches.
  void Run() {
    Place_();
    for (std::size_t i = 0; i < rows_; ++i) {
      const Place& at = own_.places[i];
      const auto id = static_cast<std::size_t>(job_.sources[at.sentence].ids[at.position]);
      Embed(m_, m_.source, id, at.position, own_.x + i * m_.width);
    }
    const float* delta = nullptr;
    for (std::size_t l = 0; l < m_.encoder.size(); ++l) {
      Layer(l, delta);
      delta = own_.delta;
    }
    Input memory = Border(m_, m_.encoder_norms.back(), rows_, delta, own_, m_.encoder_final);
    for (std::size_t l = 0; l < m_.decoder.size(); ++l) Cross(l, memory);
  }

 private:
  const EncodeJob& job_;
  const Model& m_;
  const Member& member_;
  const Buffers& own_;
  std::size_t rows_ = 0;  // of this thread

  void Place_() {
    std::size_t tokens = 0;
    for (std::size_t s = 0; s < job_.count; ++s) tokens += job_.sources[s].length;
    const Member::Range mine = member_.share(tokens);
    std::size_t token = 0;
    std::size_t start = 0;
    for (std::size_t s = 0; s < job_.count; ++s) {
      for (std::size_t i = 0; i < job_.sources[s].length; ++i, ++token) {
        if (token >= mine.begin && token < mine.end) own_.places[rows_++] = {s, i, start};
      }
      start += padded(job_.sources[s].length);
    }
  }

  void Layer(std::size_t l, const float* delta) {
    const EncoderLayer& layer = m_.encoder[l];
    C* cache = reinterpret_cast<C*>(job_.workspace.cache(job_.user) + l % 2 * job_.cache_bytes);
    const std::size_t k = m_.heads.width();
    const std::size_t all = m_.heads.count * k;
    Times(Border(m_, m_.encoder_norms[2 * l], rows_, delta, own_), layer.query_key_value, own_.heads);
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t h = 0; h < m_.heads.count; ++h) {
        const float* query = own_.heads + i * 3 * all + h * 3 * k;
        Cache(cache, own_.places[i], h).Store(own_.places[i].position, query + k, query + 2 * k);
      }
    }
    member_.wait();
    for (std::size_t h = 0; h < m_.heads.count; ++h) {
      for (std::size_t i = 0; i < rows_; ++i) {
        const Place& at = own_.places[i];
        Attend(own_.heads + i * 3 * all + h * 3 * k, Cache(cache, at, h), job_.sources[at.sentence].length, own_.scores,
               own_.mixed + i * all + h * k);
      }
    }
    Times(Input(own_.mixed, rows_, all, false, own_), layer.output, own_.delta);
    Times(Border(m_, m_.encoder_norms[2 * l + 1], rows_, own_.delta, own_), layer.inner, own_.hidden, m_.activation);
    const bool positive = m_.activation == Activation::relu;
    Times(Input(own_.hidden, rows_, layer.inner.outputs(), positive, own_), layer.outer, own_.delta);
  }

  void Cross(std::size_t l, Input& memory) {
    const std::size_t k = m_.heads.width();
    const Matrix& matrix = m_.decoder[l].key_value;
    Times(memory, matrix, own_.heads);
    for (std::size_t i = 0; i < rows_; ++i) {
      const Place& at = own_.places[i];
      const Source& source = job_.sources[at.sentence];
      for (std::size_t h = 0; h < m_.heads.count; ++h) {
        const float* key = own_.heads + i * matrix.outputs() + h * 2 * k;
        At(reinterpret_cast<C*>(source.cross), cache_shape(m_, source.length), l, h).Store(at.position, key, key + k);
      }
    }
  }

  // All outputs of `w`.
  void Times(Input&& a, const Matrix& w, float* to, Activation activation = Activation::none) {
    Times(a, w, to, activation);
  }
  void Times(Input& a, const Matrix& w, float* to, Activation activation = Activation::none) {
    a.Times(w, 0, w.panels, Out{to, w.outputs(), activation});
  }

  // A head of a sentence among those of the group.
  HeadCache<C> Cache(C* cache, const Place& at, std::size_t head) const {
    const std::size_t k = m_.heads.width();
    const CacheShape one{1, m_.heads.count, k, padded(job_.sources[at.sentence].length)};
    return At(cache + at.start * 2 * m_.heads.count * k, one, 0, head);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace txport::core::fused
HWY_AFTER_NAMESPACE();
#endif
