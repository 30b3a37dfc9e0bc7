// Products of rows and packed matrices. The result of a row depends on this row only, bit by bit: integer sums are
// exact, and float32 sums add the inputs in their order, whatever the tile.
#if defined(TXPORT_FUSED_PRODUCTS_INL) == defined(HWY_TARGET_TOGGLE)  // once for each instruction set
#ifdef TXPORT_FUSED_PRODUCTS_INL
#undef TXPORT_FUSED_PRODUCTS_INL
#else
#define TXPORT_FUSED_PRODUCTS_INL
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "fused/compute.hpp"
#include "fused/vectors-inl.hpp"
#include "fused/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused::HWY_NAMESPACE {

// Maximum panels of a register tile, for 32 vector registers (AVX-512, NEON) or 16.
constexpr std::size_t kMaxPanels = kLanes == 16 ? 4 : kLanes == 8 ? 2 : 1;

// Inputs of a product. Each k step reads 4 bytes of a row.
struct Rows {
  const std::uint8_t* data;
  std::size_t stride;  // bytes from one row to the next
  const float* scale;  // [rows]; int8 only
  std::int32_t zero;   // zero point, the integer that represents 0; int8 only
};

// Return rows of float32 with a stride in numbers.
HWY_INLINE Rows FloatRows(const float* data, std::size_t stride) {
  return {reinterpret_cast<const std::uint8_t*>(data), stride * sizeof(float), nullptr, 0};
}

// Write round(`from` * `by`) + `zero` for `size` numbers to `to`. The results must fit 8 bits, signed or unsigned.
// Return the sum of the rounded numbers without `zero`, for each lane.
HWY_INLINE VI Round(const float* from, std::size_t size, float by, std::int32_t zero, std::uint8_t* to) {
  VI sum = hn::Zero(di);
  for (std::size_t i = 0; i < size; i += kLanes) {
    const VI q = hn::NearestInt(hn::Mul(hn::Load(df, from + i), hn::Set(df, by)));
    sum = hn::Add(sum, q);
    const auto shifted = hn::BitCast(hn::RebindToUnsigned<DF>(), hn::Add(q, hn::Set(di, zero)));
    const hn::Rebind<std::uint8_t, DF> bytes;
    hn::StoreU(hn::TruncateTo(bytes, shifted), bytes, to + i);
  }
  return sum;
}

// Return the largest magnitude of `size` numbers.
HWY_INLINE float Largest(const float* from, std::size_t size) {
  VF most = hn::Zero(df);
  for (std::size_t i = 0; i < size; i += kLanes) most = hn::Max(most, hn::Abs(hn::Load(df, from + i)));
  return hn::ReduceMax(df, most);
}

// Quantise `size` numbers so that the largest magnitude becomes `steps`, add `zero`, and return the scale.
HWY_INLINE float Quantise(const float* from, std::size_t size, float steps, std::int32_t zero, std::uint8_t* to) {
  const float largest = Largest(from, size);
  Round(from, size, largest > 0 ? steps / largest : 0.0F, zero, to);
  return largest / steps;
}

// Outputs of a product: float32 [rows, stride].
struct Out {
  float* data;
  std::size_t stride;
};

template <class F>
HWY_INLINE void ForEach(const Out& out, std::size_t rows, std::size_t size, F f) {
  for (std::size_t i = 0; i < rows; ++i) {
    float* row = out.data + i * out.stride;
    for (std::size_t j = 0; j < size; j += kLanes) hn::Store(f(hn::Load(df, row + j)), df, row + j);
  }
}

