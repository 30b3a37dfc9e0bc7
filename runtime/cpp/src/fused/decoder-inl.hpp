// Steps of the decoder: one token for each unfinished row, chosen at once.

#include <algorithm>
#include <cmath>
#include <limits>

#include "fused/attention-inl.hpp"
#include "fused/norm-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused::HWY_NAMESPACE {

// Maximum number of bytes of weights, times rows, that a thread reads beyond its share to avoid a barrier.
constexpr std::size_t kMaxRepeated = std::size_t{128} << 10;

// Decoder on one thread of a team. Threads divide heads and columns. Each has a copy of the residual stream x; outputs
// of attention and of products are shared.
class Decoder {
 public:
  Decoder(const StepJob& job, const Member& member)
      : job_(job),
        m_(job.model),
        projection_(*job.projection),
        member_(member),
        own_(job.workspace.own(job.team + member.rank)),
        team_(job.workspace.team(job.team)),
        best_(team_.best + member.rank * team_.best_stride),
        shape_(cache_shape(m_, kPanel)),
        heads_(member.share_or_part(m_.heads.count)),
        part_(member.part(m_.heads.count)) {}

  // Run the steps. All threads update their copies of the progress of rows in the same way; the first thread writes it
  // to the rows.
  void Run() {
    for (; rows_ < job_.count; ++rows_) {
      Row* row = job_.rows[rows_];
      own_.active[rows_] = {row, row->progress, {}};
    }
    for (std::size_t s = 0; s < job_.steps && rows_ > 0; ++s) {
      Step();
      std::size_t kept = 0;
      for (std::size_t i = 0; i < rows_; ++i) {
        ActiveRow active = own_.active[i];
        Advance(active, i, s);
        if (!active.progress.finished()) own_.active[kept++] = active;
      }
      rows_ = kept;
    }
  }

 private:
  static constexpr std::size_t kChunk = kLogits / kPanel;

  const StepJob& job_;
  const Model& m_;
  const Matrix& projection_;
  const Member& member_;
  const OwnBuffers& own_;
  const TeamBuffers& team_;
  Best* const best_;           // [rows] best logits among this thread's columns
  const CacheShape shape_;     // shape of a page
  const Member::Range heads_;  // heads of this thread
  const Member part_;          // this thread among those with the same heads, which divide rows between them
  std::size_t rows_ = 0;

  // Append the token that a step chose for row i.
  void Advance(ActiveRow& active, std::size_t i, std::size_t s) const {
    Best best;
    for (std::size_t rank = 0; rank < member_.size; ++rank) {
      const Best& theirs = team_.best[rank * team_.best_stride + i];
      if (theirs.value > best.value) best = theirs;  // of equals the first stays, as ArgMax
    }
    const std::int32_t token = Id(best.index);
    active.progress.advance(static_cast<std::size_t>(token), job_.eos);
    const auto row = static_cast<std::size_t>(active.row - job_.base);
    if (job_.top > 0 && i % member_.size == member_.rank) Merge(i, row, best.value);
    if (member_.rank == 0) {
      job_.made[s * job_.stride + row] = token;
      active.row->progress = active.progress;
      active.row->logits = job_.first + i;
    }
  }

  // Return the token of a column. If no logit could be chosen, the column may be out of range: return any token.
  std::int32_t Id(std::int32_t column) const {
    if (job_.ids == nullptr) return column;
    return static_cast<std::size_t>(column) < job_.id_count ? job_.ids[column] : 0;
  }

  const Columns& ColumnsOf(std::size_t i) const { return own_.active[i].row->columns; }
  std::size_t Chunks() const { return (projection_.panels + kChunk - 1) / kChunk; }

  Candidates OfThread(std::size_t rank, std::size_t i) const {
    return {team_.candidates + (rank * job_.count + i) * team_.top_stride, job_.top};
  }

  // Compute the candidates of a row from those of all threads, and the normaliser from the sums of all chunks, in their
  // order. The number of threads does not change a bit of the results.
  void Merge(std::size_t i, std::size_t row, float largest) const {
    const Candidates all(job_.candidates + row * job_.top, job_.top);
    all.clear();
    for (std::size_t rank = 0; rank < member_.size; ++rank) all.offer(OfThread(rank, i));
    for (std::size_t c = 0; c < job_.top; ++c) {
      Best& each = job_.candidates[row * job_.top + c];
      // A row with fewer words than candidates is filled with the first id and -infinity.
      each.index = each.index == std::numeric_limits<std::int32_t>::max() ? 0 : Id(each.index);
    }
    const std::size_t chunks = ColumnsOf(i).all() ? Chunks() : SumListed(i);
    double sum = 0;
    for (std::size_t c = 0; c < chunks; ++c) {
      const ChunkSum& chunk = team_.sums[i * team_.chunks + c];
      sum += chunk.sum * std::exp(static_cast<double>(chunk.largest) - static_cast<double>(largest));
    }
    job_.normalisers[row] = static_cast<double>(largest) + std::log(sum);
  }

