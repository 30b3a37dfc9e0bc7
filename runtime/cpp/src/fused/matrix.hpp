// Weights as products read them: panels of 16 outputs.
//
// A panel holds, one k step after the other, what 16 outputs need of it: 4 inputs of int8 or int4, 1 of float32, or 1
// of float16, which is converted in registers, as int4 is. A step is 64 bytes, a cache line, or 32, so one kernel
// serves all, and an int8 panel is what AMX calls a B tile. Outputs and inputs are padded to multiples of 16 by zeros,
// those of a head by themselves, so that a head is whole panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace txport::core::fused {

inline constexpr std::size_t kPanel = 16;      // outputs of a panel
inline constexpr std::size_t kStepBytes = 64;  // of a panel's k step; of float16 and int4 half as many
// Inputs of an int8 product, at most: sums of 255 * 127 each must fit 32 bits. Wider weights are packed as float32.
inline constexpr std::size_t kMaxInt8Inputs = 66311;

constexpr std::size_t padded(std::size_t size) { return (size + kPanel - 1) / kPanel * kPanel; }

// int4 is for copies alone: -7 to 7, of two k steps of int8 the first in the lower bits; it counts as 16 times as much.
enum class Kind { int8, float32, float16, int4 };
constexpr std::size_t step_bytes(Kind kind) {
  return kind == Kind::float16 || kind == Kind::int4 ? kStepBytes / 2 : kStepBytes;
}

// A matrix, or a vector as a matrix of one row, where the bundle has it.
struct View {
  const std::byte* data = nullptr;
  Kind kind = Kind::float32;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t row_stride = 0;  // in elements
  std::size_t column_stride = 0;
  const std::byte* scales = nullptr;  // float32 [rows], of int8 only

  bool empty() const { return data == nullptr; }
};

// float32 [rows, columns padded by zeros]: the first `rows` of a view.
std::vector<float> floats_of(const View& view, std::size_t rows);

// [outputs, inputs], packed.
struct Matrix {
  Kind kind = Kind::float32;
  std::size_t panels = 0;
  std::size_t inputs = 0;        // padded
  std::size_t steps = 0;         // of each panel
  std::size_t stride = 0;        // from one panel to the next, bytes
  std::uint8_t* data = nullptr;  // [panels, steps, 64 or 32]
  float* bias = nullptr;         // [outputs]
  float* scale = nullptr;        // [outputs]; int8 and int4 only
  std::int32_t* sum = nullptr;   // [outputs], of the weights of an output; int8 and int4 only

  bool int8() const { return kind == Kind::int8; }
  bool integer() const { return int8() || kind == Kind::int4; }  // and the inputs are int8
  std::size_t outputs() const { return panels * kPanel; }        // padded
  std::uint8_t* panel(std::size_t index) const { return data + index * stride; }
};

// to [inputs] := the weights of output `row`, a token, times `scale`, plus `position` [inputs].
void embed(const Matrix& tokens, std::size_t row, float scale, const float* position, float* to);

// Upper bounds of a matrix's products, by a copy of it in fewer bits: int8, or int4 of int8. For inputs h that the copy
// reads in steps of `unit`, no product is farther from the copy's than norm(h, 1) * weight_error + unit * input_error.
// An int8 matrix reads the same steps, whose norm stands for that of h.
struct UpperBounds {
  Matrix copy;
  float* weight_error = nullptr;  // [outputs] norm of what the copy leaves out, and what float32 rounds
  float* input_error = nullptr;   // [outputs] half the sum of the copy's magnitudes; none of an int8 matrix
};

// Sizes of equal groups (heads), each of which is padded by itself.
struct Groups {
  std::size_t count = 1;
  std::size_t size = 0;
  std::size_t width() const { return padded(size); }
};

// A linear layer, or a part of one that is packed with others.
struct Linear {
  View weight;
  View bias;  // may be empty
};

// How a matrix is made: the outputs of its parts, group by group: [group, part, width].
struct Plan {
  Matrix* matrix;
  std::vector<Linear> parts;
  Groups outputs;
  Groups inputs;
  float padding = 0;              // bias of outputs that are padding
  UpperBounds* bounds = nullptr;  // made as well if the matrix is not too wide
  bool widened = false;           // float16 becomes float32
};

class Cursor;
// Sets the pointers of `matrix`, whose sizes are set, and of `bounds`, unless that is null, to memory of `at`.
void take_arrays(Matrix& matrix, UpperBounds* bounds, Cursor& at);
// Sets the sizes of plan.matrix, and its pointers to memory of `at`.
void lay_out(const Plan& plan, Cursor& at);
// Fills the panels from `begin` to `end` with their biases, scales and sums. Different panels may be filled at once.
// False: a weight is not a number, or an int8 one is -128.
bool pack(const Plan& plan, std::size_t begin, std::size_t end);

// Panel `p` of `to` := the outputs of `from` that stand from p * kPanel on in `outputs` [count]; behind them padding,
// whose bias is -infinity.
void gather_panel(const Matrix& from, const std::int32_t* outputs, std::size_t count, std::size_t p, const Matrix& to);
// Of those of a floating-point matrix.
void gather_panel(const UpperBounds& from, const std::int32_t* outputs, std::size_t count, std::size_t p,
                  const UpperBounds& to);

}  // namespace txport::core::fused