// Apply an activation to the first `size` numbers of each row.
inline void Activate(Activation activation, const Out& out, std::size_t rows, std::size_t size) {
  if (activation == Activation::relu) {
    ForEach(out, rows, size, [](VF y) HWY_ATTR { return hn::Max(y, hn::Zero(df)); });
  } else if (activation == Activation::gelu) {
    ForEach(out, rows, size, [](VF y) HWY_ATTR {
      const VF half = hn::Mul(y, hn::Set(df, 0.5F));
      return hn::MulAdd(half, Erf(hn::Mul(y, hn::Set(df, 0.70710678F))), half);
    });
  } else if (activation == Activation::gelu_tanh) {  // tanh(x / 2) is 2 / (1 + e^-x) - 1
    ForEach(out, rows, size, [](VF y) HWY_ATTR {
      const VF cubic = hn::MulAdd(hn::Mul(hn::Mul(y, y), y), hn::Set(df, 0.044715F), y);
      return hn::Div(y, hn::Add(hn::Set(df, 1.0F), Exp(hn::Mul(cubic, hn::Set(df, -1.59576912F)))));
    });
  } else {
    ForEach(out, rows, size, [](VF y) HWY_ATTR { return hn::Div(y, hn::Add(hn::Set(df, 1.0F), Exp(hn::Neg(y)))); });
  }
}

// Return the largest of `size` logits. If it is larger than `best`, set `best` to it; of equal logits, to the first.
// The first logit has the index `first`.
HWY_INLINE float FindLargest(const float* logits, std::size_t size, std::size_t first, Best& best) {
  VF most = hn::Load(df, logits);
  for (std::size_t i = kLanes; i < size; i += kLanes) most = hn::Max(most, hn::Load(df, logits + i));
  const float largest = hn::ReduceMax(df, most);
  if (!(largest > best.value)) return largest;
  std::size_t at = 0;
  const auto here = [&]() HWY_ATTR { return hn::Eq(hn::Load(df, logits + at), hn::Set(df, largest)); };
  while (hn::AllFalse(df, here())) at += kLanes;
  best = {largest, static_cast<std::int32_t>(first + at + hn::FindKnownFirstTrue(df, here()))};
  return largest;
}

// Highway lacks SDOT. If Highway chooses its target NEON, compute.cpp has ensured that the processor has SDOT; SMMLA is
// checked as an extension. Both are inline assembly, since clang does not allow a second target beside Highway's. It
// names the architecture, which binutils (2.40) requires in addition to the extension.
#undef TXPORT_SDOT
#undef TXPORT_SMMLA
#if HWY_TARGET == HWY_NEON && HWY_STATIC_TARGET != HWY_NEON
#define TXPORT_SDOT 1
#if HWY_COMPILER_CLANG || HWY_COMPILER_GCC_ACTUAL >= 1000
#define TXPORT_SMMLA 1
#endif
#endif

// Return whether products use VPDPBUSD. It reads inputs as unsigned bytes; all other instructions read signed bytes.
inline bool has_vnni() {
  const Extensions& here = extensions();
  return HWY_TARGET == HWY_AVX3 ? here.avx512_vnni : HWY_TARGET == HWY_AVX2 && (here.avx_vnni || here.avx512_vnni);
}

struct Int8 {
  using Sums = VI;
  using Weights = hn::Vec<hn::Repartition<std::int8_t, DF>>;
  static constexpr bool kExact = true;  // sums do not depend on their order
  static constexpr std::size_t kStep = kStepBytes;

  // Return the zero point of inputs of both signs or, if `positive`, of inputs that are never negative and use all 8
  // bits for their magnitude.
  static std::int32_t ZeroPoint(bool positive) { return (positive ? -128 : 0) + (has_vnni() ? 128 : 0); }

