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

// Call take(i, value) for `count` elements of a row, from `column` on.
template <typename Take>
void each_of_row(const View& view, std::size_t row, std::size_t column, std::size_t count, const Take& take) {
  const auto scale = view.kind == Kind::int8 ? load<float>(view.scales, row) : 1;
  for (std::size_t i = 0; i < count; ++i) {  // compilers hoist the test of the kind, and make three loops
    const std::size_t at = row * view.row_stride + (column + i) * view.column_stride;
    take(i, view.kind == Kind::float32   ? load<float>(view.data, at)
            : view.kind == Kind::float16 ? float_of_half(load<std::uint16_t>(view.data, at))
                                         : static_cast<float>(load<std::int8_t>(view.data, at)) * scale);
  }
}

// Origin of a panel: consecutive rows of the weight of a part.
struct Origin {
  const Linear& part;
  std::size_t row;    // index of the first row
  std::size_t count;  // number of rows; the rest of the panel is padding
};

Origin origin(const Plan& plan, std::size_t panel) {
  const std::size_t width = plan.outputs.width();
  const std::size_t group_and_part = panel * kPanel / width;
  const std::size_t within = panel * kPanel % width;
  const std::size_t count = plan.outputs.size > within ? std::min(kPanel, plan.outputs.size - within) : 0;
  return {plan.parts[group_and_part % plan.parts.size()],
          group_and_part / plan.parts.size() * plan.outputs.size + within, count};
}

// Pack a block of int8 weights into groups of 4 inputs: `to` [columns / 4, 16, 4]. Padding in `to` must be zero
// already. Return true, as pack_floats does for valid weights: every int8 is valid for this function.
bool pack_int8(const View& weight, const Origin& from, std::size_t column, std::size_t columns, std::uint8_t* to) {
  const auto* start =
      reinterpret_cast<const std::uint8_t*>(weight.data) + from.row * weight.row_stride + column * weight.column_stride;
  // Compilers vectorise this if a stride is the constant 1.
  const auto copy = [&](std::size_t row_stride, std::size_t column_stride) {
    const auto at = [&](std::size_t n, std::size_t k) { return start[n * row_stride + k * column_stride]; };
    for (std::size_t k = 0; k + 4 <= columns; k += 4) {
      for (std::size_t n = 0; n < from.count; ++n) {
        for (std::size_t j = 0; j < 4; ++j) to[k * kPanel + n * 4 + j] = at(n, k + j);
      }
    }
    for (std::size_t k = columns / 4 * 4; k < columns; ++k) {
      for (std::size_t n = 0; n < from.count; ++n) to[k / 4 * kStepBytes + n * 4 + k % 4] = at(n, k);
    }
  };
  weight.row_stride == 1 ? copy(1, weight.column_stride) : copy(weight.row_stride, weight.column_stride);
  return true;
}

// Compute the sum of the weights of each output of an int8 panel. Return false if a weight is -128: AVX2 kernels negate
// weights, and 128 is not an int8.
bool sum_up(const std::uint8_t* panel, std::size_t steps, std::int32_t* sums) {
  // Number of steps whose sums fit into 16 bits, so that compilers vectorise the inner loop with twice as many lanes.
  constexpr std::size_t kStepsIn16Bits = 256;
  const auto* weights = reinterpret_cast<const std::int8_t*>(panel);
  std::int8_t minimum = 0;
  std::fill_n(sums, kPanel, 0);
  for (std::size_t begin = 0; begin < steps; begin += kStepsIn16Bits) {
    const std::size_t end = std::min(begin + kStepsIn16Bits, steps);
    std::array<std::int16_t, kStepBytes> partial_sums{};
    for (std::size_t at = begin * kStepBytes; at < end * kStepBytes; at += kStepBytes) {
      for (std::size_t i = 0; i < kStepBytes; ++i) {
        partial_sums[i] = static_cast<std::int16_t>(partial_sums[i] + weights[at + i]);
        minimum = std::min(minimum, weights[at + i]);
      }
    }
    for (std::size_t i = 0; i < kStepBytes; ++i) sums[i / 4] += partial_sums[i];
  }
  return minimum > -128;
}

// Return a panel of a floating-point matrix as float32 [inputs, 16].
std::vector<float> floats_of_panel(const Matrix& matrix, std::size_t p) {
  std::vector<float> floats(matrix.steps * kPanel);
  const auto* data = reinterpret_cast<const std::byte*>(matrix.panel(p));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    floats[i] = matrix.kind == Kind::float16 ? float_of_half(load<std::uint16_t>(data, i)) : load<float>(data, i);
  }
  return floats;
}

// Errors are themselves computed in float32. This factor allows for the rounding of their sums, which is less than a
// thousandth.
constexpr float kErrorMargin = 1.001F;
// Allowance for errors that are too small for their squares to be float32 numbers.
constexpr float kSmallestError = 1e-17F;

