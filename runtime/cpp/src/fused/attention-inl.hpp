// Attention over cached keys and values, row by row.
#if defined(TXPORT_FUSED_ATTENTION_INL) == defined(HWY_TARGET_TOGGLE)  // once for each instruction set
#ifdef TXPORT_FUSED_ATTENTION_INL
#undef TXPORT_FUSED_ATTENTION_INL
#else
#define TXPORT_FUSED_ATTENTION_INL
#endif

#include "fused/products-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused::HWY_NAMESPACE {

// Keys and values of one head of a sentence, as packed matrices, so that attention is two products. Keys have
// `positions` outputs and k inputs; values have k outputs and `positions` inputs. In models with int8 weights, both are
// int8 with a scale for each position. The scales, and the sums of the keys, follow the values in memory.
struct HeadCache {
  std::byte* data;
  std::size_t k;  // width of a head
  std::size_t positions;
  bool int8;

  std::size_t Steps(std::size_t inputs) const { return int8 ? inputs / 4 : inputs; }
  std::uint8_t* Keys() const { return reinterpret_cast<std::uint8_t*>(data); }
  std::uint8_t* Values() const { return Keys() + Steps(positions * k) * 4; }
  float* KeyScales() const { return reinterpret_cast<float*>(Values() + Steps(positions * k) * 4); }
  float* ValueScales() const { return KeyScales() + positions; }
  std::int32_t* KeySums() const { return reinterpret_cast<std::int32_t*>(ValueScales() + positions); }

  void Store(std::size_t t, const float* key, const float* value, const OwnBuffers& own) const {
    std::uint8_t* keys = Keys() + t / kPanel * Steps(k) * kStepBytes + t % kPanel * 4;
    if (!int8) {
      for (std::size_t i = 0; i < k; ++i) std::memcpy(keys + i * kStepBytes, key + i, 4);
      std::uint8_t* values = Values() + t * kStepBytes;
      for (std::size_t i = 0; i < k; i += kPanel) std::memcpy(values + i * positions * 4, value + i, kStepBytes);
      return;
    }
    const float largest = Largest(key, k);
    const VI sum = Round(key, k, largest > 0 ? 127 / largest : 0.0F, 0, own.bytes);
    KeyScales()[t] = largest / 127;
    KeySums()[t] = hn::ReduceSum(di, sum);
    for (std::size_t i = 0; i < k; i += 4) std::memcpy(keys + i * kPanel, own.bytes + i, 4);
    ValueScales()[t] = StoreValues(t, value);
  }

  // Store the values of a position as int8, and return their scale. A 32-bit word contains four positions; the other
  // three stay unchanged.
  float StoreValues(std::size_t t, const float* value) const {
    const float largest = Largest(value, k);
    const VF by = hn::Set(df, largest > 0 ? 127 / largest : 0.0F);
    const int shift = static_cast<int>(t % 4 * 8);
    const VI byte = hn::ShiftLeftSame(hn::Set(di, 0xFF), shift);
    for (std::size_t i = 0; i < k; i += kLanes) {
      std::uint8_t* at = Values() + i / kPanel * kPanel * positions + t / 4 * kStepBytes + i % kPanel * 4;
      auto* words = reinterpret_cast<std::int32_t*>(at);
      const VI rounded = hn::NearestInt(hn::Mul(hn::Load(df, value + i), by));
      const VI moved = hn::ShiftLeftSame(rounded, shift);
      hn::Store(hn::BitwiseIfThenElse(byte, moved, hn::Load(di, words)), di, words);
    }
    return largest / 127;
  }

  Matrix KeyMatrix(const OwnBuffers& own) const {
    Matrix keys;
    keys.kind = int8 ? Kind::int8 : Kind::float32;
    keys.steps = Steps(k);
    keys.stride = keys.steps * kStepBytes;
    keys.data = Keys();
    keys.bias = own.zeros;
    keys.scale = KeyScales();
    keys.sum = KeySums();
    return keys;
  }
  // Return the values of the first `length` positions. Their inputs are weights of the softmax, which are never
  // negative: the zero point is 0, so the sums are not used.
  Matrix ValueMatrix(std::size_t length, const OwnBuffers& own) const {
    Matrix values = KeyMatrix(own);
    values.steps = int8 ? padded(length) / 4 : length;
    values.stride = Steps(positions) * kStepBytes;
    values.data = Values();
    values.scale = own.ones;
    values.sum = reinterpret_cast<std::int32_t*>(own.zeros);
    return values;
  }
};

