// Weights in the order in which products read them: panels of 16 outputs.
//
// A panel is a sequence of k steps. A step contains the weights of 16 outputs for the next inputs: 4 inputs of int8 or
// int4, or 1 of float32 or float16. Kernels convert float16 to float32 and int4 to int8 in registers. A step of int8 or
// float32 has 64 bytes, a cache line; a step of int4 or float16 has 32. One kernel can therefore serve all kinds. Up to
// 16 steps of an int8 panel are a B tile of AMX. Outputs and inputs are padded with zeros to multiples of 16. Those of
// each head are padded separately, so that a head consists of complete panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace txport::core::fused {

inline constexpr std::size_t kPanel = 16;      // outputs of a panel
inline constexpr std::size_t kStepBytes = 64;  // bytes of a k step of int8 and float32; see step_bytes
// Maximum number of inputs of an int8 product: the sum of their products, up to 255 * 127 each, must fit 32 bits. Wider
// weights are packed as float32.
inline constexpr std::size_t kMaxInt8Inputs = 66311;

constexpr std::size_t padded(std::size_t size) { return (size + kPanel - 1) / kPanel * kPanel; }

// Kinds of weights. Only copies of int8 matrices are int4 (-7 to 7): a byte contains the weights of two k steps of
// int8, the first in its lower four bits. Kernels read an int4 as the upper four bits of an int8, so as 16 times its
// value.
enum class Kind { int8, float32, float16, int4 };
constexpr std::size_t step_bytes(Kind kind) {
  return kind == Kind::float16 || kind == Kind::int4 ? kStepBytes / 2 : kStepBytes;
}

// A matrix in the bundle's file, or a vector as a matrix of one row.
struct View {
  const std::byte* data = nullptr;
  Kind kind = Kind::float32;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t row_stride = 0;         // number of elements
  std::size_t column_stride = 0;      // number of elements
  const std::byte* scales = nullptr;  // float32 [rows]; int8 only

  bool empty() const { return data == nullptr; }
};

// Return the first `rows` of a view: float32 [rows, columns padded with zeros].
std::vector<float> floats_of(const View& view, std::size_t rows);

// A packed matrix [outputs, inputs].
struct Matrix {
  Kind kind = Kind::float32;
  std::size_t panels = 0;
  std::size_t inputs = 0;        // number of inputs, with padding
  std::size_t steps = 0;         // number of k steps of each panel
  std::size_t stride = 0;        // bytes from one panel to the next
  std::uint8_t* data = nullptr;  // [panels, steps, 64 or 32]
  float* bias = nullptr;         // [outputs]
  float* scale = nullptr;        // [outputs]; int8 and int4 only
  std::int32_t* sum = nullptr;   // [outputs] sum of the weights of each output; int8 and int4 only

  bool int8() const { return kind == Kind::int8; }
  // Return whether inputs of products are int8.
  bool integer() const { return int8() || kind == Kind::int4; }
  // Return the number of outputs, with padding.
  std::size_t outputs() const { return panels * kPanel; }
  std::uint8_t* panel(std::size_t index) const { return data + index * stride; }
};

// Compute the embedding of a token, to [inputs]: the weights of output `row` times `scale`, plus `position` [inputs].
void embed(const Matrix& tokens, std::size_t row, float scale, const float* position, float* to);

// Upper bounds of the products of a matrix, from a copy of the matrix with fewer bits: int4 for an int8 matrix, int8
// for others. The product of an output with inputs h differs from that of the copy by at most norm(h, 1) * weight_error
// + unit * input_error. The copy reads h quantised in steps of `unit`; norm(h, 1) is the Euclidean norm of h with a 1
// appended for the bias. An int8 matrix reads the same quantised inputs as its copy, so they are the h of its bound,
// and there is no input error.
struct UpperBounds {
  Matrix copy;
  float* weight_error = nullptr;  // [outputs] norm of the differences of weights, plus rounding of float32
  float* input_error = nullptr;   // [outputs] half the sum of the magnitudes in the copy; null for an int8 matrix
};

// Sizes of equal groups (heads). Each group is padded separately.
struct Groups {
  std::size_t count = 1;
  std::size_t size = 0;
  std::size_t width() const { return padded(size); }
};

// A linear layer of the bundle.
struct Linear {
  View weight;
  View bias;  // may be empty
};

// Plan of a packed matrix. Its outputs are those of one or more layers, in the order [group, part, width].
struct Plan {
  Matrix* matrix;
  std::vector<Linear> parts;
  Groups outputs;
  Groups inputs;
  float padding = 0;              // bias of padding outputs
  UpperBounds* bounds = nullptr;  // bounds to pack as well; they stay empty if the matrix is too wide for int8
  bool widened = false;           // whether float16 becomes float32
};

class Cursor;
// Set the pointers of `matrix`, whose sizes are set, and of `bounds`, unless it is null, to memory of `at`.
void take_arrays(Matrix& matrix, UpperBounds* bounds, Cursor& at);
// Set the sizes of plan.matrix, and its pointers to memory of `at`.
void lay_out(const Plan& plan, Cursor& at);
// Pack the panels from `begin` to `end` with their biases, scales and sums. Threads may pack different panels at the
// same time. Return false if a float weight or a scale is NaN or infinite, a bias is NaN, or an int8 weight is -128.
bool pack(const Plan& plan, std::size_t begin, std::size_t end);

// Copy the selected outputs of `from` to panel `p` of `to`: entries p * kPanel to (p + 1) * kPanel of `outputs`
// [count]. Lanes beyond `count` are padding, whose bias is -infinity.
void gather_panel(const Matrix& from, const std::int32_t* outputs, std::size_t count, std::size_t p, const Matrix& to);
// Copy the bounds of the same outputs. Only for bounds of a floating-point matrix.
void gather_panel(const UpperBounds& from, const std::int32_t* outputs, std::size_t count, std::size_t p,
                  const UpperBounds& to);

}  // namespace txport::core::fused
