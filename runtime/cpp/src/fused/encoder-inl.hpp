// The encoder over some sentences at once, without padding: rows are their tokens.

#include <algorithm>

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
        columns_(job.by_columns ? member : Member{}),
        heads_(columns_.share_or_part(m_.encoder_heads.count)),
        cross_heads_(columns_.share_or_part(m_.heads.count)),
        own_(job.workspace.own(job.team + member.rank)),
        team_(job.workspace.team(job.team)) {
    if (job.by_columns) {  // each call writes own_.tokens, which has room for all tokens
      attended_ = share_tokens(job, member.part(m_.encoder_heads.count), own_.tokens);
      crossed_ = share_tokens(job, member.part(m_.heads.count), own_.tokens);
    }
    const Member::Range mine = share_tokens(job, job.by_columns ? Member{} : member, own_.tokens);
    rows_ = mine.end - mine.begin;
    if (!job.by_columns) attended_ = crossed_ = {0, rows_};
    mixed_ = team_.mixed + mine.begin * m_.encoder_all;
    delta_ = team_.delta + mine.begin * m_.width;
    hidden_ = team_.hidden + mine.begin * m_.ffn;
    gate_ = team_.gate + mine.begin * m_.ffn;
  }

  void Run() {
    if (m_.features > 0) {
      ReadFeatures();
    } else {
      for (std::size_t i = 0; i < rows_; ++i) {
        const SourceToken& at = own_.tokens[i];
        const auto id = static_cast<std::size_t>(job_.sources[at.sentence].ids[at.position]);
        Embed(m_, m_.source, id, at.position, own_.x + i * m_.width);
      }
    }
    for (std::size_t l = 0; l < m_.encoder.size(); ++l) Layer(l);
    Input memory = Memory().Part(crossed_);
    for (std::size_t l = 0; l < m_.decoder.size(); ++l) Cross(l, memory);
  }

 private:
  const EncodeJob& job_;
  const Model& m_;
  const Member& member_;
  const Member columns_;             // this thread in the team that divides columns; alone unless job.by_columns
  const Member::Range heads_;        // heads of the encoder of this thread
  const Member::Range cross_heads_;  // heads of cross-attention of this thread
  const OwnBuffers& own_;
  const TeamBuffers& team_;
  std::size_t rows_ = 0;          // number of rows of this thread
  Member::Range attended_{0, 0};  // rows whose attention this thread computes, for its heads
  Member::Range crossed_{0, 0};   // rows whose keys and values of cross-attention it computes
  float* mixed_ = nullptr;        // this thread's rows in the buffers of the team, as the next three
  float* delta_ = nullptr;
  float* hidden_ = nullptr;
  float* gate_ = nullptr;

  // Read the feature vectors of this thread's rows, and project them into the residual stream, unless they are the
  // states of another encoder.
  void ReadFeatures() {
    const std::size_t width = padded(m_.features);
    for (std::size_t i = 0; i < rows_; ++i) {
      const SourceToken& at = own_.tokens[i];
      const float* from = job_.sources[at.sentence].features + at.position * m_.features;
      float* to = own_.features + i * width;
      std::fill(std::copy_n(from, m_.features, to), to + width, 0.0F);
    }
    if (m_.encoder.empty()) return;
    Product({own_, own_.features, rows_, width}, m_.feature_projection, Member{}, own_.x);
    for (std::size_t i = 0; i < rows_; ++i) Place(m_, m_.source, own_.tokens[i].position, own_.x + i * m_.width);
  }

  // Return the output of the encoder, from which the keys and values of cross-attention are computed.
  Input Memory() {
    if (m_.encoder.empty()) return {own_, own_.features, rows_, padded(m_.features)};
    return AddNorm(m_, m_.encoder_norms.back(), rows_, delta_, own_, m_.encoder_final);
  }

  // Compute a layer. Threads that divide tokens wait for each other once in each layer, for keys and values, so layers
  // alternate between two caches. Threads that divide columns wait after each product.
  void Layer(std::size_t l) {
    const EncoderLayer& layer = m_.encoder[l];
    const float* delta = l == 0 ? nullptr : delta_;
    std::byte* cache = team_.caches + l % 2 * job_.cache_bytes;
    const std::size_t k = m_.encoder_heads.width();
    const std::size_t all = 3 * m_.encoder_all;
    Input input = AddNorm(m_, m_.encoder_norms[2 * l], rows_, delta, own_).Part(attended_);
    HeadsProduct(input, layer.query_key_value, heads_, m_.encoder_heads.count, own_.heads + attended_.begin * all);
    for (std::size_t i = attended_.begin; i < attended_.end; ++i) {
      for (std::size_t h = heads_.begin; h < heads_.end; ++h) {
        float* query = own_.heads + i * all + h * 3 * k;
        Rotate(m_.encoder_rotation, own_.tokens[i].position, query, k);
        const CacheShape shape = source_shape(m_, Length(i));
        At(cache + own_.tokens[i].start, shape, 0, h).Store(own_.tokens[i].position, query + k, query + 2 * k, own_);
      }
    }
    if (!job_.by_columns || member_.size > m_.encoder_heads.count) member_.wait();
    for (std::size_t i = attended_.begin, end = i; i < attended_.end; i = end) {
      while (end < attended_.end && own_.tokens[end].sentence == own_.tokens[i].sentence) ++end;
      const Queries queries{own_.heads + i * all, end - i, all, 3 * k, own_.tokens[i].position};
      Attend(Whole{cache + own_.tokens[i].start}, source_shape(m_, Length(i)), 0, heads_, Length(i), queries,
             m_.encoder_bias, l, own_, {mixed_ + i * m_.encoder_all, m_.encoder_all});
    }
    columns_.wait();
    Product({own_, mixed_, rows_, m_.encoder_all}, layer.output, columns_, delta_);
    columns_.wait();
    InnerProduct(AddNorm(m_, m_.encoder_norms[2 * l + 1], rows_, delta_, own_), layer, m_.activation, columns_, hidden_,
                 gate_);
    columns_.wait();
    Input hidden{own_, hidden_, rows_, layer.inner.outputs()};
    hidden.positive = m_.activation == Activation::relu && !m_.gated;
    Product(hidden, layer.outer, columns_, delta_);
    columns_.wait();
  }

  void Cross(std::size_t l, Input& memory) {
    const std::size_t k = m_.heads.width();
    const Matrix& matrix = m_.decoder[l].key_value;
    HeadsProduct(memory, matrix, cross_heads_, m_.heads.count, own_.heads + crossed_.begin * matrix.outputs());
    for (std::size_t i = crossed_.begin; i < crossed_.end; ++i) {
      const SourceToken& at = own_.tokens[i];
      const Source& source = job_.sources[at.sentence];
      for (std::size_t h = cross_heads_.begin; h < cross_heads_.end; ++h) {
        const float* key = own_.heads + i * matrix.outputs() + h * 2 * k;
        At(source.cross, cache_shape(m_, source.length), l, h).Store(at.position, key, key + k, own_);
      }
    }
  }

  // Return the length of the sentence of a row.
  std::size_t Length(std::size_t row) const { return job_.sources[own_.tokens[row].sentence].length; }
};

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