  static HWY_INLINE Sums Zero() { return hn::Zero(di); }
  static HWY_INLINE Sums Start(const Matrix& w, const Rows& a, std::size_t n) {
    return hn::Mul(hn::Set(di, -a.zero), hn::Load(di, w.sum + n));
  }
  static HWY_INLINE Weights Load(const std::uint8_t* at) {
    return hn::Load(hn::Repartition<std::int8_t, DF>(), reinterpret_cast<const std::int8_t*>(at));
  }
  static HWY_INLINE Weights Inputs(const std::uint8_t* a) {  // four of them, in each output's place
    std::int32_t four = 0;
    std::memcpy(&four, a, 4);
    return hn::BitCast(hn::Repartition<std::int8_t, DF>(), hn::Set(di, four));
  }
  static HWY_INLINE Sums Dot(const std::uint8_t* a, Weights w, Sums sums) {
    const Weights inputs = Inputs(a);
#if defined(__ARM_FEATURE_DOTPROD) || defined(TXPORT_SDOT)
    asm(".arch armv8.2-a+crypto+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sums.raw) : "w"(inputs.raw), "w"(w.raw));
    return sums;
#elif HWY_TARGET_IS_NEON  // two products fit 16 bits
    return hn::Add(sums, hn::SumsOf2(hn::Add(hn::MulEven(inputs, w), hn::MulOdd(inputs, w))));
#else
    // |a| times w with a's sign: two such products fit 16 bits, since |a| <= 128 and |w| <= 127 (VPSIGNB, VPMADDUBSW).
    const hn::Repartition<std::int16_t, DF> di16;
    const auto magnitude = hn::BitCast(hn::Repartition<std::uint8_t, DF>(), hn::Abs(inputs));
    const auto pairs = hn::SatWidenMulPairwiseAdd(di16, magnitude, hn::IfNegativeThenNegOrUndefIfZero(inputs, w));
    return hn::Add(sums, hn::WidenMulPairwiseAdd(di, pairs, hn::Set(di16, 1)));
#endif
  }
  static HWY_INLINE VF Finish(const Matrix& w, const Rows& a, std::size_t m, std::size_t n, Sums sums) {
    const VF product = hn::Mul(hn::ConvertTo(df, sums), hn::Set(df, a.scale[m]));
    return hn::MulAdd(product, hn::Load(df, w.scale + n), hn::Load(df, w.bias + n));
  }
};

#undef TXPORT_VNNI
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define TXPORT_VNNI 1
// Products by VPDPBUSD, which more processors have than Highway's targets with it, in the encoding of AVX-512 or in
// that of AVX (AVX-VNNI). With the target AVX2, only tests use the former.
template <bool kAvx512>
struct Vnni : Int8 {
  static HWY_INLINE Sums Dot(const std::uint8_t* a, Weights w, Sums sums) {
    const Weights inputs = Inputs(a);
    if constexpr (kAvx512) {
      asm("%{evex%} vpdpbusd %2, %1, %0" : "+v"(sums.raw) : "v"(inputs.raw), "v"(w.raw));
    } else {
      asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums.raw) : "x"(inputs.raw), "x"(w.raw));
    }
    return sums;
  }
};
#endif

// Weights of 4 bits. W multiplies them as the upper half of 8 bits, so as 16 times their value.
template <class W>
struct Int4 : W {
  static constexpr std::size_t kStep = kStepBytes / 2;

  template <std::size_t kHalf>
  static HWY_INLINE typename W::Weights LoadHalf(const std::uint8_t* at) {
    const hn::Repartition<std::uint16_t, DF> du16;
    const auto both = hn::BitCast(du16, W::Load(at));
    const auto one = kHalf == 1 ? both : hn::ShiftLeft<4>(both);
    return hn::BitCast(hn::Repartition<std::int8_t, DF>(), hn::And(one, hn::Set(du16, 0xF0F0)));
  }
};

struct Float32 {
  using Sums = VF;
  using Weights = VF;
  static constexpr bool kExact = false;
  static constexpr std::size_t kStep = kStepBytes;

  static HWY_INLINE Sums Zero() { return hn::Zero(df); }
  static HWY_INLINE Sums Start(const Matrix& w, const Rows& /*a*/, std::size_t n) { return hn::Load(df, w.bias + n); }
  static HWY_INLINE Weights Load(const std::uint8_t* at) { return hn::Load(df, reinterpret_cast<const float*>(at)); }
  static HWY_INLINE Sums Dot(const std::uint8_t* a, Weights w, Sums sums) {
    float one = 0;
    std::memcpy(&one, a, 4);
    return hn::MulAdd(hn::Set(df, one), w, sums);
  }
  static HWY_INLINE VF Finish(const Matrix& /*w*/, const Rows& /*a*/, std::size_t /*m*/, std::size_t /*n*/, Sums sums) {
    return sums;
  }
};

