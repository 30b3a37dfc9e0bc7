// The encoder over some sentences at once, without padding: rows are their tokens.

#include "fused/attention-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused::HWY_NAMESPACE {

// x [width] := the embedding of a token.
HWY_INLINE void Embed(const Model& model, const Embedding& embedding, std::size_t id, std::size_t position, float* x) {
  embed(embedding.tokens, id, model.embedding_scale, embedding.positions.data() + position * model.width, x);
  if (!embedding.norm.weight.empty()) LayerNorm(x, embedding.norm, model.epsilon, model.d, x);
}

// The border between two sublayers: x += delta, LayerNorm. Pre-norm keeps the sum in x, post-norm what is normed. After
// the last sublayer there may be a second norm.
HWY_INLINE Input Border(const Model& model, const Norm& norm, std::size_t rows, const float* delta, const Buffers& own,
                        const Norm& second = {}) {
  for (std::size_t i = 0; i < rows; ++i) {
    float* x = own.x + i * model.width;
    for (std::size_t j = 0; delta != nullptr && j < model.width; j += kLanes) {
      hn::Store(hn::Add(hn::Load(df, x + j), hn::Load(df, delta + i * model.width + j)), df, x + j);
    }
    float* normed = own.normed + i * model.width;
    if (!norm.weight.empty()) LayerNorm(x, norm, model.epsilon, model.d, normed);
    if (!second.weight.empty()) LayerNorm(normed, second, model.epsilon, model.d, normed);
  }
  return {own.normed, rows, model.width, false, own};
}

class Encoder {
 public:
  Encoder(const EncodeJob& job, const Member& member)
      : job_(job), m_(job.model), member_(member), own_(job.workspace.of(job.user + member.rank)) {}

  // Tokens are shared out, four positions at once, since those share words of a cache; only attention needs those of
  // the others: one barrier a layer, since layers take turns with two caches.
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
    const Member::Range mine = member_.share(job_.tokens);
    std::size_t token = 0;
    std::size_t start = 0;
    for (std::size_t s = 0; s < job_.count; ++s) {
      const std::size_t length = job_.sources[s].length;
      for (std::size_t i = 0; i < length; ++i) {
        const std::size_t first = token + i / 4 * 4;
        if (first >= mine.begin && first < mine.end) own_.places[rows_++] = {s, i, start};
      }
      token += length;
      start += cache_shape(m_, job_.sources[s].length).layer_bytes();
    }
  }

  void Layer(std::size_t l, const float* delta) {
    const EncoderLayer& layer = m_.encoder[l];
    std::byte* cache = job_.workspace.of(job_.user).caches + l % 2 * job_.cache_bytes;
    const std::size_t k = m_.heads.width();
    Product(Border(m_, m_.encoder_norms[2 * l], rows_, delta, own_), layer.query_key_value, Member{}, own_.heads);
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t h = 0; h < m_.heads.count; ++h) {
        const float* query = own_.heads + i * 3 * m_.all + h * 3 * k;
        const CacheShape shape = cache_shape(m_, Length(i));
        At(cache + own_.places[i].start, shape, 0, h).Store(own_.places[i].position, query + k, query + 2 * k, own_);
      }
    }
    member_.wait();
    for (std::size_t i = 0, end = 0; i < rows_; i = end) {
      while (end < rows_ && own_.places[end].sentence == own_.places[i].sentence) ++end;
      const Queries queries{own_.heads + i * 3 * m_.all, end - i, 3 * m_.all, 3 * k};
      Attend(cache + own_.places[i].start, cache_shape(m_, Length(i)), 0, {0, m_.heads.count}, Length(i), queries, own_,
             {own_.mixed + i * m_.all, m_.all});
    }
    Product(Input{own_.mixed, rows_, m_.all, false, own_}, layer.output, Member{}, own_.delta);
    Input normed = Border(m_, m_.encoder_norms[2 * l + 1], rows_, own_.delta, own_);
    Product(normed, layer.inner, Member{}, own_.hidden, 0, m_.activation);
    const bool positive = m_.activation == Activation::relu;
    Product(Input{own_.hidden, rows_, layer.inner.outputs(), positive, own_}, layer.outer, Member{}, own_.delta);
  }

  void Cross(std::size_t l, Input& memory) {
    const std::size_t k = m_.heads.width();
    const Matrix& matrix = m_.decoder[l].key_value;
    memory.Times(matrix, 0, matrix.panels, {own_.heads, matrix.outputs()});
    for (std::size_t i = 0; i < rows_; ++i) {
      const Place& at = own_.places[i];
      const Source& source = job_.sources[at.sentence];
      for (std::size_t h = 0; h < m_.heads.count; ++h) {
        const float* key = own_.heads + i * matrix.outputs() + h * 2 * k;
        At(source.cross, cache_shape(m_, source.length), l, h).Store(at.position, key, key + k, own_);
      }
    }
  }

  // Of the sentence of a row.
  std::size_t Length(std::size_t row) const { return job_.sources[own_.places[row].sentence].length; }
};

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
