// Products, LayerNorm, activations and attention against double precision, near the edges of panels and tiles, on every
// instruction set.

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "fused/matrix.hpp"
#include "fused/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fused/test_products.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "fused/attention-inl.hpp"
#include "fused/products-inl.hpp"
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

  Layer(std::size_t outputs, std::size_t inputs, bool int8, bool by_columns, std::mt19937& random)
      : outputs(outputs),
        inputs(inputs),
        floats(outputs * inputs),
        bytes(outputs * inputs),
        scales(outputs),
        bias(outputs) {
    std::uniform_real_distribution<float> number(-1, 1);
    for (auto& value : floats) value = number(random);
    for (auto& value : bytes) value = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
    for (auto& value : scales) value = 0.01F * (1 + number(random) / 2);
    for (auto& value : bias) value = number(random);
    View weight;
    weight.data =
        int8 ? reinterpret_cast<const std::byte*>(bytes.data()) : reinterpret_cast<const std::byte*>(floats.data());
    weight.kind = int8 ? Kind::int8 : Kind::float32;
    weight.rows = outputs;
    weight.columns = inputs;
    weight.row_stride = by_columns ? 1 : inputs;
    weight.column_stride = by_columns ? outputs : 1;
    weight.scales = reinterpret_cast<const std::byte*>(scales.data());
    View biases{reinterpret_cast<const std::byte*>(bias.data()), Kind::float32, 1, outputs, 0, 1, nullptr};
    const Plan plan{&matrix, {{weight, biases}}, {1, outputs}, {1, inputs}, -5};
    block = Block(measure(plan));
    std::fill_n(block.data(), block.bytes(), std::byte{0x55});  // whatever was there before
    lay_out(plan, block.data());
    pack(plan, 0, matrix.panels);
    by_columns_ = by_columns;
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

void CheckProduct(std::size_t rows, std::size_t outputs, std::size_t inputs, bool int8, bool positive,
                  std::mt19937& random) {
  CAPTURE(rows);
  CAPTURE(outputs);
  CAPTURE(inputs);
  CAPTURE(int8);
  CAPTURE(positive);
  const Layer layer(outputs, inputs, int8, random() % 2 == 0, random);
  const std::vector<float> x = numbers(rows * inputs, positive ? 0.0F : -1.0F, random);
  const Block a = rows_of(x, rows, inputs);
  const std::size_t width = padded(inputs);
  const std::size_t stride = padded(outputs);
  Block quantised(rows * width);
  Block scale(rows * sizeof(float));
  Buffers own;
  own.quantised = reinterpret_cast<std::uint8_t*>(quantised.data());
  own.scale = floats_in(scale);
  Block y(rows * stride * sizeof(float));
  Block best(rows * kPanel * sizeof(float));
  Block index(rows * kPanel * sizeof(std::int32_t), true);
  std::fill_n(floats_in(best), rows * kPanel, -100.0F);
  const Out out{floats_in(y), stride, Activation::none, floats_in(best), reinterpret_cast<std::int32_t*>(index.data())};
  const std::size_t middle = random() % (layer.matrix.panels + 1);
  Input input(floats_of(a), rows, width, positive, own);
  input.Times(layer.matrix, 0, middle, out);
  input.Times(layer.matrix, middle, layer.matrix.panels, out);
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
    float chosen = -200;
    std::int32_t chosen_index = -1;
    for (std::size_t j = 0; j < kPanel; ++j) {
      const float value = floats_of(best)[m * kPanel + j];
      const std::int32_t id = reinterpret_cast<const std::int32_t*>(index.data())[m * kPanel + j];
      if (value > chosen || (value == chosen && id < chosen_index)) {
        chosen = value;
        chosen_index = id;
      }
    }
    if (most > -5.0F) REQUIRE(static_cast<std::size_t>(chosen_index) == where);
  }
}