HWY_INLINE HeadCache At(std::byte* cache, const CacheShape& shape, std::size_t layer, std::size_t head) {
  return {cache + (layer * shape.heads + head) * shape.head_bytes(), shape.k, shape.positions, shape.int8};
}

// Rotate a query and the key after it, k numbers each, by a position. Without rotary positions, do nothing.
HWY_INLINE void Rotate(const Rotation& rotation, std::size_t position, float* query, std::size_t k) {
  if (rotation.sines.empty()) return;
  for (std::size_t i = 0; i < k; i += kLanes) {
    const VF cosine = hn::LoadU(df, rotation.cosines.data() + position * k + i);
    const VF sine = hn::LoadU(df, rotation.sines.data() + position * k + i);
    for (float* at : {query + i, query + k + i}) {
      const VF x = hn::Load(df, at);
      hn::Store(hn::MulAdd(x, cosine, hn::Mul(hn::Reverse2(df, x), sine)), df, at);
    }
  }
}

// Memory of the keys and values of a sentence: one piece, for the encoder and cross-attention, or pages of kPanel
// positions, for self-attention of the decoder.
struct Whole {
  static constexpr bool kPaged = false;
  std::byte* data;
  std::byte* operator[](std::size_t /*page*/) const { return data; }
};
struct Paged {
  static constexpr bool kPaged = true;
  const Page* pages;
  std::byte* operator[](std::size_t page) const { return pages[page].get(); }
};

// Compute the softmax of `length` scores, plus a bias unless it is null. Scores from `length` to the next multiple of
// 16 may have any value; they become zero. With `int8`, multiply the results by scales(position), quantise them to
// `to`, and return their scale.
template <class Scales>
HWY_INLINE float Softmax(float* scores, std::size_t length, const float* bias, bool int8, const Scales& scales,
                         std::uint8_t* to) {
  const std::size_t width = padded(length);
  const auto within = [length](std::size_t t) HWY_ATTR { return hn::FirstN(df, length > t ? length - t : 0); };
  for (std::size_t t = 0; t < length && bias != nullptr; t += kLanes) {
    hn::Store(hn::Add(hn::Load(df, scores + t), hn::LoadU(df, bias + t)), df, scores + t);
  }
  VF most = hn::Set(df, -1e30F);
  for (std::size_t t = 0; t < length; t += kLanes) {
    most = hn::Max(most, hn::IfThenElse(within(t), hn::Load(df, scores + t), most));
  }
  most = hn::Set(df, hn::ReduceMax(df, most));
  VF total = hn::Zero(df);
  VF top = hn::Zero(df);
  for (std::size_t t = 0; t < width; t += kLanes) {
    VF e = hn::IfThenElseZero(within(t), Exp(hn::Sub(hn::Load(df, scores + t), most)));
    total = hn::Add(total, e);
    if (int8) e = hn::IfThenElseZero(within(t), hn::Mul(e, hn::Load(df, scales(t))));
    top = hn::Max(top, e);
    hn::Store(e, df, scores + t);
  }
  const float by = 1.0F / hn::ReduceSum(df, total);
  if (!int8) {
    ForEach({scores, 0}, 1, width, [by](VF e) HWY_ATTR { return hn::Mul(e, hn::Set(df, by)); });
    return 1;
  }
  const float largest = hn::ReduceMax(df, top);
  Round(scores, width, largest > 0 ? 127 / largest : 0.0F, 0, to);
  return largest / 127 * by;
}

// Queries [rows, heads, k] at consecutive positions.
struct Queries {
  const float* data;
  std::size_t rows;
  std::size_t row_stride;
  std::size_t head_stride;
  std::size_t position = 0;  // position of the first query
};

