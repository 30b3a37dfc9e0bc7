// Steps of the decoder: one token for each unfinished row, chosen at once.

#include <limits>

#include "fused/encoder-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused {
namespace HWY_NAMESPACE {

// Threads of a team own heads and columns. x is each one's own copy; what attention and products give is shared.
class Decoder {
 public:
  Decoder(const StepJob& job, const Member& member)
      : job_(job),
        m_(job.model),
        member_(member),
        own_(job.workspace.of(job.user + member.rank)),
        all_(job.workspace.of(job.user)),
        k_(m_.heads.width()),
        width_(m_.heads.count * k_),
        shape_(cache_shape(m_, job.target)),
        heads_(member.share(m_.heads.count)) {}

  // Every thread of a team keeps the same books; the first writes them down.
  void Run() {
    for (; rows_ < job_.count; ++rows_) {
      Row* row = job_.rows[rows_];
      own_.live[rows_] = {row, row->token, row->position};
    }
    for (std::size_t s = 0; s < job_.steps && rows_ > 0; ++s) {
      Step();
      std::size_t kept = 0;
      for (std::size_t i = 0; i < rows_; ++i) {
        Live live = own_.live[i];
        if (!Advance(live, i, s)) own_.live[kept++] = live;
      }
      rows_ = kept;
    }
  }

 private:
  static constexpr Best kNone{-std::numeric_limits<float>::infinity(), 0};

  const StepJob& job_;
  const Model& m_;
  const Member& member_;
  const Buffers& own_;
  const Buffers& all_;
  const std::size_t k_;
  const std::size_t width_;  // of all heads
  const CacheShape shape_;
  const Member::Range heads_;  // of this thread
  std::size_t rows_ = 0;

  // Takes the choice of a step; returns whether the row has finished.
  bool Advance(Live& live, std::size_t i, std::size_t s) {
    Best best = kNone;
    for (std::size_t rank = 0; rank < member_.size; ++rank) {
      const Best& theirs = job_.workspace.of(job_.user + rank).choice[i];
      if (theirs.value > best.value) best = theirs;  // of equals the first stays, as ArgMax
    }
    live.token = static_cast<std::size_t>(best.index);
    const bool ends = live.token == job_.eos || live.position + 1 >= live.row->limit;
    if (!ends) ++live.position;
    if (member_.rank == 0) {
      job_.made[s * job_.stride + static_cast<std::size_t>(live.row - job_.base)] = best.index;
      live.row->token = live.token;
      live.row->logits = job_.first + i;
      live.row->position = live.position;
      live.row->finished = ends;
    }
    return ends;
  }

  void Step() {
    for (std::size_t i = 0; i < rows_; ++i) {
      const Live& live = own_.live[i];
      Embed(m_, m_.target, live.token, live.position, own_.x + i * m_.width);
    }
    const float* delta = nullptr;
    const Norm* norm = m_.decoder_norms.data();
    for (std::size_t l = 0; l < m_.decoder.size(); ++l, norm += 3) {
      Layer(l, norm, delta);
      delta = all_.delta;
    }
    Choose(Border(m_, *norm, rows_, delta, own_, m_.decoder_final));
  }

  void Layer(std::size_t l, const Norm* norm, const float* delta) {
    const DecoderLayer& layer = m_.decoder[l];
    Heads(Border(m_, norm[0], rows_, delta, own_), layer.query_key_value);
    for (std::size_t i = 0; i < rows_; ++i) {
      const Live& live = own_.live[i];
      for (std::size_t h = heads_.begin; h < heads_.end; ++h) {
        const float* query = own_.heads + (i * width_ + h * k_) * 3;
        At(live.row->self.get(), shape_, l, h).Store(live.position, query + k_, query + 2 * k_, own_);
      }
      Attend(live.row->self.get(), shape_, l, heads_, live.position + 1, {own_.heads + i * width_ * 3, 1, 0, 3 * k_},
             own_, {all_.mixed + i * width_, 0});
    }
    member_.wait();
    Columns(Input{all_.mixed, rows_, width_, false, own_}, layer.self_output, all_.delta);
    member_.wait();
    Heads(Border(m_, norm[1], rows_, all_.delta, own_), layer.query);
    for (std::size_t i = 0; i < rows_; ++i) {
      const Row& row = *own_.live[i].row;
      const CacheShape shape = cache_shape(m_, row.source);
      Attend(row.cross.get(), shape, l, heads_, row.source, {own_.heads + i * width_, 1, 0, k_}, own_,
             {all_.mixed + i * width_, 0});
    }
    member_.wait();
    Columns(Input{all_.mixed, rows_, width_, false, own_}, layer.cross_output, all_.delta);
    member_.wait();
    Columns(Border(m_, norm[2], rows_, all_.delta, own_), layer.inner, all_.hidden, m_.activation);
    member_.wait();
    const bool positive = m_.activation == Activation::relu;
    Columns(Input{all_.hidden, rows_, layer.inner.outputs(), positive, own_}, layer.outer, all_.delta);
    member_.wait();
  }

  // The largest logit of each row, among this thread's columns.
  void Choose(Input last) {
    const Member::Range panels = member_.share(m_.projection.panels);
    std::fill_n(own_.choice, rows_, kNone);
    for (std::size_t p = panels.begin; p < panels.end; p += kLogits / kPanel) {
      const std::size_t end = std::min(p + kLogits / kPanel, panels.end);
      Out out{own_.logits, kLogits};
      if (job_.logits != nullptr) {
        const std::size_t stride = m_.projection.outputs();
        out = {job_.logits + job_.first * stride + p * kPanel, stride};
      }
      last.Times(m_.projection, p, end, out);
      for (std::size_t i = 0; i < rows_; ++i) {
        FindLargest(out.data + i * out.stride, (end - p) * kPanel, p * kPanel, own_.choice[i]);
      }
    }
    member_.wait();
  }

  // The outputs of this thread's heads.
  void Heads(Input a, const Matrix& w) {
    const std::size_t panels = w.panels / m_.heads.count;
    a.Times(w, heads_.begin * panels, heads_.end * panels, {own_.heads + heads_.begin * panels * kPanel, w.outputs()});
  }
  // This thread's outputs.
  void Columns(Input a, const Matrix& w, float* to, Activation activation = Activation::none) {
    const Member::Range panels = member_.share(w.panels);
    const Out out{to + panels.begin * kPanel, w.outputs()};
    a.Times(w, panels.begin, panels.end, out);
    if (activation != Activation::none) Activate(activation, out, rows_, (panels.end - panels.begin) * kPanel);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace txport::core::fused
HWY_AFTER_NAMESPACE();
