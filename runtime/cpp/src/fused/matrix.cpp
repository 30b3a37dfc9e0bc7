#include "fused/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

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
  const std::size_t start = row * view.row_stride + column * view.column_stride;
  if (view.kind == Kind::float32) {
    for (std::size_t i = 0; i < count; ++i) take(i, load<float>(view.data, start + i * view.column_stride));
  } else if (view.kind == Kind::float16) {
    for (std::size_t i = 0; i < count; ++i) {
      take(i, float_of_half(load<std::uint16_t>(view.data, start + i * view.column_stride)));
    }
  } else {
    const auto scale = load<float>(view.scales, row);
    for (std::size_t i = 0; i < count; ++i) {
      take(i, static_cast<float>(load<std::int8_t>(view.data, start + i * view.column_stride)) * scale);
    }
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
  const auto* data = reinterpret_cast<const std::uint8_t*>(weight.data);
  const std::uint8_t* start = data + from.row * weight.row_stride + column * weight.column_stride;
  std::size_t k = 0;
  if (weight.column_stride == 1) {
    for (; k + 4 <= columns; k += 4) {
      for (std::size_t n = 0; n < from.count; ++n) {
        std::memcpy(to + k * kPanel + n * 4, start + n * weight.row_stride + k, 4);
      }
    }
  } else if (weight.row_stride == 1 && from.count == kPanel) {
    for (; k + 4 <= columns; k += 4) {
      const std::uint8_t* line = start + k * weight.column_stride;
      const std::size_t next = weight.column_stride;
      std::uint32_t words[kPanel];
      for (std::size_t n = 0; n < kPanel; ++n) {  // compilers make vectors of this
        words[n] = static_cast<std::uint32_t>(line[n]) | static_cast<std::uint32_t>(line[n + next]) << 8U |
                   static_cast<std::uint32_t>(line[n + 2 * next]) << 16U |
                   static_cast<std::uint32_t>(line[n + 3 * next]) << 24U;
      }
      std::memcpy(to + k * kPanel, words, sizeof(words));
    }
  }
  for (; k < columns; ++k) {
    for (std::size_t n = 0; n < from.count; ++n) {
      to[k / 4 * kStepBytes + n * 4 + k % 4] = start[n * weight.row_stride + k * weight.column_stride];
    }
  }
}

// The sum of each output's weights. False if one of them is -128: its negative is no int8, which AVX2 needs.
bool sum_up(const std::uint8_t* panel, std::size_t steps, std::int32_t* sums) {
  constexpr std::size_t kFit = 256;  // steps whose sums fit into 16 bits; compilers make vectors of the inner loop
  const auto* weights = reinterpret_cast<const std::int8_t*>(panel);
  std::int8_t least = 0;
  std::fill_n(sums, kPanel, 0);
  for (std::size_t begin = 0; begin < steps; begin += kFit) {
    std::int16_t parts[kStepBytes] = {};
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

std::size_t in_lines(std::size_t bytes) { return (bytes + kStepBytes - 1) / kStepBytes * kStepBytes; }

}  // namespace

void read_row(const View& view, std::size_t row, float* to) {
  each_of_row(view, row, 0, view.columns, [to](std::size_t i, float value) { to[i] = value; });
}

void add_row(const View& view, std::size_t row, float factor, float* to) {
  each_of_row(view, row, 0, view.columns, [to, factor](std::size_t i, float value) { to[i] = to[i] * factor + value; });
}

std::size_t measure(const Plan& plan) {
  Matrix& matrix = *plan.matrix;
  matrix.int8 = std::all_of(plan.parts.begin(), plan.parts.end(),
                            [](const Linear& part) { return part.weight.kind == Kind::int8; });
  matrix.panels = plan.outputs.count * plan.parts.size() * plan.outputs.width() / kPanel;
  matrix.inputs = plan.inputs.count * plan.inputs.width();
  matrix.steps = matrix.int8 ? matrix.inputs / 4 : matrix.inputs;
  matrix.stride = matrix.steps * kStepBytes;
  const std::size_t vectors = matrix.int8 ? 3 : 1;  // bias, scale, sum
  return matrix.panels * matrix.steps * kStepBytes + vectors * in_lines(matrix.outputs() * sizeof(float));
}

void lay_out(const Plan& plan, std::byte* at) {
  Matrix& matrix = *plan.matrix;
  const std::size_t vector = in_lines(matrix.outputs() * sizeof(float));
  matrix.bias = reinterpret_cast<const float*>(at);
  at += vector;
  if (matrix.int8) {
    matrix.scale = reinterpret_cast<const float*>(at);
    matrix.sum = reinterpret_cast<const std::int32_t*>(at + vector);
    at += 2 * vector;
  }
  matrix.data = reinterpret_cast<const std::uint8_t*>(at);
}

bool pack(const Plan& plan, std::size_t begin, std::size_t end) {
  const Matrix& matrix = *plan.matrix;
  // The matrix's memory is ours until its model is complete.
  auto* bias = const_cast<float*>(matrix.bias);
  auto* scale = const_cast<float*>(matrix.scale);
  auto* sum = const_cast<std::int32_t*>(matrix.sum);
  bool sound = true;
  const auto put = [&sound](float* to, float value) {
    sound = sound && !std::isnan(value);
    *to = value;
  };
  for (std::size_t p = begin; p < end; ++p) {
    const Origin from = origin(plan, p);
    const View& weight = from.part.weight;
    auto* panel = const_cast<std::uint8_t*>(matrix.panel(p));
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
    std::fill_n(bias + first, from.count, 0.0F);
    std::fill_n(bias + first + from.count, kPanel - from.count, plan.padding);
    if (!from.part.bias.empty() && from.count > 0) {
      each_of_row(from.part.bias, 0, from.row, from.count,
                  [&](std::size_t n, float value) { put(bias + first + n, value); });
    }
    if (!matrix.int8) continue;
    std::fill_n(scale + first, kPanel, 0.0F);
    for (std::size_t n = 0; n < from.count; ++n) put(scale + first + n, load<float>(weight.scales, from.row + n));
    sound = sum_up(panel, matrix.steps, sum + first) && sound;
  }
  return sound;
}

}  // namespace txport::core::fused