// Compute attention for at most kQueries rows, or for one row if `cache` has pages. Each phase is computed for all
// heads before the next one, so that heads hide each other's latency. Number n is row n % rows of head n / rows.
template <class Cache>
void AttendTo(const Cache& cache, const CacheShape& shape, std::size_t layer, Member::Range heads, std::size_t length,
              const Queries& queries, const PositionBias& bias, std::size_t bias_layer, const OwnBuffers& own,
              const Out& out) {
  const std::size_t k = shape.k;
  const std::size_t rows = Cache::kPaged ? 1 : queries.rows;
  const std::size_t width = padded(length);
  const auto query = [&](std::size_t n) {
    return queries.data + n % rows * queries.row_stride + (heads.begin + n / rows) * queries.head_stride;
  };
  // Return inputs of a product from number `n` on: quantised ones with stride `size`, or the floats `from`.
  const auto input = [&](std::size_t n, std::size_t size, std::int32_t zero, const float* from, std::size_t stride) {
    return shape.int8 ? Rows{own.bytes + n * size, size, own.attention_scale + n, zero} : FloatRows(from, stride);
  };
  // `head` returns the cache of the head of number n, or a page of it.
  const std::size_t bytes = shape.head_bytes();
  const std::size_t first = (layer * shape.heads + heads.begin) * bytes;
  const auto head = [=, positions = shape.positions, int8 = shape.int8](std::size_t n, std::size_t page) {
    return HeadCache{cache[page] + first + n / rows * bytes, k, positions, int8};
  };
  const std::size_t count = (heads.end - heads.begin) * rows;
  const std::int32_t zero_point = Int8::ZeroPoint(false);
  for (std::size_t n = 0; n < count && shape.int8; ++n) {
    own.attention_scale[n] = Quantise(query(n), k, 127, zero_point, own.bytes + n * k);
  }
  for (std::size_t n = 0; n < count; n += rows) {
    const Rows a = input(n, k, zero_point, query(n), queries.row_stride);
    if constexpr (Cache::kPaged) {
      const auto keys = [=, &own](std::size_t page) { return head(n, page).KeyMatrix(own); };
      MultiplyPages<true>(keys, shape.int8, width / kPanel, a, own.scores + n * width);
    } else {
      Multiply(head(n, 0).KeyMatrix(own), a, rows, 0, width / kPanel, {own.scores + n * width, width});
    }
  }
  for (std::size_t n = 0; n < count; ++n) {
    const auto scales = [&](std::size_t t) {
      return Cache::kPaged ? head(n, t / kPanel).ValueScales() + t % kPanel : head(n, 0).ValueScales() + t;
    };
    const float* added = bias.of(bias_layer, heads.begin + n / rows, queries.position + n % rows);
    own.attention_scale[n] = Softmax(own.scores + n * width, length, added, shape.int8, scales, own.bytes + n * width);
  }
  for (std::size_t n = 0; n < count; n += rows) {
    const Rows a = input(n, width, 0, own.scores + n * width, width);
    float* to = out.data + (heads.begin + n / rows) * k;
    if constexpr (Cache::kPaged) {
      const auto values = [=, &own](std::size_t page) {
        return head(n, page).ValueMatrix(std::min(length - page * kPanel, kPanel), own);
      };
      MultiplyPages<false>(values, shape.int8, k / kPanel, a, to, width / kPanel);
    } else {
      Multiply(head(n, 0).ValueMatrix(length, own), a, rows, 0, k / kPanel, {to, out.stride});
    }
  }
}

// Compute attention over the first `length` positions, with the relative position bias of layer `bias_layer`. The
// outputs are `out` [rows, all heads].
template <class Cache>
void Attend(const Cache& cache, const CacheShape& shape, std::size_t layer, Member::Range heads, std::size_t length,
            Queries queries, const PositionBias& bias, std::size_t bias_layer, const OwnBuffers& own, Out out) {
  const std::size_t rows = queries.rows;
  for (std::size_t i = 0; i < rows; i += kQueries) {
    queries.rows = std::min(kQueries, rows - i);
    AttendTo(cache, shape, layer, heads, length, queries, bias, bias_layer, own, out);
    queries.data += kQueries * queries.row_stride;
    queries.position += kQueries;
    out.data += kQueries * out.stride;
  }
}

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TXPORT_FUSED_ATTENTION_INL