  // Compute the sums of chunks of a row with a shortlist. Chunks consist of consecutive words of the shortlist. Return
  // the number of chunks.
  std::size_t SumListed(std::size_t i) const {
    float* listed = team_.listed + i * team_.listed_stride;
    const std::size_t size = ColumnsOf(i).size();
    std::fill(listed + size, listed + padded(size), Best{}.value);
    const std::size_t chunks = (size + kLogits - 1) / kLogits;
    for (std::size_t c = 0; c < chunks; ++c) {
      const std::size_t begin = c * kLogits;
      const std::size_t count = std::min(kLogits, padded(size) - begin);
      Best best;
      const float largest = FindLargest(listed + begin, count, 0, best);
      team_.sums[i * team_.chunks + c] = SumOf(listed + begin, count, largest);
    }
    return chunks;
  }

  // Return the panels whose logits this thread computes: complete chunks if sums of chunks are needed.
  Member::Range Panels() const {
    const std::size_t panels = projection_.panels;
    if (job_.top == 0) return member_.share(panels);
    const Member::Range mine = member_.share(Chunks());
    return {mine.begin * kChunk, std::min(mine.end * kChunk, panels)};
  }

  void Step() {
    for (std::size_t i = 0; i < rows_; ++i) {
      const Progress& progress = own_.active[i].progress;
      Embed(m_, m_.target, progress.token(), progress.position(), own_.x + i * m_.width);
    }
    const float* delta = nullptr;
    const Norm* norm = m_.decoder_norms.data();
    for (std::size_t l = 0; l < m_.decoder.size(); ++l, norm += 3) {
      Layer(l, norm, delta);
      delta = team_.delta;
    }
    Choose(AddNorm(m_, *norm, rows_, delta, own_, m_.decoder_final));
  }

  void Layer(std::size_t l, const Norm* norm, const float* delta) {
    const DecoderLayer& layer = m_.decoder[l];
    float* mixed = team_.mixed;
    float* cross_mixed = team_.mixed + rows_ * m_.all;  // others may still read the former
    const Member::Range rows = part_.share(rows_);
    Input self = AddNorm(m_, norm[0], rows_, delta, own_).Part(rows);
    HeadsProduct(self, layer.query_key_value, heads_, shape_.heads, own_.heads + rows.begin * 3 * m_.all);
    for (std::size_t i = rows.begin; i < rows.end; ++i) {
      const Page* pages = own_.active[i].row->pages.data();
      const std::size_t position = own_.active[i].progress.position();
      for (std::size_t h = heads_.begin; h < heads_.end; ++h) {
        float* query = own_.heads + (i * m_.all + h * shape_.k) * 3;
        Rotate(m_.decoder_rotation, position, query, shape_.k);
        At(pages[position / kPanel].get(), shape_, l, h)
            .Store(position % kPanel, query + shape_.k, query + 2 * shape_.k, own_);
      }
      const Queries queries{own_.heads + i * m_.all * 3, 1, 0, 3 * shape_.k, position};
      Attend(Paged{pages}, shape_, l, heads_, position + 1, queries, m_.decoder_bias, l, own_, {mixed + i * m_.all, 0});
    }
    member_.wait();
    delta = Output(mixed, layer.self_output);
    Input cross = AddNorm(m_, norm[1], rows_, delta, own_).Part(rows);
    HeadsProduct(cross, layer.query, heads_, shape_.heads, own_.heads + rows.begin * m_.all);
    for (std::size_t i = rows.begin, end = i; i < rows.end; i = end) {
      const Row& row = *own_.active[i].row;
      while (end < rows.end && own_.active[end].row->cross == row.cross) ++end;  // of one sentence: read once
      const Queries queries{own_.heads + i * m_.all, end - i, m_.all, shape_.k};
      Attend(Whole{row.cross.get()}, cache_shape(m_, row.source), l, heads_, row.source, queries, {}, l, own_,
             {cross_mixed + i * m_.all, m_.all});
    }
    member_.wait();
    delta = Output(cross_mixed, layer.cross_output);
    InnerProduct(AddNorm(m_, norm[2], rows_, delta, own_), layer, m_.activation, member_, team_.hidden, team_.gate);
    member_.wait();
    Input hidden{own_, team_.hidden, rows_, layer.inner.outputs()};
    hidden.positive = m_.activation == Activation::relu && !m_.gated;
    Product(hidden, layer.outer, member_, team_.delta);
    member_.wait();
  }