// Weights of float16, with the same results as if they were float32, from half the bytes.
struct Float16 : Float32 {
  static constexpr std::size_t kStep = kStepBytes / 2;

  static HWY_INLINE Weights Load(const std::uint8_t* at) {
    const hn::Rebind<hwy::float16_t, DF> halves;
    return hn::PromoteTo(df, hn::Load(halves, reinterpret_cast<const hwy::float16_t*>(at)));
  }
};

// Load a part of the weights of k step kOf. `at`: address of the step 0.
template <class W, std::size_t kOf>
HWY_INLINE typename W::Weights LoadStep(const std::uint8_t* at, std::size_t part) {
  if constexpr (W::kExact && W::kStep < kStepBytes) {
    return W::template LoadHalf<kOf % 2>(at + kOf / 2 * kStepBytes + part * (kStepBytes / kParts));
  } else {
    return W::Load(at + kOf * W::kStep + part * (W::kStep / kParts));
  }
}

// Compute kM rows x kV vectors of outputs, in kC chains of k steps. Sum I belongs to chain I / (kM * kV), row
// I / kV % kM and vector I % kV. Chains hide the latency if there are few sums. Sums of integers do not depend on the
// number of chains; other kinds have one chain.
template <class W, std::size_t kM, std::size_t kV, std::size_t kC, std::size_t... kI, std::size_t... kJ>
HWY_INLINE void TileOf(const Matrix& w, const Rows& a, std::size_t m, std::size_t p, float* to, std::size_t stride,
                       std::index_sequence<kI...> /*sums*/, std::index_sequence<kJ...> /*weights*/) {
  constexpr std::size_t kN = kM * kV;
  Registers<typename W::Sums, std::index_sequence<kI...>> sums;
  (sums.template Set<kI>(kI < kN ? W::Start(w, a, p * kPanel + kI % kV * kLanes) : W::Zero()), ...);
  const std::uint8_t* row = a.data + m * a.stride;
  const std::uint8_t* panel = w.panel(p);
  for (std::size_t k = 0; k < w.steps; k += kC, row += 4 * kC, panel += W::kStep * kC) {
    Registers<typename W::Weights, std::index_sequence<kJ...>> weights;
    (weights.template Set<kJ>(LoadStep<W, kJ / kV>(panel + kJ % kV / kParts * w.stride, kJ % kParts)), ...);
    (sums.template Set<kI>(W::Dot(row + kI / kV % kM * a.stride + kI / kN * 4,
                                  weights.template Get<kI / kN * kV + kI % kV>(), sums.template Get<kI>())),
     ...);
  }
  ((kI < kN ? void() : sums.template Set<kI % kN>(hn::Add(sums.template Get<kI % kN>(), sums.template Get<kI>()))),
   ...);
  ((kI < kN ? hn::Store(W::Finish(w, a, m + kI / kV % kM, p * kPanel + kI % kV * kLanes, sums.template Get<kI>()), df,
                        to + kI / kV % kM * stride + kI % kV * kLanes)
            : void()),
   ...);
}

#ifdef TXPORT_SMMLA
template <std::size_t kUpper>
HWY_INLINE VI Halves(VI upper, VI lower) {
  return kUpper ? hn::ConcatUpperUpper(di, upper, lower) : hn::ConcatLowerLower(di, upper, lower);
}

