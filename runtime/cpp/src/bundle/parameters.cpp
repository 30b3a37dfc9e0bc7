#include "bundle/parameters.hpp"

#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::int64_t kMaxSize = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kScaleBytes = 4;
constexpr const char* kTokens = ".tokens.weight";
const std::array<std::string, 2> kRotation = {".cosines", ".sines"};
// If this table is missing, source tokens use the target's table.
constexpr const char* kSourceTokens = "source_embedding.tokens.weight";

// A name stands for a size that the manifest does not contain.
using Shape = std::vector<std::variant<std::int64_t, std::string>>;

// An expected tensor. A `matrix` (weights of a linear layer, or a table of tokens) may be int8.
struct Expected {
  std::string name;
  Shape shape;
  bool matrix = false;
  bool optional = false;
  std::int64_t min_rows = 1;  // minimum of the first size
};

std::string show(const Shape& shape) {
  std::string result;
  for (const auto& size : shape) {
    const auto* number = std::get_if<std::int64_t>(&size);
    result +=
        (result.empty() ? "" : ", ") + (number != nullptr ? std::to_string(*number) : std::get<std::string>(size));
  }
  return "[" + result + "]";
}

bool fits(const Ids& shape, const Shape& expected) {
  if (shape.size() != expected.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const auto* exact = std::get_if<std::int64_t>(&expected[i]);
    if (exact != nullptr ? shape[i] != *exact : shape[i] < 1 || shape[i] > kMaxSize) return false;
  }
  return true;
}

std::int64_t element_bytes(const std::string& dtype) { return dtype == "float32" ? 4 : dtype == "float16" ? 2 : 1; }

// Return whether the last element of a view is among the first `count` elements. Does not overflow.
bool lies_within(const Parameter& tensor, std::int64_t count) {
  std::int64_t remaining = count - 1;
  for (std::size_t i = 0; i < tensor.shape.size() && remaining >= 0; ++i) {
    const std::int64_t steps = tensor.shape[i] - 1;
    if (steps > 0 && tensor.strides[i] > remaining / steps) return false;
    remaining -= steps * tensor.strides[i];
  }
  return remaining >= 0;
}

// Return whether elements of a view overlap: neither axis steps over the whole other axis. Without overlaps, the file
// is at least as large as the matrix.
bool overlaps(const Parameter& tensor) {
  if (tensor.shape.size() != 2) return false;
  const auto span = [&](std::size_t axis) { return (tensor.shape[axis] - 1) * tensor.strides[axis]; };
  return tensor.strides[0] <= span(1) && tensor.strides[1] <= span(0);
}

// Checks of the parameters of one model. Each check throws the first fault.
class Table {
 public:
  explicit Table(const ModelFile& model)
      : model_(model), sizes_(model.sizes), parameters_(model.parameters), file_(quote(model.weights.string())) {}