  // Apply the output projection of attention. Every thread computes the complete product of a small matrix for itself,
  // which takes less time than a barrier.
  const float* Output(const float* mixed, const Matrix& matrix) const {
    const Input input{own_, mixed, rows_, m_.all};
    const std::size_t work = rows_ * matrix.panels * matrix.stride;
    if (work - work / member_.size <= kMaxRepeated) {
      Product(input, matrix, Member{}, own_.delta);
      return own_.delta;
    }
    Product(input, matrix, member_, team_.delta);
    member_.wait();
    return team_.delta;
  }

  // Find the largest logit of each row among this thread's columns.
  void Choose(Input last) {
    const Member::Range panels = Panels();
    if (member_.rank == 0) std::copy_n(last.values, rows_ * last.width, job_.hidden + job_.first * last.width);
    std::fill_n(best_, rows_, Best{});
    const std::size_t stride = projection_.outputs();
    const bool pruned = job_.logits == nullptr && job_.top == 0 && job_.bounds != nullptr;
    for (std::size_t i = 0; i < rows_ && job_.top > 0; ++i) OfThread(member_.rank, i).clear();
    for (std::size_t i = 0; i < rows_; ++i) {
      own_.active[i].left = ColumnsOf(i).between(panels.begin * kPanel, panels.end * kPanel);
    }
    for (std::size_t i = 0; i < rows_ && pruned; ++i) {
      const float* h = last.values + i * last.width;
      const auto square = [h](std::size_t j) HWY_ATTR { return hn::Mul(hn::Load(df, h + j), hn::Load(df, h + j)); };
      own_.norm[i] = std::sqrt(Sum(last.width, square) + 1);
      if (!projection_.int8()) continue;
      last.For(projection_);  // rounds each input by half a step at most
      own_.norm[i] += own_.scale[i] * 0.5F * std::sqrt(static_cast<float>(last.width));
    }
    for (std::size_t p = panels.begin; p < panels.end; p += kChunk) {
      const std::size_t end = std::min(p + kChunk, panels.end);
      const Out out = job_.logits == nullptr ? Out{own_.logits, kLogits}
                                             : Out{job_.logits + job_.first * stride + p * kPanel, stride};
      last.Times(pruned ? job_.bounds->copy : projection_, p, end, out);
      for (std::size_t i = 0; i < rows_; ++i) {
        const float* logits = out.data + i * out.stride;
        if (pruned) {
          Bound(i, p, end, logits);
        } else {
          ColumnsOf(i).all() ? Consider(i, p, end, logits) : ConsiderListed(i, p, end, logits);
        }
      }
    }
    for (std::size_t i = 0; i < rows_ && pruned; ++i) ChooseAmong(panels, last, i);
    member_.wait();
  }

  // Offer the logits of a row to its candidates. The first logit has the index `first`. Most logits are too small for
  // the list, so vectors of them are skipped.
  static void Offer(const Candidates& candidates, const float* logits, std::size_t size, std::size_t first,
                    float largest) {
    float least = candidates.least();
    if (largest < least) return;
    for (std::size_t n = 0; n < size; n += kLanes) {
      if (hn::AllTrue(df, hn::Lt(hn::Load(df, logits + n), hn::Set(df, least)))) continue;
      for (std::size_t lane = n; lane < n + kLanes; ++lane) {
        if (logits[lane] < least) continue;
        candidates.offer({logits[lane], static_cast<std::int32_t>(first + lane)});
        least = candidates.least();
      }
    }
  }

  // Process the logits of row i in the panels [begin, end): the best, candidates and sums.
  void Consider(std::size_t i, std::size_t begin, std::size_t end, const float* logits) const {
    const std::size_t size = (end - begin) * kPanel;
    const float here = FindLargest(logits, size, begin * kPanel, best_[i]);
    if (job_.top == 0) return;
    Offer(OfThread(member_.rank, i), logits, size, begin * kPanel, here);
    team_.sums[i * team_.chunks + begin / kChunk] = SumOf(logits, size, here);
  }

  static ChunkSum SumOf(const float* logits, std::size_t size, float largest) {
    if (largest == Best{}.value) return {largest, 0};  // all logits are -infinity
    const auto e = [&](std::size_t n) HWY_ATTR { return Exp(hn::Sub(hn::Load(df, logits + n), hn::Set(df, largest))); };
    return {largest, static_cast<double>(Sum(size, e))};
  }

  // Remove and return the remaining columns of the shortlist of row i before panel `end`.
  Columns TakeListed(std::size_t i, std::size_t end) const {
    Columns& left = own_.active[i].left;
    const std::int32_t* const begin = left.begin;
    while (left.begin != left.end && static_cast<std::size_t>(*left.begin) < end * kPanel) ++left.begin;
    return {begin, left.begin};
  }

