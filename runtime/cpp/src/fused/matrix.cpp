#include "fused/matrix.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

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
// All of them are numbers.
bool pack_int8(const View& weight, const Origin& from, std::size_t column, std::size_t columns, std::uint8_t* to) {
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
  return true;
}

// The sum of each output's weights. False if one of them is -128: its negative is not an int8, which AVX2 needs.
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

// [inputs, 16]: a panel that is not int8.
std::vector<float> floats_of_panel(const Matrix& matrix, std::size_t p) {
  std::vector<float> floats(matrix.steps * kPanel);
  const auto* data = reinterpret_cast<const std::byte*>(matrix.panel(p));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    floats[i] = matrix.kind == Kind::float16 ? float_of_half(load<std::uint16_t>(data, i)) : load<float>(data, i);
  }
  return floats;
}

// The bounds of panel `p` of an int8 matrix: its weights are 17 times an int4 and a remainder of -8 to 8.
void pack_int4_bounds(const Matrix& from, std::size_t p, const UpperBounds& to) {
  const auto* weights = reinterpret_cast<const std::int8_t*>(from.panel(p));
  std::uint8_t* pairs = to.copy.panel(p);
  std::array<std::int32_t, kPanel> off{};
  std::array<std::int32_t, kPanel> size{};
  std::int32_t* sum = to.copy.sum + p * kPanel;
  std::fill_n(sum, kPanel, 0);
  for (std::size_t at = 0; at < from.stride; ++at) {
    const std::int32_t w = weights[at];
    const std::int32_t q = (w + (w < 0 ? -8 : 8)) / 17;
    const std::size_t n = at % kStepBytes / 4;
    off[n] += (w - 17 * q) * (w - 17 * q);
    size[n] += w * w;
    sum[n] += 16 * q;
    std::uint8_t& pair = pairs[at / (2 * kStepBytes) * kStepBytes + at % kStepBytes];
    const auto half = static_cast<std::uint8_t>(static_cast<std::uint32_t>(q) & 15U);
    pair = static_cast<std::uint8_t>(at / kStepBytes % 2 == 0 ? half : pair | half << 4U);
  }
  for (std::size_t n = 0; n < kPanel; ++n) {
    const std::size_t at = p * kPanel + n;
    const float bias = std::isfinite(from.bias[at]) ? std::abs(from.bias[at]) : 0;
    to.copy.scale[at] = from.scale[at] * 17 / 16;
    // float32 rounds the sums and scales of both, and adds the bias.
    const float rounding = 1e-6F * (from.scale[at] * std::sqrt(static_cast<float>(size[n])) + bias);
    to.weight_error[at] = 1.001F * (from.scale[at] * std::sqrt(static_cast<float>(off[n])) + rounding) + 1e-17F;
  }
}

// The bounds of panel `p`. Padding, the outputs from `count` on, needs none.
void pack_bounds(const Matrix& from, std::size_t p, std::size_t count, const UpperBounds& to) {
  constexpr float kWhole = 12582912;  // 1.5 * 2^23: sums with it are whole numbers, rounded
  const std::vector<float> weights = floats_of_panel(from, p);
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
    to.weight_error[at] = n < count ? 1.001F * error : 0;
    to.input_error[at] = 0.5005F * scale[n] * magnitude[n];
  }
}

// A block of `weight` that is not int8: `to` [columns, 16], floats or, if T is such a type, the unchanged halves.
// False: one is not a number.
template <typename T>
bool pack_floats(const View& weight, const Origin& from, std::size_t column, std::size_t columns, std::uint8_t* to) {
  bool sound = true;
  for (std::size_t n = 0; n < from.count; ++n) {
    T* output = reinterpret_cast<T*>(to) + n;
    if constexpr (std::is_same_v<T, float>) {
      each_of_row(weight, from.row + n, column, columns, [&](std::size_t k, float value) {
        sound = sound && std::isfinite(value);
        output[k * kPanel] = value;
      });
    } else {
      for (std::size_t k = 0; k < columns; ++k) {
        const std::size_t at = (from.row + n) * weight.row_stride + (column + k) * weight.column_stride;
        output[k * kPanel] = load<T>(weight.data, at);
        sound = sound && (output[k * kPanel] & 0x7C00U) != 0x7C00U;
      }
    }
  }
  return sound;
}

