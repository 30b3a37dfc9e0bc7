// The encoder over some sentences at once, without padding: rows are their tokens.

#include "fused/attention-inl.hpp"
#include "fused/norm-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused::HWY_NAMESPACE {

class Encoder {
 public:
  Encoder(const EncodeJob& job, const Member& member)
      : job_(job),
        m_(job.model),
        member_(member),
        own_(job.workspace.own(job.team + member.rank)),
        team_(job.workspace.team(job.team)) {
    const Member::Range mine = share_tokens(job, member, own_.tokens);
    rows_ = mine.end - mine.begin;
    mixed_ = team_.mixed + mine.begin * m_.encoder_all;
    delta_ = team_.delta + mine.begin * m_.width;
    hidden_ = team_.hidden + mine.begin * m_.ffn;
    gate_ = team_.gate + mine.begin * m_.ffn;
  }

  // Only attention needs the tokens of other threads: one barrier a layer, since layers take turns with two caches.
  void Run() {
    for (std::size_t i = 0; i < rows_; ++i) {
      const SourceToken& at = own_.tokens[i];
      const auto id = static_cast<std::size_t>(job_.sources[at.sentence].ids[at.position]);
      Embed(m_, m_.source, id, at.position, own_.x + i * m_.width);
    }
    for (std::size_t l = 0; l < m_.encoder.size(); ++l) Layer(l);
    const float* delta = m_.encoder.empty() ? nullptr : delta_;
    Input memory = AddNorm(m_, m_.encoder_norms.back(), rows_, delta, own_, m_.encoder_final);
    for (std::size_t l = 0; l < m_.decoder.size(); ++l) Cross(l, memory);
  }

 private:
  const EncodeJob& job_;
  const Model& m_;
  const Member& member_;
  const OwnBuffers& own_;
  const TeamBuffers& team_;
  std::size_t rows_ = 0;    // of this thread
  float* mixed_ = nullptr;  // this thread's rows of the team's
  float* delta_ = nullptr;
  float* hidden_ = nullptr;
  float* gate_ = nullptr;

  void Layer(std::size_t l) {
    const EncoderLayer& layer = m_.encoder[l];
    const float* delta = l == 0 ? nullptr : delta_;
    std::byte* cache = team_.caches + l % 2 * job_.cache_bytes;
    const std::size_t k = m_.encoder_heads.width();
    Product(AddNorm(m_, m_.encoder_norms[2 * l], rows_, delta, own_), layer.query_key_value, Member{}, own_.heads);
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t h = 0; h < m_.encoder_heads.count; ++h) {
        float* query = own_.heads + i * 3 * m_.encoder_all + h * 3 * k;
        Rotate(m_.encoder_rotation, own_.tokens[i].position, query, k);
        const CacheShape shape = source_shape(m_, Length(i));
        At(cache + own_.tokens[i].start, shape, 0, h).Store(own_.tokens[i].position, query + k, query + 2 * k, own_);
      }
    }
    member_.wait();
    for (std::size_t i = 0, end = 0; i < rows_; i = end) {
      while (end < rows_ && own_.tokens[end].sentence == own_.tokens[i].sentence) ++end;
      const Queries queries{own_.heads + i * 3 * m_.encoder_all, end - i, 3 * m_.encoder_all, 3 * k,
                            own_.tokens[i].position};
      Attend(Whole{cache + own_.tokens[i].start}, source_shape(m_, Length(i)), 0, {0, m_.encoder_heads.count},
             Length(i), queries, m_.encoder_bias, l, own_, {mixed_ + i * m_.encoder_all, m_.encoder_all});
    }
    Product({own_, mixed_, rows_, m_.encoder_all}, layer.output, Member{}, delta_);
    InnerProduct(AddNorm(m_, m_.encoder_norms[2 * l + 1], rows_, delta_, own_), layer, m_.activation, Member{}, hidden_,
                 gate_);
    Input hidden{own_, hidden_, rows_, layer.inner.outputs()};
    hidden.positive = m_.activation == Activation::relu && !m_.gated;
    Product(hidden, layer.outer, Member{}, delta_);
  }

  void Cross(std::size_t l, Input& memory) {
    const std::size_t k = m_.heads.width();
    const Matrix& matrix = m_.decoder[l].key_value;
    memory.Times(matrix, 0, matrix.panels, {own_.heads, matrix.outputs()});
    for (std::size_t i = 0; i < rows_; ++i) {
      const SourceToken& at = own_.tokens[i];
      const Source& source = job_.sources[at.sentence];
      for (std::size_t h = 0; h < m_.heads.count; ++h) {
        const float* key = own_.heads + i * matrix.outputs() + h * 2 * k;
        At(source.cross, cache_shape(m_, source.length), l, h).Store(at.position, key, key + k, own_);
      }
    }
  }

  // Of the sentence of a row.
  std::size_t Length(std::size_t row) const { return job_.sources[own_.tokens[row].sentence].length; }
};

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