  void check() {
    check_architecture();
    for (const Parameter& tensor : parameters_.tensors) {
      require(tensors_.emplace(tensor.name, &tensor).second,
              "parameters has the tensor " + quote(tensor.name) + " twice");
    }
    const bool relative = has("encoder_positions.weight") || has("decoder_positions.weight");
    bool rotary = false;
    for (const std::string& part : kRotation) {
      rotary = rotary || has("encoder_rotations" + part) || has("decoder_rotations" + part);
    }
    check_embeddings(!relative && !rotary);
    const bool final_norms = parameters_.architecture.norm != "post";
    if (relative && !sizes_.reads_states()) check_relative(true);
    const std::int64_t encoder_inner = inner_of_encoder();
    const std::int64_t inner = sizes_.heads * sizes_.head_dim;  // each below 2^31
    if (rotary && !sizes_.reads_states())
      check_rotation("encoder", encoder_inner / sizes_.encoder_heads, model_.limits.source);
    for (std::int64_t i = 0; i < sizes_.encoder_layers; ++i) {
      const std::string layer = "encoder." + std::to_string(i) + ".";
      check_attention(layer + "attention", encoder_inner);
      check_feed_forward(layer + "feed_forward");
    }
    if (final_norms && !sizes_.reads_states()) check_norm("encoder_norm");
    if (relative) check_relative(false);
    if (rotary) check_rotation("decoder", sizes_.head_dim, model_.limits.target);
    for (std::int64_t i = 0; i < sizes_.decoder_layers; ++i) {
      const std::string layer = "decoder." + std::to_string(i) + ".";
      check_attention(layer + "self_attention", inner);
      check_attention(layer + "cross_attention", inner, sizes_.reads_states() ? *sizes_.feature_size : width());
      check_feed_forward(layer + "feed_forward");
    }
    if (final_norms) check_norm("decoder_norm");
    check({"projection.weight", {sizes_.target_vocabulary, width()}, true, true});
    check({"projection.bias", {sizes_.target_vocabulary}, false, true});
    for (const Parameter& tensor : parameters_.tensors) {
      require(known_.count(tensor.name) == 1,
              "parameters has the tensor " + quote(tensor.name) + ", which this model does not have");
    }
  }

  struct Fault {
    std::string text;
  };

 private:
  const ModelFile& model_;
  const ModelSizes& sizes_;
  const Parameters& parameters_;
  const std::string file_;  // in messages
  std::map<std::string, const Parameter*> tensors_;
  std::set<std::string> known_;

  std::int64_t width() const { return sizes_.d_model; }
  bool has(const std::string& name) const { return tensors_.count(name) == 1; }

  static void require(bool holds, const std::string& fault) {
    if (!holds) throw Fault{fault};
  }

  void check_architecture() {
    const Architecture& architecture = parameters_.architecture;
    require(architecture.embedding_scale > 0 && std::isfinite(architecture.embedding_scale),
            "parameters.architecture.embedding_scale must be greater than 0");
    require(0 < architecture.layer_norm_epsilon && architecture.layer_norm_epsilon < 1,
            "parameters.architecture.layer_norm_epsilon must be between 0 and 1");
  }

  void check_embeddings(bool positions) {
    bool normed = false;
    for (const char* name : {"source_embedding.norm.weight", "source_embedding.norm.bias",
                             "target_embedding.norm.weight", "target_embedding.norm.bias"}) {
      normed = normed || has(name);
    }
    for (const bool source : {true, false}) {
      if (source && sizes_.reads_states()) continue;
      const std::string name = source ? "source_embedding" : "target_embedding";
      if (source && sizes_.feature_size) {
        check_linear(name + ".projection", width(), *sizes_.feature_size);
      } else {
        check({name + kTokens, {source ? sizes_.source_vocabulary : sizes_.target_vocabulary, width()}, true, source});
      }
      const std::int64_t length = source ? model_.limits.source : model_.limits.target;
      if (positions) check({name + ".positions", {"positions", width()}, false, false, length});
      if (normed) check_norm(name + ".norm");
    }
  }

  void check_norm(const std::string& name) {
    check({name + ".weight", {width()}});
    if (parameters_.architecture.norm_kind == "layer") check({name + ".bias", {width()}});
  }

  // Check the table of relative positions. The encoder's table has distances to both sides.
  void check_relative(bool encoder) {
    const std::string name = encoder ? "encoder_positions.weight" : "decoder_positions.weight";
    const std::int64_t heads = encoder ? sizes_.encoder_heads : sizes_.heads;
    const std::int64_t all = heads * (encoder ? sizes_.encoder_layers : sizes_.decoder_layers);  // each below 2^31
    const auto found = tensors_.find(name);
    const bool each = found != tensors_.end() && found->second->shape.size() == 2 && found->second->shape[1] == all;
    const std::int64_t min_rows = encoder ? 2 * model_.limits.source - 1 : model_.limits.target;
    check({name, {"distances", each ? all : heads}, false, false, min_rows});
  }