// One panel, [steps, 64 or 32]. This and the next two return false if a weight cannot be used.
bool pack_weights(const Plan& plan, const Origin& from, std::uint8_t* panel) {
  const Matrix& matrix = *plan.matrix;
  const std::size_t inputs = plan.inputs.size;
  bool sound = true;
  if (from.count < kPanel || inputs < plan.inputs.width()) std::fill_n(panel, matrix.stride, 0);
  for (std::size_t group = 0; group < plan.inputs.count; ++group) {
    const auto pack_group = matrix.int8()                  ? pack_int8
                            : matrix.kind == Kind::float16 ? pack_floats<std::uint16_t>
                                                           : pack_floats<float>;
    std::uint8_t* to = panel + group * matrix.stride / plan.inputs.count;
    sound = pack_group(from.part.weight, from, group * inputs, inputs, to) && sound;
  }
  return sound;
}

bool pack_bias(const Plan& plan, const Origin& from, float* bias) {
  bool sound = true;
  std::fill_n(bias, from.count, 0.0F);
  std::fill_n(bias + from.count, kPanel - from.count, plan.padding);
  if (from.part.bias.empty() || from.count == 0) return true;
  each_of_row(from.part.bias, 0, from.row, from.count, [&](std::size_t n, float value) {
    sound = sound && !std::isnan(value);  // tokens that must never come have -infinity
    bias[n] = value;
  });
  return sound;
}

// Of int8 outputs, and the sums of their weights.
bool pack_scales(const Matrix& matrix, const Origin& from, std::size_t p) {
  bool sound = true;
  float* scale = matrix.scale + p * kPanel;
  std::fill_n(scale, kPanel, 0.0F);
  for (std::size_t n = 0; n < from.count; ++n) {
    scale[n] = load<float>(from.part.weight.scales, from.row + n);
    sound = sound && std::isfinite(scale[n]);
  }
  return sum_up(matrix.panel(p), matrix.steps, matrix.sum + p * kPanel) && sound;
}

// Lanes of a panel's steps, in elements of kBytes: step by step, so that each is written by whole cache lines.
template <std::size_t kBytes>
void copy_lanes(const std::array<const std::uint8_t*, kPanel>& from, std::size_t steps, std::uint8_t* to) {
  for (std::size_t k = 0; k < steps * kPanel * kBytes; k += kPanel * kBytes) {
    for (std::size_t n = 0; n < kPanel; ++n) std::memcpy(to + k + n * kBytes, from[n] + k, kBytes);
  }
}

// to[i] := from[outputs[i]] for the outputs of panel `p`; behind them `padding`.
template <typename T>
void gather(const T* from, const std::int32_t* outputs, std::size_t count, std::size_t p, T padding, T* to) {
  for (std::size_t i = p * kPanel; i < (p + 1) * kPanel; ++i) to[i] = i < count ? from[outputs[i]] : padding;
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
  const auto* step = reinterpret_cast<const std::byte*>(tokens.panel(row / kPanel));
  const std::size_t lane = row % kPanel;
  for (std::size_t i = 0; i < tokens.inputs; ++i) {
    float value = 0;
    if (tokens.int8()) {
      const std::size_t at = i / 4 * kStepBytes + lane * 4 + i % 4;
      value = static_cast<float>(load<std::int8_t>(step, at)) * tokens.scale[row];
    } else {
      const std::size_t at = i * kPanel + lane;
      value = tokens.kind == Kind::float16 ? float_of_half(load<std::uint16_t>(step, at)) : load<float>(step, at);
    }
    to[i] = value * scale + position[i];
  }
}