// Pack the bounds of panel `p` of an int8 matrix. A weight w from -127 to 127 becomes the int4 q, from -7 to 7, with
// the smallest |w - 17 q|. The factor 17 is the smallest that covers all weights: 7 * 17 + 8 = 127. So |w - 17 q| <= 8.
void pack_int4_bounds(const Matrix& from, std::size_t p, const UpperBounds& to) {
  constexpr std::int32_t kFactor = 17;
  constexpr std::int32_t kInt4Value = 16;  // value of an int4 of 1 in a kernel, see Kind
  const auto* weights = reinterpret_cast<const std::int8_t*>(from.panel(p));
  std::uint8_t* pairs = to.copy.panel(p);
  std::array<std::int32_t, kPanel> squared_error{};
  std::array<std::int32_t, kPanel> squared_norm{};
  std::int32_t* sum = to.copy.sum + p * kPanel;
  std::fill_n(sum, kPanel, 0);
  for (std::size_t at = 0; at < from.stride; ++at) {
    const std::int32_t w = weights[at];
    const std::int32_t q = (w + (w < 0 ? -kFactor / 2 : kFactor / 2)) / kFactor;
    const std::int32_t error = w - kFactor * q;
    const std::size_t n = at % kStepBytes / 4;
    squared_error[n] += error * error;
    squared_norm[n] += w * w;
    sum[n] += kInt4Value * q;
    std::uint8_t& pair = pairs[at / (2 * kStepBytes) * kStepBytes + at % kStepBytes];
    const auto bits = static_cast<std::uint8_t>(static_cast<std::uint32_t>(q) & 15U);
    pair = static_cast<std::uint8_t>(at / kStepBytes % 2 == 0 ? bits : pair | bits << 4U);
  }
  for (std::size_t n = 0; n < kPanel; ++n) {
    const std::size_t at = p * kPanel + n;
    const float bias = std::isfinite(from.bias[at]) ? std::abs(from.bias[at]) : 0;
    to.copy.scale[at] = from.scale[at] * kFactor / kInt4Value;
    // Allowance for the products of matrix and copy. Each converts its sum to float32, multiplies it by scales, and
    // adds the bias: few roundings, of at most 6e-8 each.
    const float norm = from.scale[at] * std::sqrt(static_cast<float>(squared_norm[n]));
    const float error = from.scale[at] * std::sqrt(static_cast<float>(squared_error[n]));
    to.weight_error[at] = kErrorMargin * (error + 1e-6F * (norm + bias)) + kSmallestError;
  }
}

// Pack the bounds of panel `p` of a floating-point matrix. Outputs from `count` on are padding, which needs no bounds.
void pack_bounds(const Matrix& from, std::size_t p, std::size_t count, const UpperBounds& to) {
  constexpr float kRound = 12582912;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
  const std::vector<float> weights = floats_of_panel(from, p);
  auto* bytes = reinterpret_cast<std::int8_t*>(to.copy.panel(p));
  std::array<float, kPanel> scale{};
  std::array<float, kPanel> inverse_scale{};
  std::array<float, kPanel> squared_error{};
  std::array<float, kPanel> magnitude{};
  for (std::size_t i = 0; i < from.inputs * kPanel; i += kPanel) {
    for (std::size_t n = 0; n < kPanel; ++n) scale[n] = std::max(scale[n], std::abs(weights[i + n]));
  }
  for (std::size_t n = 0; n < kPanel; ++n) {
    scale[n] /= 127;
    inverse_scale[n] = scale[n] > 1e-30F ? 1 / scale[n] : 0;
  }
  for (std::size_t k = 0; k < from.inputs; ++k) {
    for (std::size_t n = 0; n < kPanel; ++n) {  // compilers vectorise this
      const float w = weights[k * kPanel + n];
      const float q = (w * inverse_scale[n] + kRound) - kRound;
      squared_error[n] += (w - q * scale[n]) * (w - q * scale[n]);
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
    // Allowance for the product of the matrix, which rounds each of its products and sums, and for that of the copy.
    // The norm of an output's weights is at most 127 * scale * sqrt(inputs).
    const float rounding = (inputs + 16) / (1U << 23U) * (127 * scale[n] * std::sqrt(inputs) + std::abs(bias));
    const float error = std::sqrt(squared_error[n]) + rounding + kSmallestError;
    to.weight_error[at] = n < count ? kErrorMargin * error : 0;
    // An input is rounded by at most half a unit.
    to.input_error[at] = 0.5F * kErrorMargin * scale[n] * magnitude[n];
  }
}

// Pack a block of weights as T, `to` [columns, 16]: float converts them, and std::uint16_t copies float16 unchanged.
// Return false if a weight is NaN or infinite.
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

// Pack the weights of one panel: [steps, 64 or 32]. pack_weights, pack_bias and pack_scales return false if a number
// cannot be used; see pack.
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

// Pack the bias of one panel. It is plan.padding for padding outputs.
bool pack_bias(const Plan& plan, const Origin& from, float* bias) {
  bool sound = true;
  std::fill_n(bias, from.count, 0.0F);
  std::fill_n(bias + from.count, kPanel - from.count, plan.padding);
  if (from.part.bias.empty() || from.count == 0) return true;
  each_of_row(from.part.bias, 0, from.row, from.count, [&](std::size_t n, float value) {
    sound = sound && !std::isnan(value);  // tokens that must never be generated have -infinity
    bias[n] = value;
  });
  return sound;
}

// Pack the scales of one int8 panel, and the sums of the weights of its outputs.
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

// Copy lanes of kBytes: lane n of each step is the lane at from[n]. The loop over steps is the outer one, so that whole
// cache lines are written.
template <std::size_t kBytes>
void copy_lanes(const std::array<const std::uint8_t*, kPanel>& from, std::size_t steps, std::uint8_t* to) {
  for (std::size_t k = 0; k < steps * kPanel * kBytes; k += kPanel * kBytes) {
    for (std::size_t n = 0; n < kPanel; ++n) std::memcpy(to + k + n * kBytes, from[n] + k, kBytes);
  }
}

// Set to[i] to from[outputs[i]] for the outputs i of panel `p`, and to `padding` from `count` on.
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
  const bool keeps_kind = kind == Kind::int8 ? fits : kind == Kind::float16 && !plan.widened;
  matrix.kind = same && keeps_kind ? kind : Kind::float32;
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
  // Lanes after the last output repeat it. Their bias, -infinity, excludes them.
  for (std::size_t n = 0; n < kPanel; ++n) {
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