// Multiply two rows, `next` bytes apart, by two outputs, the lower or upper ones of a vector, in two k steps, by SMMLA.
template <std::size_t kUpper>
HWY_INLINE VI DotOfPairs(const std::uint8_t* row, std::size_t next, const std::uint8_t* panel, VI sums) {
  const auto rows = vreinterpretq_s8_u8(vcombine_u8(vld1_u8(row), vld1_u8(row + next)));
  const VI even = hn::BitCast(di, Int8::Load(panel));
  const VI odd = hn::BitCast(di, Int8::Load(panel + kStepBytes));
  const VI outputs = kUpper ? hn::InterleaveUpper(di, even, odd) : hn::InterleaveLower(di, even, odd);
  asm(".arch armv8.2-a+crypto+dotprod+i8mm\n\tsmmla %0.4s, %1.16b, %2.16b"
      : "+w"(sums.raw)
      : "w"(rows), "w"(outputs.raw));
  return sums;
}

// As TileOf, with two k steps at a time. Sum I belongs to half I % 2 of vector I / 2 % kV. Its lower half is of row
// I / (2 * kV) * 2, its upper half of the row after it. If the number of rows is odd, the last row is repeated.
template <std::size_t kM, std::size_t kV, std::size_t... kI>
HWY_NOINLINE void TileOfPairs(const Matrix& w, const Rows& a, std::size_t m, std::size_t p, float* to,
                              std::size_t stride, std::index_sequence<kI...> /*sums*/) {
  const auto start = [&](std::size_t v) HWY_ATTR { return Int8::Start(w, a, p * kPanel + v * kLanes); };
  const auto put = [&](std::size_t i, std::size_t v, VI sum) HWY_ATTR {
    if (i < kM) hn::Store(Int8::Finish(w, a, m + i, p * kPanel + v * kLanes, sum), df, to + i * stride + v * kLanes);
  };
  Registers<VI, std::index_sequence<kI...>> sums;
  (sums.template Set<kI>(Halves<kI % 2>(start(kI / 2 % kV), start(kI / 2 % kV))), ...);
  const std::uint8_t* row = a.data + m * a.stride;
  const std::uint8_t* panel = w.panel(p);
  for (std::size_t k = 0; k < w.steps; k += 2, row += 8, panel += 2 * kStepBytes) {
    (sums.template Set<kI>(DotOfPairs<kI % 2>(row + kI / (2 * kV) * 2 * a.stride,
                                              kI / (2 * kV) * 2 + 1 < kM ? a.stride : 0,
                                              panel + kI / 2 % kV * kLanes * 4, sums.template Get<kI>())),
     ...);
  }
  (put(kI / (2 * kV) * 2 + kI % 2, kI / 2 % kV,
       Halves<kI % 2>(sums.template Get<kI | 1>(), sums.template Get<(kI | 1) - 1>())),
   ...);
}
#endif

template <class W, std::size_t kM, std::size_t kP>
HWY_NOINLINE void Tile(const Matrix& w, const Rows& a, std::size_t m, std::size_t p, float* to, std::size_t stride) {
#ifdef TXPORT_SMMLA
  if constexpr (W::kExact && kM > 1 && W::kStep == kStepBytes) {
    constexpr std::make_index_sequence<(kM + 1) / 2 * 2 * kP * kParts> kSums;
    if (extensions().i8mm) return TileOfPairs<kM, kP * kParts>(w, a, m, p, to, stride, kSums);
  }
#endif
  constexpr std::size_t kV = kP * kParts;
  constexpr std::size_t kC = W::kExact && kM * kV < 8 ? std::min<std::size_t>(4, 8 / (kM * kV)) : 1;
  TileOf<W, kM, kV, kC>(w, a, m, p, to, stride, std::make_index_sequence<kM * kV * kC>(),
                        std::make_index_sequence<kV * kC>());
}

using TileOfSize = void (*)(const Matrix&, const Rows&, std::size_t, std::size_t, float*, std::size_t);