void CheckNorm(std::size_t d, std::mt19937& random) {
  CAPTURE(d);
  const std::vector<float> values = numbers(d, -1, random);
  const std::vector<float> weights = numbers(d, -1, random);
  const Block x = rows_of(values, 1, d);
  const Block weight = rows_of(weights, 1, d);
  const Block bias = rows_of(weights, 1, d);
  Block y(padded(d) * sizeof(float));
  LayerNorm(floats_of(x), {floats_of(weight), floats_of(bias)}, 1e-5F, d, floats_in(y));
  double mean = 0;
  double square = 0;
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
    hn::Store(Activate(Activation::gelu, hn::Load(df, x)), df, y);
    REQUIRE(std::abs(static_cast<double>(y[0]) - exact / 2 * (1 + std::erf(exact / std::sqrt(2.0)))) < 4e-6);
    hn::Store(Activate(Activation::silu, hn::Load(df, x)), df, y);
    REQUIRE(std::abs(static_cast<double>(y[0]) - exact / (1 + std::exp(-exact))) < 4e-6);
  }
}

template <class C>
void CheckAttention(std::size_t k, std::size_t length, double tolerance, std::mt19937& random) {
  CAPTURE(k);
  CAPTURE(length);
  const std::size_t width = padded(k);
  const Block query = rows_of(numbers(k, -1, random), 1, k);
  const std::vector<float> key_values = numbers(length * k, -1, random);
  const std::vector<float> value_values = numbers(length * k, -1, random);
  const Block keys = rows_of(key_values, length, k);
  const Block values = rows_of(value_values, length, k);
  // What is behind the end is not a number.
  Block cache(2 * padded(length) * width * sizeof(C));
  std::fill_n(cache.data(), cache.bytes(), std::byte{0xFF});
  auto* first = reinterpret_cast<C*>(cache.data());
  const HeadCache<C> head{first, first + padded(length) * width, width};
  for (std::size_t t = 0; t < length; ++t) head.Store(t, floats_of(keys) + t * width, floats_of(values) + t * width);
  Block scores(padded(length) * sizeof(float));
  Block out(width * sizeof(float));
  Attend(floats_of(query), head, length, floats_in(scores), floats_in(out));
  std::vector<double> weights;
  double total = 0;
  for (std::size_t t = 0; t < length; ++t) {
    double score = 0;
    for (std::size_t i = 0; i < k; ++i)
      score += static_cast<double>(floats_of(query)[i]) * static_cast<double>(key_values[t * k + i]);
    weights.push_back(std::exp(score));
    total += weights.back();
  }
  for (std::size_t i = 0; i < k; ++i) {
    double expected = 0;
    for (std::size_t t = 0; t < length; ++t)
      expected += weights[t] / total * static_cast<double>(value_values[t * k + i]);
    REQUIRE(std::abs(static_cast<double>(floats_of(out)[i]) - expected) < tolerance);
  }
}

void CheckAll() {
  std::mt19937 random(4);
  for (const bool int8 : {false, true}) {
    for (const auto rows : std::initializer_list<std::size_t>{1, 2, 3, 4, 5, 9}) {
      for (const auto outputs : std::initializer_list<std::size_t>{1, 16, 17, 64, 130}) {
        for (const auto inputs : std::initializer_list<std::size_t>{1, 4, 15, 16, 17, 50}) {
          CheckProduct(rows, outputs, inputs, int8, random() % 2 == 0, random);
        }
      }
    }
  }
  for (std::size_t d = 2; d < 70; ++d) CheckNorm(d, random);
  CheckFunctions();
  for (const auto k : std::initializer_list<std::size_t>{1, 8, 16, 17, 32, 48, 64, 80, 128}) {
    for (const auto length : std::initializer_list<std::size_t>{1, 2, 3, 15, 16, 17, 31, 32, 33, 50}) {
      CheckAttention<float>(k, length, 1e-5, random);
      CheckAttention<hwy::float16_t>(k, length, 5e-3, random);
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
  targets::on_each([](std::int64_t) { HWY_DYNAMIC_DISPATCH(CheckAll)(); });
}
}  // namespace txport::core::fused
#endif