void lay_out(const Plan& plan, Cursor& at) {
  Matrix& matrix = *plan.matrix;
  const bool fits = plan.inputs.count * plan.inputs.size <= kMaxInt8Inputs;
  const Kind kind = plan.parts.front().weight.kind;
  const bool same = std::all_of(plan.parts.begin(), plan.parts.end(),
                                [kind](const Linear& part) { return part.weight.kind == kind; });
  const bool kept = kind == Kind::int8 ? fits : kind == Kind::float16 && !plan.widened;
  matrix.kind = same && kept ? kind : Kind::float32;
  matrix.panels = plan.outputs.count * plan.parts.size() * plan.outputs.width() / kPanel;
  matrix.inputs = plan.inputs.count * plan.inputs.width();
  matrix.steps = matrix.int8() ? matrix.inputs / 4 : matrix.inputs;
  matrix.stride = matrix.steps * step_bytes(matrix.kind);
  take_arrays(matrix, fits ? plan.bounds : nullptr, at);
}

void take_arrays(Matrix& matrix, UpperBounds* bounds, Cursor& at) {
  at.take(matrix.bias, matrix.outputs());
  const auto take_int8 = [&at](Matrix& int8) {
    at.take(int8.scale, int8.outputs());
    at.take(int8.sum, int8.outputs());
    at.take(int8.data, int8.panels * int8.stride);
  };
  if (matrix.int8()) take_int8(matrix);
  if (bounds != nullptr) {
    Matrix& copy = bounds->copy;
    copy = matrix;
    copy.kind = matrix.int8() ? Kind::int4 : Kind::int8;
    copy.steps = matrix.inputs / 4;
    copy.stride = copy.steps * step_bytes(copy.kind);
    take_int8(copy);
    at.take(bounds->weight_error, matrix.outputs());
    if (!matrix.int8()) at.take(bounds->input_error, matrix.outputs());
  }
  if (!matrix.int8()) at.take(matrix.data, matrix.panels * matrix.stride);
}

bool pack(const Plan& plan, std::size_t begin, std::size_t end) {
  bool sound = true;
  for (std::size_t p = begin; p < end; ++p) {
    const Origin from = origin(plan, p);
    sound = pack_weights(plan, from, plan.matrix->panel(p)) && sound;
    sound = pack_bias(plan, from, plan.matrix->bias + p * kPanel) && sound;
    if (plan.matrix->int8()) sound = pack_scales(*plan.matrix, from, p) && sound;
    if (plan.bounds == nullptr || plan.bounds->copy.panels == 0 || !sound) continue;
    plan.matrix->int8() ? pack_int4_bounds(*plan.matrix, p, *plan.bounds)
                        : pack_bounds(*plan.matrix, p, from.count, *plan.bounds);
  }
  return sound;
}

void gather_panel(const Matrix& from, const std::int32_t* outputs, std::size_t count, std::size_t p, const Matrix& to) {
  const bool halves = to.kind == Kind::float16;
  std::array<const std::uint8_t*, kPanel> lanes{};
  for (std::size_t n = 0; n < kPanel; ++n) {  // behind the last output that again, which its bias takes away
    const auto output = static_cast<std::size_t>(outputs[std::min(p * kPanel + n, count - 1)]);
    lanes[n] = from.panel(output / kPanel) + output % kPanel * (halves ? 2 : 4);
  }
  (halves ? copy_lanes<2> : copy_lanes<4>)(lanes, to.steps, to.panel(p));
  gather(from.bias, outputs, count, p, -std::numeric_limits<float>::infinity(), to.bias);
  if (!to.int8()) return;
  gather(from.scale, outputs, count, p, 0.0F, to.scale);
  gather(from.sum, outputs, count, p, 0, to.sum);
}

void gather_panel(const UpperBounds& from, const std::int32_t* outputs, std::size_t count, std::size_t p,
                  const UpperBounds& to) {
  gather_panel(from.copy, outputs, count, p, to.copy);
  gather(from.weight_error, outputs, count, p, 0.0F, to.weight_error);
  gather(from.input_error, outputs, count, p, 0.0F, to.input_error);
}

}  // namespace txport::core::fused