// Maximum sizes of the tile for a matrix's type. Tiles are wider than high, since panels are streams from memory.
// Floats and 16 registers (AVX2) are the exception: more than two rows have a tile of six rows and one panel, whose
// weights are loaded once for six rows instead of two. A panel of 512 inputs just fits the first-level cache.
template <class W>
struct MaxTile {
  static constexpr bool kHigh = kLanes == 8 && !W::kExact;
  static constexpr std::size_t kRows = kLanes == 16 || kHigh ? 6 : HWY_TARGET_IS_NEON ? 4 : 2;
  static constexpr std::size_t Panels(std::size_t rows) { return kHigh && rows > 2 ? 1 : kMaxPanels; }
};

// Return the tiles of kP panels, or the largest that there are, by their number of rows.
template <class W, std::size_t kP, std::size_t... kM>
constexpr std::array<TileOfSize, sizeof...(kM)> TilesOf(std::index_sequence<kM...> /*rows*/) {
  return {Tile<W, kM + 1, std::min(kP, MaxTile<W>::Panels(kM + 1))>...};
}

template <class W>
void MultiplyBy(const Matrix& w, const Rows& a, std::size_t rows, std::size_t begin, std::size_t end, const Out& out) {
  constexpr std::size_t kMaxRows = MaxTile<W>::kRows;
  constexpr std::make_index_sequence<kMaxRows> kSizes;
  static constexpr std::array kTiles{TilesOf<W, 1>(kSizes), TilesOf<W, 2>(kSizes), TilesOf<W, 4>(kSizes)};
  const std::size_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  const std::size_t max_panels = MaxTile<W>::Panels(rows);
  for (std::size_t p = begin; p < end;) {
    float* to = out.data + (p - begin) * kPanel;
    std::size_t panels = max_panels;
    while (p + panels > end) panels /= 2;
    for (std::size_t b = 0, m = 0; b < blocks; ++b) {
      const std::size_t next = rows * (b + 1) / blocks;
      kTiles[panels / 2][next - m - 1](w, a, m, p, to + m * out.stride, out.stride);
      m = next;
    }
    p += panels;
  }
}

// Multiply one row by an int4 matrix. int4 pays for one row only: several rows are limited by products, not by reading
// weights.
template <class W>
void MultiplyRowBy(const Matrix& w, const Rows& a, std::size_t begin, std::size_t end, const Out& out) {
  for (std::size_t p = begin; p < end;) {
    float* to = out.data + (p - begin) * kPanel;
    std::size_t panels = kMaxPanels;
    while (p + panels > end) panels /= 2;
    panels == kMaxPanels ? Tile<Int4<W>, 1, kMaxPanels>(w, a, 0, p, to, out.stride)
                         : Tile<Int4<W>, 1, 1>(w, a, 0, p, to, out.stride);
    p += panels == kMaxPanels ? kMaxPanels : 1;
  }
}

inline void MultiplyRow(const Matrix& w, const Rows& a, std::size_t begin, std::size_t end, const Out& out) {
#ifdef TXPORT_VNNI
#if HWY_TARGET == HWY_AVX2 && defined(TXPORT_AVX_VNNI)
  if (extensions().avx_vnni) return MultiplyRowBy<Vnni<false>>(w, a, begin, end, out);
#endif
  if (has_vnni()) return MultiplyRowBy<Vnni<true>>(w, a, begin, end, out);
#endif
  MultiplyRowBy<Int8>(w, a, begin, end, out);
}

// Multiply rows by the panels [begin, end) of `w`. `out` contains only their outputs. An int4 matrix allows one row.
inline void Multiply(const Matrix& w, const Rows& a, std::size_t rows, std::size_t begin, std::size_t end,
                     const Out& out) {
  if (w.kind == Kind::float32) return MultiplyBy<Float32>(w, a, rows, begin, end, out);
  if (w.kind == Kind::float16) return MultiplyBy<Float16>(w, a, rows, begin, end, out);
  if (w.kind == Kind::int4) return MultiplyRow(w, a, begin, end, out);
#ifdef TXPORT_VNNI
#if HWY_TARGET == HWY_AVX2 && defined(TXPORT_AVX_VNNI)
  if (extensions().avx_vnni) return MultiplyBy<Vnni<false>>(w, a, rows, begin, end, out);
#endif
  if (has_vnni()) return MultiplyBy<Vnni<true>>(w, a, rows, begin, end, out);
#endif
  MultiplyBy<Int8>(w, a, rows, begin, end, out);
}

