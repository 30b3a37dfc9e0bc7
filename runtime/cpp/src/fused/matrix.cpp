#include "fused/matrix.hpp"

#include <algorithm>
#include <cstring>

namespace txport::core::fused {

namespace {

// IEEE 754 half precision, subnormal numbers included.
float widened(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
  const std::uint32_t magnitude = half & 0x7FFFU;
  if (magnitude < 0x400U) {  // zero or subnormal
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t exponent = magnitude >= 0x7C00U ? 0xFFU << 23U : ((magnitude >> 10U) + 112U) << 23U;
  const std::uint32_t bits = sign | exponent | (magnitude & 0x3FFU) << 13U;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename T>
T load(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

bool is_int8(const Plan& plan) {
  return std::all_of(plan.parts.begin(), plan.parts.end(),
                     [](const Linear& part) { return part.weight.kind == Kind::int8; });
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

// The same of numbers that become float32: `to` [columns, 16].
void pack_float32(const View& weight, const Origin& from, std::size_t column, std::size_t columns, float* to) {
  if (weight.kind == Kind::float32) {
    const std::byte* start =
        weight.data + (from.row * weight.row_stride + column * weight.column_stride) * sizeof(float);
    for (std::size_t n = 0; n < from.count; ++n) {
      for (std::size_t k = 0; k < columns; ++k) {
        to[k * kPanel + n] = load<float>(start, n * weight.row_stride + k * weight.column_stride);
      }
    }
    return;
  }
  for (std::size_t n = 0; n < from.count; ++n) {
    for (std::size_t k = 0; k < columns; ++k) {
      to[k * kPanel + n] = weight.at(from.row + n, column + k);
    }
  }
}

// The sum of each output's weights, two bytes of a word at a time: with the sign bit turned they are unsigned, and 128
// steps fit into 16 bits. Compilers make vectors of the inner loop.
void sum_up(const std::uint8_t* panel, std::size_t steps, std::int32_t* sums) {
  constexpr std::size_t kFit = 128;
  constexpr std::uint32_t kEven = 0x00FF00FFU;
  std::fill_n(sums, kPanel, -static_cast<std::int32_t>(steps * 4 * 128));
  for (std::size_t begin = 0; begin < steps; begin += kFit) {
    std::uint32_t pairs[kPanel] = {};
    for (std::size_t step = begin; step < std::min(begin + kFit, steps); ++step) {
      std::uint32_t words[kPanel];
      std::memcpy(words, panel + step * kStepBytes, kStepBytes);
      for (std::size_t n = 0; n < kPanel; ++n) {
        const std::uint32_t word = words[n] ^ 0x80808080U;
        pairs[n] += (word & kEven) + (word >> 8U & kEven);
      }
    }
    for (std::size_t n = 0; n < kPanel; ++n)
      sums[n] += static_cast<std::int32_t>((pairs[n] & 0xFFFFU) + (pairs[n] >> 16U));
  }
}

std::size_t in_lines(std::size_t bytes) { return (bytes + kStepBytes - 1) / kStepBytes * kStepBytes; }

}  // namespace

float View::scale(std::size_t row) const { return load<float>(scales, row); }

float View::at(std::size_t row, std::size_t column) const {
  const std::size_t index = row * row_stride + column * column_stride;
  switch (kind) {
    case Kind::int8:
      return static_cast<float>(load<std::int8_t>(data, index)) * scale(row);
    case Kind::float16:
      return widened(load<std::uint16_t>(data, index));
    case Kind::float32:
      break;
  }
  return load<float>(data, index);
}

namespace {

// Calls take(column, value) for each element of a row.
template <typename Take>
void each_of_row(const View& view, std::size_t row, const Take& take) {
  const std::size_t start = row * view.row_stride;
  if (view.kind == Kind::int8) {
    const float scale = view.scale(row);
    for (std::size_t i = 0; i < view.columns; ++i) {
      take(i, static_cast<float>(load<std::int8_t>(view.data, start + i * view.column_stride)) * scale);
    }
  } else if (view.kind == Kind::float32) {
    for (std::size_t i = 0; i < view.columns; ++i) take(i, load<float>(view.data, start + i * view.column_stride));
  } else {
    for (std::size_t i = 0; i < view.columns; ++i) take(i, view.at(row, i));
  }
}

}  // namespace

void read_row(const View& view, std::size_t row, float* to) {
  each_of_row(view, row, [to](std::size_t i, float value) { to[i] = value; });
}

void add_row(const View& view, std::size_t row, float factor, float* to) {
  each_of_row(view, row, [to, factor](std::size_t i, float value) { to[i] = to[i] * factor + value; });
}

std::size_t measure(const Plan& plan) {
  Matrix& matrix = *plan.matrix;
  matrix.int8 = is_int8(plan);
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

void pack(const Plan& plan, std::size_t begin, std::size_t end) {
  const Matrix& matrix = *plan.matrix;
  // The matrix's memory is ours until its model is complete.
  auto* bias = const_cast<float*>(matrix.bias);
  auto* scale = const_cast<float*>(matrix.scale);
  auto* sum = const_cast<std::int32_t*>(matrix.sum);
  for (std::size_t p = begin; p < end; ++p) {
    const Origin from = origin(plan, p);
    auto* panel = const_cast<std::uint8_t*>(matrix.panel(p));
    if (from.count < kPanel || plan.inputs.size < plan.inputs.width()) std::fill_n(panel, matrix.steps * kStepBytes, 0);
    for (std::size_t group = 0; group < plan.inputs.count; ++group) {
      const std::size_t step = group * plan.inputs.width() * matrix.steps / matrix.inputs;
      std::uint8_t* to = panel + step * kStepBytes;
      const std::size_t column = group * plan.inputs.size;
      if (matrix.int8) {
        pack_int8(from.part.weight, from, column, plan.inputs.size, to);
      } else {
        pack_float32(from.part.weight, from, column, plan.inputs.size, reinterpret_cast<float*>(to));
      }
    }
    for (std::size_t n = 0; n < kPanel; ++n) {
      const std::size_t output = p * kPanel + n;
      const bool real = n < from.count;
      const float own = from.part.bias.empty() || !real ? 0.0F : from.part.bias.at(0, from.row + n);
      bias[output] = real ? own : plan.padding;
      if (!matrix.int8) continue;
      scale[output] = real ? from.part.weight.scale(from.row + n) : 0.0F;
    }
    if (matrix.int8) sum_up(panel, matrix.steps, sum + p * kPanel);
  }
}

}  // namespace txport::core::fused
