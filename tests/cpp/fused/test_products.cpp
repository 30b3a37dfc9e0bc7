// Products, LayerNorm, activations and attention against double precision, near the edges of panels and tiles, on every
// instruction set.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "fused/matrix.hpp"
#include "fused/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fused/test_products.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "fused/attention-inl.hpp"
#include "fused/norm-inl.hpp"
#include "fused/targets.hpp"

#ifndef TXPORT_TEST_PRODUCTS_ONCE
#define TXPORT_TEST_PRODUCTS_ONCE
namespace txport::core::fused {

// A random linear layer, packed, and its numbers.
struct Layer {
  std::size_t outputs;
  std::size_t inputs;
  std::vector<float> floats;
  std::vector<std::int8_t> bytes;
  std::vector<float> scales;
  std::vector<float> bias;
  Block block;
  Matrix matrix;
  UpperBounds bounds;

  // Weights but those of the first input are at most `most`; those of int8 are all `byte` unless that is 0.
  Layer(std::size_t outputs, std::size_t inputs, Kind kind, bool by_columns, std::mt19937& random, float most = 1,
        std::int8_t byte = 0)
      : outputs(outputs),
        inputs(inputs),
        floats(outputs * inputs),
        bytes(outputs * inputs),
        scales(outputs),
        bias(outputs) {
    std::uniform_real_distribution<float> number(-1, 1);
    by_columns_ = by_columns;
    for (auto& value : floats) value = most * number(random);
    for (std::size_t n = 0; n < outputs; ++n) floats[at(n, 0)] /= most;
    for (auto& value : bytes) value = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
    if (byte != 0) std::fill(bytes.begin(), bytes.end(), byte);
    for (auto& value : scales) value = 0.01F * (1 + number(random) / 2);
    std::vector<hwy::float16_t> halves;
    for (auto& value : floats) {
      halves.push_back(hwy::F16FromF32(value));
      if (kind == Kind::float16) value = hwy::F32FromF16(halves.back());
    }
    for (auto& value : bias) value = number(random);
    View weight;
    weight.data = kind == Kind::int8      ? reinterpret_cast<const std::byte*>(bytes.data())
                  : kind == Kind::float16 ? reinterpret_cast<const std::byte*>(halves.data())
                                          : reinterpret_cast<const std::byte*>(floats.data());
    weight.kind = kind;
    weight.rows = outputs;
    weight.columns = inputs;
    weight.row_stride = by_columns ? 1 : inputs;
    weight.column_stride = by_columns ? outputs : 1;
    weight.scales = reinterpret_cast<const std::byte*>(scales.data());
    View biases;
    biases.data = reinterpret_cast<const std::byte*>(bias.data());
    biases.rows = 1;
    biases.columns = outputs;
    biases.column_stride = 1;
    Plan plan;
    plan.matrix = &matrix;
    plan.parts = {{weight, biases}};
    plan.outputs.size = outputs;
    plan.inputs.size = inputs;
    plan.padding = -5;
    plan.bounds = &bounds;
    Cursor size(nullptr);
    lay_out(plan, size);
    block = Block(size.bytes());
    std::fill_n(block.data(), block.bytes(), std::byte{0x55});  // whatever was there before
    Cursor at(block.data());
    lay_out(plan, at);
    REQUIRE(at.bytes() == block.bytes());
    pack(plan, 0, matrix.panels);
  }
  std::size_t at(std::size_t n, std::size_t k) const { return by_columns_ ? k * outputs + n : n * inputs + k; }