// Multiply one row by kV / kParts panels. With kBeside, each is the only panel of a matrix: page(p), page(p + 1) and so
// on. Otherwise they are the panels from p on of page(0), and page(1) to page(`pages` - 1) continue their inputs.
template <class W, bool kBeside, std::size_t kV, std::size_t kC, class PageOf, std::size_t... kI>
HWY_INLINE void TileOfPages(const PageOf& page, std::size_t p, std::size_t pages, const Rows& a, float* to,
                            std::index_sequence<kI...> /*sums and weights*/) {
  const auto of = [&](std::size_t v) HWY_ATTR { return page(kBeside ? p + v / kParts : 0); };
  const auto output = [p](std::size_t v) { return (kBeside ? v % kParts : p * kParts + v) * kLanes; };
  Registers<typename W::Sums, std::index_sequence<kI...>> sums;
  (sums.template Set<kI>(kI < kV ? W::Start(of(kI), a, output(kI)) : W::Zero()), ...);
  const std::uint8_t* row = a.data;
  for (std::size_t next = 0; next < pages; ++next) {
    const Matrix w = page(kBeside ? p : next);
    const std::array<const std::uint8_t*, kV * kC> panels{(kBeside ? of(kI % kV).data : w.panel(p + kI % kV / kParts)) +
                                                          kI / kV * W::kStep + kI % kParts * (W::kStep / kParts)...};
    for (std::size_t k = 0; k < w.steps; k += kC, row += 4 * kC) {
      Registers<typename W::Weights, std::index_sequence<kI...>> weights;
      (weights.template Set<kI>(W::Load(panels[kI] + k * W::kStep)), ...);
      (sums.template Set<kI>(W::Dot(row + kI / kV * 4, weights.template Get<kI>(), sums.template Get<kI>())), ...);
    }
  }
  ((kI < kV ? void() : sums.template Set<kI % kV>(hn::Add(sums.template Get<kI % kV>(), sums.template Get<kI>()))),
   ...);
  ((kI < kV ? hn::Store(W::Finish(of(kI), a, 0, output(kI), sums.template Get<kI>()), df, to + kI * kLanes) : void()),
   ...);
}

template <class W, bool kBeside, std::size_t kP, class PageOf>
HWY_NOINLINE void PageTile(const PageOf& page, std::size_t p, std::size_t pages, const Rows& a, float* to) {
  constexpr std::size_t kV = std::min(kP, kMaxPanels) * kParts;
  constexpr std::size_t kC = W::kExact && kV < 8 ? std::min<std::size_t>(4, 8 / kV) : 1;
  TileOfPages<W, kBeside, kV, kC>(page, p, pages, a, to, std::make_index_sequence<kV * kC>());
}

template <class W, bool kBeside, class PageOf>
void MultiplyPagesBy(const PageOf& page, std::size_t panels, std::size_t pages, const Rows& a, float* to) {
  for (std::size_t p = 0; p < panels;) {
    std::size_t count = kMaxPanels;
    while (p + count > panels) count /= 2;
    if (count == 4) {
      PageTile<W, kBeside, 4>(page, p, pages, a, to + p * kPanel);
    } else if (count == 2) {
      PageTile<W, kBeside, 2>(page, p, pages, a, to + p * kPanel);
    } else {
      PageTile<W, kBeside, 1>(page, p, pages, a, to + p * kPanel);
    }
    p += count;
  }
}