  void check_rotation(const std::string& stack, std::int64_t head_dim, std::int64_t length) {
    for (const std::string& part : kRotation) {
      check({stack + "_rotations" + part, {"positions", head_dim}, false, false, length});
    }
  }

  // Return the total width of the encoder's heads, taken from its first tensor.
  std::int64_t inner_of_encoder() const {
    const auto first = tensors_.find("encoder.0.attention.query.weight");
    const bool exists = first != tensors_.end() && !first->second->shape.empty();
    const std::int64_t inner = exists ? first->second->shape[0] : 0;
    return inner > 0 && inner % sizes_.encoder_heads == 0 ? inner : sizes_.encoder_heads * sizes_.head_dim;
  }

  void check_linear(const std::string& name, std::int64_t outputs, std::int64_t inputs) {
    check({name + ".weight", {outputs, inputs}, true});
    check({name + ".bias", {outputs}, false, true});
  }

  void check_attention(const std::string& name, std::int64_t inner) { check_attention(name, inner, width()); }

  // `keys`: the width of the states that keys and values are made of.
  void check_attention(const std::string& name, std::int64_t inner, std::int64_t keys) {
    check_linear(name + ".query", inner, width());
    check_linear(name + ".key", inner, keys);
    check_linear(name + ".value", inner, keys);
    check_linear(name + ".output", width(), inner);
    check_norm(name + "_residual.norm");
  }

  // The inner width is taken from the first tensor of the layer.
  void check_feed_forward(const std::string& name) {
    const Parameter& inner = *check({name + ".inner.weight", {"inner", width()}, true});
    check({name + ".inner.bias", {inner.shape[0]}, false, true});
    if (has(name + ".gate.weight")) check_linear(name + ".gate", inner.shape[0], width());
    check_linear(name + ".outer", width(), inner.shape[0]);
    check_norm(name + "_residual.norm");
  }

  // Return the expected tensor; null if it is optional and missing.
  const Parameter* check(const Expected& expected) {
    known_.insert(expected.name);
    const auto found = tensors_.find(expected.name);
    if (found == tensors_.end()) {
      const std::string fault = "parameters misses the tensor " + quote(expected.name);
      require(expected.optional, fault);
      require(expected.name != kSourceTokens || sizes_.source_vocabulary <= sizes_.target_vocabulary,
              fault + ": the target's table has " + std::to_string(sizes_.target_vocabulary) + " rows, too few for " +
                  std::to_string(sizes_.source_vocabulary) + " source tokens");
      return nullptr;
    }
    check_tensor(*found->second, expected);
    return found->second;
  }

  void check_tensor(const Parameter& tensor, const Expected& expected) const {
    const std::string start = "parameter " + quote(tensor.name);
    const std::string beyond = " beyond the " + std::to_string(model_.bytes) + " bytes of " + file_;
    require(fits(tensor.shape, expected.shape), start + " must be of shape " + show(expected.shape) + ", not " +
                                                    show(Shape(tensor.shape.begin(), tensor.shape.end())));
    require(tensor.shape[0] >= expected.min_rows, start + " has " + std::to_string(tensor.shape[0]) +
                                                      " rows, but sentences have up to " +
                                                      std::to_string(expected.min_rows) + " tokens");
    const bool int8 = tensor.dtype == "int8";
    require(!int8 || expected.matrix, start + " must not be int8: it is not a matrix of weights");
    require(int8 == tensor.scales.has_value(), start + " must have scales if it is int8, and none otherwise");
    bool positive = tensor.strides.size() == tensor.shape.size();
    for (const std::int64_t stride : tensor.strides) positive = positive && stride >= 1;
    require(positive, start + " must have a positive stride for each dimension");
    const std::int64_t element = element_bytes(tensor.dtype);
    require(tensor.offset >= 0 && tensor.offset % element == 0,
            start + " has the offset " + std::to_string(tensor.offset) + ", which is not a multiple of " +
                std::to_string(element) + " from 0 on");
    require(tensor.offset <= model_.bytes && lies_within(tensor, (model_.bytes - tensor.offset) / element),
            start + " leads" + beyond);
    require(!overlaps(tensor), start + " has strides by which its elements overlap");
    if (int8) check_scales(*tensor.scales, tensor.shape[0], start, beyond);
  }