 private:
  bool by_columns_ = false;
};

inline std::vector<float> numbers(std::size_t count, float low, std::mt19937& random) {
  std::uniform_real_distribution<float> number(low, 1);
  std::vector<float> result(count);
  for (float& value : result) value = number(random);
  return result;
}

// `count` numbers from `first` on, in 127 steps to each side if they are int8; returns the step.
inline double round_to_int8(std::vector<double>& row, std::size_t first, std::size_t count) {
  double largest = 0;
  for (std::size_t i = first; i < first + count; ++i) largest = std::max(largest, std::abs(row[i]));
  for (std::size_t i = first; i < first + count; ++i) row[i] = std::nearbyint(row[i] * 127 / largest) * largest / 127;
  return largest / 127;
}

// What one query [k] gets of keys and values [length, k], each score plus its `bias`, with int8 where the engine rounds
// to int8.
inline std::vector<double> attention(std::vector<double> query, const std::vector<float>& all_keys,
                                     const std::vector<float>& all_values, const float* bias, bool int8) {
  const std::size_t k = query.size();
  const std::size_t length = all_keys.size() / k;
  std::vector<double> keys(all_keys.begin(), all_keys.end());
  std::vector<double> values(all_values.begin(), all_values.end());
  std::vector<double> steps(length, 1);
  if (int8) round_to_int8(query, 0, k);
  for (std::size_t t = 0; t < length && int8; ++t) {
    round_to_int8(keys, t * k, k);
    steps[t] = round_to_int8(values, t * k, k);
  }
  std::vector<double> weights;
  double total = 0;
  for (std::size_t t = 0; t < length; ++t) {
    double score = bias == nullptr ? 0 : static_cast<double>(bias[t]);
    for (std::size_t i = 0; i < k; ++i) score += query[i] * keys[t * k + i];
    weights.push_back(std::exp(score));
    total += weights.back();
    weights.back() *= steps[t];
  }
  if (int8) round_to_int8(weights, 0, length);
  std::vector<double> mixed(k);
  for (std::size_t t = 0; t < length; ++t) {
    for (std::size_t i = 0; i < k; ++i) mixed[i] += weights[t] / total * values[t * k + i] / steps[t];
  }
  return mixed;
}

// [rows, width], padded by zeros.
inline Block rows_of(const std::vector<float>& values, std::size_t rows, std::size_t size) {
  Block block(rows * padded(size) * sizeof(float), true);
  auto* to = reinterpret_cast<float*>(block.data());
  for (std::size_t i = 0; i < values.size(); ++i) to[i / size * padded(size) + i % size] = values[i];
  return block;
}

inline const float* floats_of(const Block& block) { return reinterpret_cast<const float*>(block.data()); }
inline float* floats_in(const Block& block) { return reinterpret_cast<float*>(block.data()); }

}  // namespace txport::core::fused
#endif

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused {
namespace HWY_NAMESPACE {

void CheckProduct(std::size_t rows, std::size_t outputs, std::size_t inputs, Kind kind, bool positive,
                  std::mt19937& random) {
  const bool int8 = kind == Kind::int8;
  CAPTURE(rows);
  CAPTURE(outputs);
  CAPTURE(inputs);
  CAPTURE(static_cast<int>(kind));
  CAPTURE(positive);
  const Layer layer(outputs, inputs, kind, random() % 2 == 0, random);
  const std::vector<float> x = numbers(rows * inputs, positive ? 0.0F : -1.0F, random);
  const Block a = rows_of(x, rows, inputs);
  const std::size_t width = padded(inputs);
  const std::size_t stride = padded(outputs);
  Block quantised(rows * width);
  Block scale(rows * sizeof(float));
  OwnBuffers own;
  own.quantised = reinterpret_cast<std::uint8_t*>(quantised.data());
  own.scale = floats_in(scale);
  Block y(rows * stride * sizeof(float));
  const std::size_t middle = random() % (layer.matrix.panels + 1);
  Input input{own, floats_of(a), rows, width};
  input.positive = positive;
  input.Times(layer.matrix, 0, middle, {floats_in(y), stride});
  input.Times(layer.matrix, middle, layer.matrix.panels, {floats_in(y) + middle * kPanel, stride});
  for (std::size_t m = 0; m < rows; ++m) {
    double largest = 0;
    for (std::size_t k = 0; k < inputs; ++k)
      largest = std::max(largest, std::abs(static_cast<double>(x[m * inputs + k])));
    const double steps = positive ? 255 : 127;
    float most = -100;
    std::size_t where = 0;
    for (std::size_t n = 0; n < outputs; ++n) {
      double expected = layer.bias[n];
      double slack = 1e-5 * static_cast<double>(inputs);
      for (std::size_t k = 0; k < inputs; ++k) {
        const double value = x[m * inputs + k];
        if (!int8) {
          expected += value * static_cast<double>(layer.floats[layer.at(n, k)]);
          continue;
        }
        const double scaled = value * static_cast<double>(static_cast<float>(steps) / static_cast<float>(largest));
        const double w = layer.bytes[layer.at(n, k)] * static_cast<double>(layer.scales[n]);
        expected += std::nearbyint(scaled) * largest / steps * w;
        // A number in the middle between two steps may become either.
        if (std::abs(std::abs(scaled - std::floor(scaled)) - 0.5) < 1e-4) slack += std::abs(w) * largest / steps;
      }
      const float found = floats_of(y)[m * stride + n];
      if (std::abs(static_cast<double>(found) - expected) > slack) {
        CAPTURE(m);
        CAPTURE(n);
        REQUIRE(static_cast<double>(found) == doctest::Approx(expected));
      }
      if (found > most) {
        most = found;
        where = n;
      }
    }
    for (std::size_t n = outputs; n < stride; ++n) REQUIRE(floats_of(y)[m * stride + n] == -5.0F);
    Best best{-200, -1};
    for (std::size_t begin = 0; begin < stride; begin += 32) {
      FindLargest(floats_of(y) + m * stride + begin, std::min<std::size_t>(32, stride - begin), begin, best);
    }
    if (most > -5.0F) REQUIRE(static_cast<std::size_t>(best.index) == where);
  }
}

// No product is farther from that of the copy than the bounds say: for any inputs, and for those that are farthest, in
// the direction of what the copy leaves out of an output's weights, or each half a step from what it reads.
void CheckUpperBounds(std::size_t outputs, std::size_t inputs, Kind kind, float most, std::mt19937& random) {
  CAPTURE(outputs);
  CAPTURE(inputs);
  CAPTURE(most);
  const Layer layer(outputs, inputs, kind, random() % 2 == 0, random, most);
  const Matrix& copy = layer.bounds.copy;
  const bool int8 = kind == Kind::int8;
  const auto weight = [&](std::size_t n, std::size_t k) {
    const std::size_t at = layer.at(n, k);
    return int8 ? layer.scales[n] * static_cast<float>(layer.bytes[at]) : layer.floats[at];
  };
  const auto left_out = [&](std::size_t n, std::size_t k) {
    if (int8) {
      const std::uint32_t pair = copy.panel(n / kPanel)[k / 8 * kStepBytes + n % kPanel * 4 + k % 4];
      const auto upper = static_cast<std::int8_t>(k / 4 % 2 == 0 ? pair << 4U : pair & 0xF0U);
      return weight(n, k) - static_cast<float>(upper) * copy.scale[n];
    }
    const std::uint8_t byte = copy.panel(n / kPanel)[k / 4 * kStepBytes + n % kPanel * 4 + k % 4];
    return weight(n, k) - static_cast<float>(static_cast<std::int8_t>(byte)) * copy.scale[n];
  };
  const std::size_t width = padded(inputs);
  Block quantised(width);
  float scale = 0;
  OwnBuffers own;
  own.quantised = reinterpret_cast<std::uint8_t*>(quantised.data());
  own.scale = &scale;
  Block exact(layer.matrix.outputs() * sizeof(float));
  Block rough(layer.matrix.outputs() * sizeof(float));
  double nearest = 0;  // to a bound, of products that are the farthest
  for (std::size_t n = 0; n < outputs; ++n) {
    std::vector<float> x = numbers(inputs, -1, random);
    for (std::size_t k = 0; k < inputs; ++k) {
      if (n % 3 == 1) x[k] = 1e6F * left_out(n, k);
      if (n % 3 == 2) x[k] = k == 0 ? 127 : std::copysign(0.499F, weight(n, k));
    }
    const Block a = rows_of(x, 1, inputs);
    Input input{own, floats_of(a), 1, width};
    input.Times(layer.matrix, 0, layer.matrix.panels, {floats_in(exact), layer.matrix.outputs()});
    input.Times(copy, 0, copy.panels, {floats_in(rough), copy.outputs()});
    double square = 1;
    for (const float value : x) square += static_cast<double>(value) * static_cast<double>(value);
    const auto unit = static_cast<double>(scale);
    const double norm = std::sqrt(square) + (int8 ? unit * 0.5 * std::sqrt(static_cast<double>(width)) : 0);
    REQUIRE((layer.bounds.input_error == nullptr) == int8);
    for (std::size_t i = 0; i < outputs; ++i) {
      const double bound = norm * static_cast<double>(layer.bounds.weight_error[i]) +
                           (int8 ? 0 : unit * static_cast<double>(layer.bounds.input_error[i]));
      const double distance = static_cast<double>(std::abs(floats_of(exact)[i] - floats_of(rough)[i]));
      REQUIRE(distance <= bound);
      nearest = std::max(nearest, distance / bound);
    }
    for (std::size_t i = outputs; i < copy.outputs(); ++i) REQUIRE(floats_of(rough)[i] == -5.0F);
  }
  if (inputs == 700) REQUIRE(nearest > 0.85);
}

// The largest sums that there can be: as many inputs as int8 takes, and more, which becomes float32.
void CheckWide(std::size_t inputs) {
  CAPTURE(inputs);
  std::mt19937 random(1);
  Layer layer(1, inputs, Kind::int8, false, random, 1, 127);
  REQUIRE(layer.matrix.int8() == (inputs <= kMaxInt8Inputs));
  const std::size_t width = padded(inputs);
  const Block a = rows_of(std::vector<float>(inputs, 1), 1, inputs);
  Block quantised(width);
  float scale = 0;
  OwnBuffers own;
  own.quantised = reinterpret_cast<std::uint8_t*>(quantised.data());
  own.scale = &scale;
  Block y(kPanel * sizeof(float));
  Input input{own, floats_of(a), 1, width};
  input.positive = true;
  input.Times(layer.matrix, 0, 1, {floats_in(y), kPanel});
  const double expected = 127 * static_cast<double>(layer.scales[0]) * static_cast<double>(inputs);
  REQUIRE(static_cast<double>(floats_of(y)[0]) == doctest::Approx(expected).epsilon(1e-3));
}

void CheckNorm(std::size_t d, std::mt19937& random) {
  CAPTURE(d);
  const std::vector<float> values = numbers(d, -1, random);
  const std::vector<float> weights = numbers(d, -1, random);
  const Block x = rows_of(values, 1, d);
  std::vector<float> weight = weights;
  weight.resize(padded(d));
  Block y(padded(d) * sizeof(float));
  double mean = 0;
  double square = 0;
  for (const double value : values) square += value * value / static_cast<double>(d);
  LayerNorm(floats_of(x), {weight, {}}, 1e-5F, d, floats_in(y));  // RMSNorm
  for (std::size_t i = 0; i < padded(d); ++i) {
    const double expected = i < d ? values[i] / std::sqrt(square + 1e-5) * static_cast<double>(weights[i]) : 0;
    REQUIRE(static_cast<double>(floats_of(y)[i]) == doctest::Approx(expected).epsilon(1e-4));
  }
  LayerNorm(floats_of(x), {weight, weight}, 1e-5F, d, floats_in(y));
  square = 0;
  for (const double value : values) mean += value / static_cast<double>(d);
  for (const double value : values) square += (value - mean) * (value - mean) / static_cast<double>(d);
  for (std::size_t i = 0; i < padded(d); ++i) {
    const double expected =
        i < d ? ((values[i] - mean) / std::sqrt(square + 1e-5) + 1) * static_cast<double>(weights[i]) : 0;
    REQUIRE(static_cast<double>(floats_of(y)[i]) == doctest::Approx(expected).epsilon(1e-4));
  }
}

void CheckFunctions() {
  alignas(64) float x[kPanel];
  alignas(64) float y[kPanel];
  for (double at = -30; at < 30; at += 0.0371) {
    std::fill_n(x, kPanel, static_cast<float>(at));
    const double exact = static_cast<double>(x[0]);
    hn::Store(Exp(hn::Load(df, x)), df, y);
    REQUIRE(static_cast<double>(y[0]) == doctest::Approx(std::exp(exact)).epsilon(3e-7));
    hn::Store(Erf(hn::Load(df, x)), df, y);
    REQUIRE(std::abs(static_cast<double>(y[0]) - std::erf(exact)) < 4e-7);
    const auto activated = [&](Activation activation) {
      std::copy_n(x, kPanel, y);
      Activate(activation, {y, kPanel}, 1, kPanel);
      return static_cast<double>(y[0]);
    };
    REQUIRE(activated(Activation::relu) == std::max(exact, 0.0));
    REQUIRE(std::abs(activated(Activation::gelu) - exact / 2 * (1 + std::erf(exact / std::sqrt(2.0)))) < 4e-6);
    const double slope = std::sqrt(2 / std::acos(-1.0)) * (exact + 0.044715 * exact * exact * exact);
    REQUIRE(std::abs(activated(Activation::gelu_tanh) - exact / 2 * (1 + std::tanh(slope))) < 4e-6);
    REQUIRE(std::abs(activated(Activation::silu) - exact / (1 + std::exp(-exact))) < 4e-6);
  }
}

// Pages of a cache of so many positions, in any order in memory; what is behind the end is not a number.
struct PagesOf {
  CacheShape shape;
  Block memory;
  std::vector<Page> pages;

  PagesOf(const CacheShape& whole, std::size_t positions) : shape(whole) {
    shape.positions = kPanel;
    memory = Block(padded(positions) / kPanel * shape.bytes());
    std::fill_n(memory.data(), memory.bytes(), std::byte{0xFF});
    for (std::size_t at = 0; at < memory.bytes(); at += shape.bytes()) {
      pages.emplace_back(std::shared_ptr<void>(), memory.data() + at);
    }
    std::shuffle(pages.begin(), pages.end(), std::mt19937(static_cast<unsigned>(positions)));
  }
  HeadCache head(std::size_t layer, std::size_t head, std::size_t t) const {
    return At(pages[t / kPanel].get(), shape, layer, head);
  }
};

// `rows` queries of each of the heads from `first` to 2, in the second layer of a cache.
void CheckAttention(std::size_t k, std::size_t length, std::size_t rows, bool int8, std::mt19937& random) {
  CAPTURE(k);
  CAPTURE(length);
  CAPTURE(int8);
  constexpr std::size_t kHeads = 3;
  const std::size_t first = random() % kHeads;
  const std::size_t width = padded(k);
  CacheShape shape;
  shape.layers = 2;
  shape.heads = kHeads;
  shape.k = width;
  shape.positions = padded(length + random() % 30);
  shape.int8 = int8;
  Block memory(shape.bytes());
  std::fill_n(memory.data(), memory.bytes(), std::byte{0xFF});
  const PagesOf paged(shape, length);
  const std::size_t most = std::max(shape.positions, width);
  const Block zeros(most * sizeof(float), true);
  const Block ones = rows_of(std::vector<float>(most, 1), 1, most);
  const Block scores(kQueries * kHeads * most * sizeof(float));
  const Block bytes(kQueries * kHeads * most);
  const Block units(kQueries * kHeads * sizeof(float));
  OwnBuffers own;
  own.zeros = floats_in(zeros);
  own.ones = floats_in(ones);
  own.scores = floats_in(scores);
  own.bytes = reinterpret_cast<std::uint8_t*>(bytes.data());
  own.attention_scale = floats_in(units);
  const std::vector<float> query = numbers(rows * kHeads * k, -1, random);
  const Block queries = rows_of(query, rows * kHeads, k);
  std::vector<float> keys[kHeads];
  std::vector<float> values[kHeads];
  for (std::size_t h = 0; h < kHeads; ++h) {
    keys[h] = numbers(length * k, -1, random);
    values[h] = numbers(length * k, -1, random);
    const Block key = rows_of(keys[h], length, k);
    const Block value = rows_of(values[h], length, k);
    for (std::size_t t = 0; t < length; ++t) {
      At(memory.data(), shape, 1, h).Store(t, floats_of(key) + t * width, floats_of(value) + t * width, own);
      paged.head(1, h, t).Store(t % kPanel, floats_of(key) + t * width, floats_of(value) + t * width, own);
    }
  }
  Block out(rows * kHeads * width * sizeof(float));
  const bool biased = random() % 2 == 0;
  PositionBias bias{{}, 2, kHeads, 2 * (length + rows) + kPanel, length + rows};
  if (biased) bias.values = numbers(2 * kHeads * bias.stride, -1, random);
  const std::size_t stride = kHeads * width;
  const Queries asked{floats_of(queries), rows, stride, width, random() % length};
  Attend(Whole{memory.data()}, shape, 1, {first, kHeads}, length, asked, bias, 1, own, {floats_in(out), stride});
  Block same(stride * sizeof(float));
  for (std::size_t row = 0; row < rows; ++row) {
    const Queries one{asked.data + row * stride, 1, 0, width, asked.position + row};
    Attend(Paged{paged.pages.data()}, paged.shape, 1, {first, kHeads}, length, one, bias, 1, own, {floats_in(same), 0});
    const float* expected = floats_of(out) + row * stride;
    REQUIRE(std::equal(expected + first * width, expected + stride, floats_of(same) + first * width));
  }
  for (std::size_t n = first; n < rows * kHeads; n += n % kHeads + 1 < kHeads ? 1 : 1 + first) {
    const std::vector<double> expected = attention(
        {query.begin() + static_cast<std::ptrdiff_t>(n * k), query.begin() + static_cast<std::ptrdiff_t>(n * k + k)},
        keys[n % kHeads], values[n % kHeads], bias.of(1, n % kHeads, asked.position + n / kHeads), int8);
    for (std::size_t i = 0; i < k; ++i) {
      // Numbers in the middle between two steps may become either.
      REQUIRE(std::abs(static_cast<double>(floats_of(out)[n * width + i]) - expected[i]) < (int8 ? 0.02 : 1e-5));
    }
  }
}

void CheckAll() {
  std::mt19937 random(4);
  for (const Kind kind : {Kind::float32, Kind::float16, Kind::int8}) {
    for (const auto rows : std::initializer_list<std::size_t>{1, 2, 3, 4, 5, 9, 20}) {
      for (const auto outputs : std::initializer_list<std::size_t>{1, 16, 17, 64, 130}) {
        for (const auto inputs : std::initializer_list<std::size_t>{1, 4, 15, 16, 17, 50}) {
          CheckProduct(rows, outputs, inputs, kind, random() % 2 == 0, random);
        }
      }
    }
  }
  CheckWide(kMaxInt8Inputs);
  CheckWide(kMaxInt8Inputs + 1);
  for (std::size_t d = 2; d < 70; ++d) CheckNorm(d, random);
  CheckFunctions();
  for (const auto k : std::initializer_list<std::size_t>{1, 8, 16, 17, 32, 48, 64, 80, 128}) {
    for (const auto length : std::initializer_list<std::size_t>{1, 2, 3, 15, 16, 17, 31, 32, 33, 50}) {
      for (const bool int8 : {false, true}) CheckAttention(k, length, 1 + random() % 6, int8, random);
    }
  }
  for (const auto outputs : std::initializer_list<std::size_t>{3, 16, 40}) {
    for (const auto inputs : std::initializer_list<std::size_t>{1, 16, 50, 700}) {
      for (const Kind kind : {Kind::float32, Kind::float16, Kind::int8}) {
        for (const float most : {0.001F, 1.0F}) CheckUpperBounds(outputs, inputs, kind, most, random);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace txport::core::fused
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace txport::core::fused {
HWY_EXPORT(CheckAll);
TEST_CASE("kernels are right near the edges of panels and tiles, with each instruction set") {
  targets::on_each([](std::int64_t) { HWY_DYNAMIC_DISPATCH(CheckAll)(); }, false);
}
}  // namespace txport::core::fused
#endif