  // As Consider, for a row with a shortlist.
  void ConsiderListed(std::size_t i, std::size_t begin, std::size_t end, const float* logits) const {
    const Columns here = TakeListed(i, end);
    float* listed =
        job_.top == 0 ? nullptr : team_.listed + i * team_.listed_stride + (here.begin - ColumnsOf(i).begin);
    FindListed(here, logits, begin * kPanel, best_[i], listed);
    if (job_.top == 0) return;
    const Candidates candidates = OfThread(member_.rank, i);
    for (const std::int32_t* column = here.begin; column != here.end; ++column, ++listed) {
      if (!(*listed < candidates.least())) candidates.offer({*listed, *column});
    }
  }

  // As FindLargest, among some columns. The first of the `logits` is of column `first`. Copy the logits of the columns
  // to `listed`, unless it is null.
  static void FindListed(const Columns& columns, const float* logits, std::size_t first, Best& best, float* listed) {
    HWY_ALIGN float values[kLogits];
    const std::size_t size = columns.size();
    if (size == 0) return;
    for (std::size_t n = 0; n < size; ++n) values[n] = logits[static_cast<std::size_t>(columns.begin[n]) - first];
    std::fill(values + size, values + padded(size), Best{}.value);
    Best here{best.value, -1};
    FindLargest(values, padded(size), 0, here);
    if (here.index >= 0) best = {here.value, columns.begin[here.index]};
    if (listed != nullptr) std::copy_n(values, size, listed);
  }

  // Compute an upper bound of the logits of row i for each of the panels [begin, end), from the `logits` of the copy.
  void Bound(std::size_t i, std::size_t begin, std::size_t end, const float* logits) const {
    if (!ColumnsOf(i).all()) return BoundListed(i, begin, end, logits);
    const VF norm = hn::Set(df, own_.norm[i]);
    const VF unit = hn::Set(df, own_.scale[i]);
    const float* const input_error = job_.bounds->input_error;
    for (std::size_t p = begin; p < end; ++p) {
      VF most = hn::Set(df, Best{}.value);
      for (std::size_t n = p * kPanel; n < (p + 1) * kPanel; n += kLanes) {
        VF logit = hn::Load(df, logits + n - begin * kPanel);
        if (input_error != nullptr) logit = hn::MulAdd(unit, hn::Load(df, input_error + n), logit);
        most = hn::Max(most, hn::MulAdd(norm, hn::Load(df, job_.bounds->weight_error + n), logit));
      }
      own_.bounds[i * projection_.panels + p] = hn::ReduceMax(df, most);
    }
  }

  // As Bound, for a row with a shortlist.
  void BoundListed(std::size_t i, std::size_t begin, std::size_t end, const float* logits) const {
    float* bounds = own_.bounds + i * projection_.panels;
    std::fill(bounds + begin, bounds + end, Best{}.value);
    const Columns here = TakeListed(i, end);
    for (const std::int32_t* column = here.begin; column != here.end; ++column) {
      const auto n = static_cast<std::size_t>(*column);
      const float off = job_.bounds->input_error == nullptr ? 0 : own_.scale[i] * job_.bounds->input_error[n];
      const float bound = logits[n - begin * kPanel] + off + own_.norm[i] * job_.bounds->weight_error[n];
      float& most = bounds[n / kPanel];
      if (!(bound <= most)) most = std::isnan(bound) ? std::numeric_limits<float>::infinity() : bound;
    }
  }

  // Find the largest logit of row i. The panel with the highest bound is multiplied first, and then only panels whose
  // bounds are not below the largest logit so far.
  void ChooseAmong(Member::Range panels, Input& last, std::size_t i) {
    const float* bounds = own_.bounds + i * projection_.panels;
    Rows row = last.For(projection_);
    row.data += i * row.stride;
    row.scale += projection_.int8() ? i : 0;
    const Columns& all = ColumnsOf(i);
    const auto multiply = [&](std::size_t p, Best& best) {
      Multiply(projection_, row, 1, p, p + 1, {own_.logits, kLogits});
      if (all.all()) {
        FindLargest(own_.logits, kPanel, p * kPanel, best);
      } else {
        FindListed(all.between(p * kPanel, (p + 1) * kPanel), own_.logits, p * kPanel, best, nullptr);
      }
    };
    std::size_t read = 1;
    Best likeliest;
    const float* most = std::max_element(bounds + panels.begin, bounds + panels.end);
    if (panels.begin < panels.end) multiply(static_cast<std::size_t>(most - bounds), likeliest);
    for (std::size_t p = panels.begin; p < panels.end; ++p) {
      if (bounds[p] < std::max(likeliest.value, best_[i].value)) continue;
      multiply(p, best_[i]);
      ++read;
    }
    if (job_.read != nullptr) job_.read->fetch_add(read, std::memory_order_relaxed);
  }
};

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