  void check_scales(std::int64_t scales, std::int64_t count, const std::string& start,
                    const std::string& beyond) const {
    require(scales >= 0 && scales % kScaleBytes == 0, start + " has scales at " + std::to_string(scales) +
                                                          ", which is not a multiple of " +
                                                          std::to_string(kScaleBytes) + " from 0 on");
    require(scales <= model_.bytes && count <= (model_.bytes - scales) / kScaleBytes,
            start + " has scales that lead" + beyond);
  }
};

// Return a message if a number of a model is not between `minimum` and kMaxSize.
std::string range_fault(const std::string& name, std::int64_t size, std::int64_t minimum = 1) {
  if (minimum <= size && size <= kMaxSize) return "";
  return name + " is " + std::to_string(size) + ", which is not between " + std::to_string(minimum) + " and " +
         std::to_string(kMaxSize);
}

}  // namespace

std::string size_fault(const ModelSizes& sizes) {
  const std::int64_t least_layers = sizes.feature_size ? 0 : 1;
  if (std::string fault = range_fault("model.encoder_layers", sizes.encoder_layers, least_layers); !fault.empty()) {
    return fault;
  }
  for (const auto& [name, size] : {std::pair{"decoder_layers", sizes.decoder_layers},
                                   {"d_model", sizes.d_model},
                                   {"heads", sizes.heads},
                                   {"head_dim", sizes.head_dim},
                                   {"encoder_heads", sizes.encoder_heads},
                                   {"source_vocabulary", sizes.source_vocabulary},
                                   {"target_vocabulary", sizes.target_vocabulary},
                                   {"feature_size", sizes.feature_size.value_or(1)}}) {
    if (std::string fault = range_fault(std::string("model.") + name, size); !fault.empty()) return fault;
  }
  return "";
}

std::string token_fault(const ModelSizes& sizes, const SpecialTokens& tokens) {
  const std::int64_t target = sizes.target_vocabulary;
  for (const auto& [name, token] :
       {std::pair{"pad", tokens.pad}, {"unk", tokens.unk}, {"bos", tokens.bos}, {"eos", tokens.eos}}) {
    if (0 <= token && token < target) continue;
    return "tokens." + std::string(name) + " is " + std::to_string(token) + ", outside the target vocabulary of " +
           std::to_string(target);
  }
  for (const auto& [name, token] : {std::pair{"pad", tokens.pad}, {"eos", tokens.eos}}) {
    if (token < sizes.source_vocabulary) continue;
    return "tokens." + std::string(name) + " is outside the source vocabulary of " +
           std::to_string(sizes.source_vocabulary);
  }
  return "";
}

std::string parameter_fault(const ModelFile& model) {
  try {
    Table(model).check();
  } catch (const Table::Fault& fault) {
    return fault.text;
  }
  return "";
}

void check_model(const ModelFile& model) {
  std::string fault = size_fault(model.sizes);
  if (fault.empty()) fault = token_fault(model.sizes, model.tokens);
  for (const auto& [name, size] :
       {std::pair{"batch", model.limits.batch}, {"source", model.limits.source}, {"target", model.limits.target}}) {
    if (fault.empty()) fault = range_fault(name, size);
  }
  if (fault.empty()) fault = parameter_fault(model);
  if (!fault.empty()) throw BundleError("the model of " + model.weights.string() + " cannot be used: " + fault);
}

}  // namespace txport::core