// Multiply one row by matrices of float32 or int8: page(0), page(1) and so on. With kBeside, there are `panels`
// matrices of one panel each, side by side. Otherwise there are `pages` matrices with `panels` panels, and each
// continues the inputs of the one before it.
template <bool kBeside, class PageOf>
void MultiplyPages(const PageOf& page, bool int8, std::size_t panels, const Rows& a, float* to, std::size_t pages = 1) {
  if (!int8) return MultiplyPagesBy<Float32, kBeside>(page, panels, pages, a, to);
#ifdef TXPORT_VNNI
#if HWY_TARGET == HWY_AVX2 && defined(TXPORT_AVX_VNNI)
  if (extensions().avx_vnni) return MultiplyPagesBy<Vnni<false>, kBeside>(page, panels, pages, a, to);
#endif
  if (has_vnni()) return MultiplyPagesBy<Vnni<true>, kBeside>(page, panels, pages, a, to);
#endif
  MultiplyPagesBy<Int8, kBeside>(page, panels, pages, a, to);
}

// Rows of float32 that several products may read. The first product of an integer matrix quantises them for all.
struct Input {
  const OwnBuffers& own;
  const float* values;
  std::size_t rows;
  std::size_t width;
  bool positive = false;   // whether no number is negative
  bool quantised = false;  // whether own.quantised contains them

  Input Part(Member::Range of) const { return {own, values + of.begin * width, of.end - of.begin, width, positive}; }

  // Multiply by the panels [begin, end) of `w`.
  void Times(const Matrix& w, std::size_t begin, std::size_t end, const Out& out) {
    Multiply(w, For(w), rows, begin, end, out);
  }

  // Return the rows as inputs of a product with `w`.
  Rows For(const Matrix& w) {
    if (!w.integer()) return FloatRows(values, width);
    const std::int32_t zero = Int8::ZeroPoint(positive);
    for (std::size_t i = 0; i < rows && !quantised; ++i) {
      own.scale[i] = Quantise(values + i * width, width, positive ? 255 : 127, zero, own.quantised + i * width);
    }
    quantised = true;
    return {own.quantised, width, own.scale, zero};
  }
};

// Compute this thread's outputs of a product, at their places in `to` [rows, outputs].
// NOLINTNEXTLINE(readability-non-const-parameter): `to` is written
inline void Product(Input a, const Matrix& w, const Member& member, float* to) {
  const Member::Range mine = member.share(w.panels);
  a.Times(w, mine.begin, mine.end, {to + mine.begin * kPanel, w.outputs()});
}

// Compute some of the `count` heads of a product, at their places in `to` [rows, outputs].
inline void HeadsProduct(Input& a, const Matrix& w, Member::Range heads, std::size_t count, float* to) {
  const std::size_t each = w.panels / count;
  a.Times(w, heads.begin * each, heads.end * each, {to + heads.begin * each * kPanel, w.outputs()});
}

// Compute this thread's outputs of the first part of a feed-forward layer, at their places in `to` [rows, outputs]:
// activation(inner x) or, with a gate, activation(gate x) * (inner x). `gates` [rows, outputs] is for the gate.
template <class Layer>
void InnerProduct(Input a, const Layer& layer, Activation activation, const Member& member, float* to, float* gates) {
  const Member::Range mine = member.share(layer.inner.panels);
  const std::size_t size = (mine.end - mine.begin) * kPanel;
  const Out out{to + mine.begin * kPanel, layer.inner.outputs()};
  a.Times(layer.inner, mine.begin, mine.end, out);
  if (layer.gate.panels == 0) return Activate(activation, out, a.rows, size);
  const Out gate{gates + mine.begin * kPanel, out.stride};
  a.Times(layer.gate, mine.begin, mine.end, gate);
  Activate(activation, gate, a.rows, size);
  for (std::size_t i = 0; i < a.rows; ++i) {
    const float* by = gate.data + i * gate.stride;
    float* row = out.data + i * out.stride;
    for (std::size_t j = 0; j < size; j += kLanes) {
      hn::Store(hn::Mul(hn::Load(df, row + j), hn::Load(df, by + j)), df, row + j);
    }
  }
}

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TXPORT_FUSED_PRODUCTS_INL
