#include "fused/matrix.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "fused/workspace.hpp"
#include "half.hpp"

namespace txport::core::fused {

namespace {

template <typename T>
T load(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

// Calls take(i, value) for `count` elements of a row, from `column` on.
template <typename Take>
void each_of_row(const View& view, std::size_t row, std::size_t column, std::size_t count, const Take& take) {
  const auto scale = view.kind == Kind::int8 ? load<float>(view.scales, row) : 1;
  for (std::size_t i = 0; i < count; ++i) {  // compilers make three loops of this
    const std::size_t at = row * view.row_stride + (column + i) * view.column_stride;
    take(i, view.kind == Kind::float32   ? load<float>(view.data, at)
            : view.kind == Kind::float16 ? float_of_half(load<std::uint16_t>(view.data, at))
                                         : static_cast<float>(load<std::int8_t>(view.data, at)) * scale);
  }
}

// Where a panel comes from.
struct Origin {
  const Linear& part;
  std::size_t row;    // of the part's weight, the first
  std::size_t count;  // of rows; the rest of the panel is padding
};

Origin origin(const Plan& plan, std::size_t panel) {
  const std::size_t width = plan.outputs.width();
  const std::size_t group_and_part = panel * kPanel / width;
  const std::size_t within = panel * kPanel % width;
  const std::size_t count = plan.outputs.size > within ? std::min(kPanel, plan.outputs.size - within) : 0;
  return {plan.parts[group_and_part % plan.parts.size()],
          group_and_part / plan.parts.size() * plan.outputs.size + within, count};
}

// A block of int8 `weight` to whole words of 4 inputs: `to` [columns / 4, 16, 4], which is zero where it is padding.
void pack_int8(const View& weight, const Origin& from, std::size_t column, std::size_t columns, std::uint8_t* to) {
  const auto* start =
      reinterpret_cast<const std::uint8_t*>(weight.data) + from.row * weight.row_stride + column * weight.column_stride;
  // Compilers make vectors of this where a stride is 1.
  const auto copy = [&](std::size_t row, std::size_t next) {
    for (std::size_t k = 0; k + 4 <= columns; k += 4) {
      for (std::size_t n = 0; n < from.count; ++n) {
        for (std::size_t j = 0; j < 4; ++j) to[k * kPanel + n * 4 + j] = start[n * row + (k + j) * next];
      }
    }
    for (std::size_t k = columns / 4 * 4; k < columns; ++k) {
      for (std::size_t n = 0; n < from.count; ++n) to[k / 4 * kStepBytes + n * 4 + k % 4] = start[n * row + k * next];
    }
  };
  weight.row_stride == 1 ? copy(1, weight.column_stride) : copy(weight.row_stride, weight.column_stride);
}

// The sum of each output's weights. False if one of them is -128: its negative is no int8, which AVX2 needs.
bool sum_up(const std::uint8_t* panel, std::size_t steps, std::int32_t* sums) {
  constexpr std::size_t kFit = 256;  // steps whose sums fit into 16 bits; compilers make vectors of the inner loop
  const auto* weights = reinterpret_cast<const std::int8_t*>(panel);
  std::int8_t least = 0;
  std::fill_n(sums, kPanel, 0);
  for (std::size_t begin = 0; begin < steps; begin += kFit) {
    std::array<std::int16_t, kStepBytes> parts{};
    for (std::size_t at = begin * kStepBytes; at < std::min(begin + kFit, steps) * kStepBytes; at += kStepBytes) {
      for (std::size_t i = 0; i < kStepBytes; ++i) {
        parts[i] = static_cast<std::int16_t>(parts[i] + weights[at + i]);
        least = std::min(least, weights[at + i]);
      }
    }
    for (std::size_t i = 0; i < kStepBytes; ++i) sums[i / 4] += parts[i];
  }
  return least > -128;
}

// Panel `p` of the copy. Padding, the outputs from `count` on, needs no bounds.
void pack_screen(const Matrix& from, std::size_t p, std::size_t count, const Screen& to) {
  constexpr float kWhole = 12582912;  // 1.5 * 2^23: sums with it are whole numbers, rounded
  const auto* weights = reinterpret_cast<const float*>(from.panel(p));
  auto* bytes = reinterpret_cast<std::int8_t*>(to.copy.panel(p));
  std::array<float, kPanel> scale{};
  std::array<float, kPanel> by{};
  std::array<float, kPanel> off{};
  std::array<float, kPanel> magnitude{};
  for (std::size_t i = 0; i < from.inputs * kPanel; i += kPanel) {
    for (std::size_t n = 0; n < kPanel; ++n) scale[n] = std::max(scale[n], std::abs(weights[i + n]));
  }
  for (std::size_t n = 0; n < kPanel; ++n) {
    scale[n] /= 127;
    by[n] = scale[n] > 1e-30F ? 1 / scale[n] : 0;
  }
  for (std::size_t k = 0; k < from.inputs; ++k) {
    for (std::size_t n = 0; n < kPanel; ++n) {  // compilers make vectors of this
      const float w = weights[k * kPanel + n];
      const float q = (w * by[n] + kWhole) - kWhole;
      off[n] += (w - q * scale[n]) * (w - q * scale[n]);
      magnitude[n] += std::abs(q);
      bytes[k / 4 * kStepBytes + n * 4 + k % 4] = static_cast<std::int8_t>(q);
    }
  }
  sum_up(to.copy.panel(p), to.copy.steps, to.copy.sum + p * kPanel);
  const auto inputs = static_cast<float>(from.inputs);
  for (std::size_t n = 0; n < kPanel; ++n) {
    const std::size_t at = p * kPanel + n;
    const float bias = std::isfinite(from.bias[at]) ? from.bias[at] : 0;
    to.copy.scale[at] = scale[n];
    // float32 rounds each product and sum; and the sums here, by less than a thousandth, or the least that has a
    // square.
    const float rounding = (inputs + 16) / (1U << 23U) * (127 * scale[n] * std::sqrt(inputs) + std::abs(bias));
    const float error = std::sqrt(off[n]) + rounding + 1e-17F;
    to.error[at] = n < count ? 1.001F * error : 0;
    to.reach[at] = 0.5005F * scale[n] * magnitude[n];
  }
}

}  // namespace

std::vector<float> floats_of(const View& view, std::size_t rows) {
  const std::size_t width = padded(view.columns);
  std::vector<float> result(rows * width);
  for (std::size_t row = 0; row < rows; ++row) {
    float* to = result.data() + row * width;
    each_of_row(view, row, 0, view.columns, [to](std::size_t i, float value) { to[i] = value; });
  }
  return result;
}

void embed(const Matrix& tokens, std::size_t row, float scale, const float* position, float* to) {
  const std::uint8_t* step = tokens.panel(row / kPanel) + row % kPanel * 4;
  if (!tokens.int8) {
    for (std::size_t i = 0; i < tokens.inputs; ++i, step += kStepBytes) {
      to[i] = load<float>(reinterpret_cast<const std::byte*>(step), 0) * scale + position[i];
    }
    return;
  }
  for (std::size_t i = 0; i < tokens.inputs; i += 4, step += kStepBytes) {
    for (std::size_t j = 0; j < 4; ++j) {
      const float value = static_cast<float>(static_cast<std::int8_t>(step[j])) * tokens.scale[row];
      to[i + j] = value * scale + position[i + j];
    }
  }
}

void lay_out(const Plan& plan, Cursor& at) {
  Matrix& matrix = *plan.matrix;
  const bool fits = plan.inputs.count * plan.inputs.size <= kMostInt8Inputs;
  matrix.int8 = fits && std::all_of(plan.parts.begin(), plan.parts.end(),
                                    [](const Linear& part) { return part.weight.kind == Kind::int8; });
  matrix.panels = plan.outputs.count * plan.parts.size() * plan.outputs.width() / kPanel;
  matrix.inputs = plan.inputs.count * plan.inputs.width();
  matrix.steps = matrix.int8 ? matrix.inputs / 4 : matrix.inputs;
  matrix.stride = matrix.steps * kStepBytes;
  at.take(matrix.bias, matrix.outputs());
  const auto take_int8 = [&at](Matrix& int8) {
    at.take(int8.scale, int8.outputs());
    at.take(int8.sum, int8.outputs());
    at.take(int8.data, int8.panels * int8.stride);
  };
  if (matrix.int8) return take_int8(matrix);
  if (plan.screen != nullptr && fits) {
    plan.screen->copy = {true,    matrix.panels, matrix.inputs, matrix.inputs / 4, matrix.stride / 4,
                         nullptr, matrix.bias};
    take_int8(plan.screen->copy);
    at.take(plan.screen->error, matrix.outputs());
    at.take(plan.screen->reach, matrix.outputs());
  }
  at.take(matrix.data, matrix.panels * matrix.stride);
}

bool pack(const Plan& plan, std::size_t begin, std::size_t end) {
  const Matrix& matrix = *plan.matrix;
  bool sound = true;
  const auto put = [&sound](float* to, float value) {
    sound = sound && std::isfinite(value);
    *to = value;
  };
  for (std::size_t p = begin; p < end; ++p) {
    const Origin from = origin(plan, p);
    const View& weight = from.part.weight;
    auto* panel = matrix.panel(p);
    if (from.count < kPanel || plan.inputs.size < plan.inputs.width()) std::fill_n(panel, matrix.steps * kStepBytes, 0);
    for (std::size_t group = 0; group < plan.inputs.count; ++group) {
      const std::size_t step = group * plan.inputs.width() * matrix.steps / matrix.inputs;
      std::uint8_t* to = panel + step * kStepBytes;
      const std::size_t column = group * plan.inputs.size;
      if (matrix.int8) {
        pack_int8(weight, from, column, plan.inputs.size, to);
        continue;
      }
      for (std::size_t n = 0; n < from.count; ++n) {
        float* output = reinterpret_cast<float*>(to) + n;
        each_of_row(weight, from.row + n, column, plan.inputs.size,
                    [&](std::size_t k, float value) { put(output + k * kPanel, value); });
      }
    }
    const std::size_t first = p * kPanel;
    std::fill_n(matrix.bias + first, from.count, 0.0F);
    std::fill_n(matrix.bias + first + from.count, kPanel - from.count, plan.padding);
    if (!from.part.bias.empty() && from.count > 0) {
      each_of_row(from.part.bias, 0, from.row, from.count, [&](std::size_t n, float value) {
        sound = sound && !std::isnan(value);  // tokens that must never come have -infinity
        matrix.bias[first + n] = value;
      });
    }
    if (plan.screen != nullptr && plan.screen->copy.panels > 0 && sound)
      pack_screen(matrix, p, from.count, *plan.screen);
    if (!matrix.int8) continue;
    std::fill_n(matrix.scale + first, kPanel, 0.0F);
    for (std::size_t n = 0; n < from.count; ++n) {
      put(matrix.scale + first + n, load<float>(weight.scales, from.row + n));
    }
    sound = sum_up(panel, matrix.steps, matrix.sum + first) && sound;
  }
  return sound;
}

}  // namespace txport::core::fused
