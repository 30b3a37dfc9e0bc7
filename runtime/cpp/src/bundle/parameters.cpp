#include "bundle/parameters.hpp"

#include <map>
#include <set>
#include <variant>

#include "bundle/manifest.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::int64_t kLargestSize = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kScaleBytes = 4;
constexpr const char* kTokens = ".tokens.weight";
// Where it is missing, source tokens are rows of the target's table.
constexpr const char* kSourceTokens = "source_embedding.tokens.weight";

// A word stands for a size that the manifest does not know otherwise.
using Shape = std::vector<std::variant<std::int64_t, std::string>>;

// A tensor that a model has: a `matrix`, which may be int8, is weights of a linear layer or a table of tokens.
struct Expected {
  std::string name;
  Shape shape;
  bool matrix = false;
  bool optional = false;
  std::int64_t least = 1;  // of the first size
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
    const auto* wanted = std::get_if<std::int64_t>(&expected[i]);
    if (wanted != nullptr ? shape[i] != *wanted : shape[i] < 1 || shape[i] > kLargestSize) return false;
  }
  return true;
}

std::int64_t element_bytes(const std::string& dtype) { return dtype == "float32" ? 4 : dtype == "float16" ? 2 : 1; }

// Whether the last element of a view is among the first `count` elements; without overflow.
bool lies_within(const Parameter& tensor, std::int64_t count) {
  std::int64_t left = count - 1;
  for (std::size_t i = 0; i < tensor.shape.size() && left >= 0; ++i) {
    const std::int64_t steps = tensor.shape[i] - 1;
    if (steps > 0 && tensor.strides[i] > left / steps) return false;
    left -= steps * tensor.strides[i];
  }
  return left >= 0;
}

// Whether one axis of a view within the file does not step over all of the other. Else the file is as large as the
// matrix that is made of it.
bool overlaps(const Parameter& tensor) {
  if (tensor.shape.size() != 2) return false;
  const auto span = [&](std::size_t axis) { return (tensor.shape[axis] - 1) * tensor.strides[axis]; };
  return tensor.strides[0] <= span(1) && tensor.strides[1] <= span(0);
}

// The checks of one table; each throws the fault.
class Table {
 public:
  Table(const Manifest& manifest, const Parameters& parameters) : manifest_(manifest), parameters_(parameters) {}

  void check() {
    check_architecture();
    for (const Parameter& tensor : parameters_.tensors) {
      require(tensors_.emplace(tensor.name, &tensor).second,
              "parameters has the tensor " + quote(tensor.name) + " twice");
    }
    check_embeddings();
    const bool final_norms = parameters_.architecture.norm != "post";
    for (std::int64_t i = 0; i < manifest_.model.encoder_layers; ++i) {
      const std::string layer = "encoder." + std::to_string(i) + ".";
      check_attention(layer + "attention");
      check_feed_forward(layer + "feed_forward");
    }
    if (final_norms) check_norm("encoder_norm");
    for (std::int64_t i = 0; i < manifest_.model.decoder_layers; ++i) {
      const std::string layer = "decoder." + std::to_string(i) + ".";
      check_attention(layer + "self_attention");
      check_attention(layer + "cross_attention");
      check_feed_forward(layer + "feed_forward");
    }
    if (final_norms) check_norm("decoder_norm");
    check({"projection.weight", {manifest_.model.target_vocabulary, width()}, true, true});
    check({"projection.bias", {manifest_.model.target_vocabulary}, false, true});
    for (const Parameter& tensor : parameters_.tensors) {
      require(known_.count(tensor.name) == 1,
              "parameters has the tensor " + quote(tensor.name) + ", which this model does not have");
    }
  }

  struct Fault {
    std::string text;
  };

 private:
  const Manifest& manifest_;
  const Parameters& parameters_;
  std::map<std::string, const Parameter*> tensors_;
  std::set<std::string> known_;
  std::int64_t file_bytes_ = 0;

  std::int64_t width() const { return manifest_.model.d_model; }

  static void require(bool holds, const std::string& fault) {
    if (!holds) throw Fault{fault};
  }

  void check_architecture() {
    const Architecture& architecture = parameters_.architecture;
    require(architecture.embedding_scale > 0, "parameters.architecture.embedding_scale must be greater than 0");
    require(0 < architecture.layer_norm_epsilon && architecture.layer_norm_epsilon < 1,
            "parameters.architecture.layer_norm_epsilon must be between 0 and 1");
    const std::int64_t heads = manifest_.model.heads * manifest_.model.head_dim;  // each below 2^31
    require(width() == heads, "parameters need a model.d_model of " + std::to_string(heads) + ", heads times head_dim");
    const auto file = manifest_.files.find(kWeightsName);
    require(file != manifest_.files.end(),
            "parameters are views of " + quote(kWeightsName) + ", which is not listed under files");
    file_bytes_ = file->second.bytes;
  }

  void check_embeddings() {
    bool normed = false;
    for (const char* name : {"source_embedding.norm.weight", "source_embedding.norm.bias",
                             "target_embedding.norm.weight", "target_embedding.norm.bias"}) {
      normed = normed || tensors_.count(name) == 1;
    }
    const ModelSizes& model = manifest_.model;
    for (const bool source : {true, false}) {
      const std::string name = source ? "source_embedding" : "target_embedding";
      check({name + kTokens, {source ? model.source_vocabulary : model.target_vocabulary, width()}, true, source});
      const Range& length = source ? manifest_.dimensions.source : manifest_.dimensions.target;
      check({name + ".positions", {"positions", width()}, false, false, length.max});
      if (normed) check_norm(name + ".norm");
    }
  }

  void check_norm(const std::string& name) {
    check({name + ".weight", {width()}});
    check({name + ".bias", {width()}});
  }

  void check_linear(const std::string& name, std::int64_t outputs, std::int64_t inputs) {
    check({name + ".weight", {outputs, inputs}, true});
    check({name + ".bias", {outputs}, false, true});
  }

  void check_attention(const std::string& name) {
    for (const char* part : {".query", ".key", ".value", ".output"}) check_linear(name + part, width(), width());
    check_norm(name + "_residual.norm");
  }

  // The inner width is what the first of its tensors says.
  void check_feed_forward(const std::string& name) {
    const Parameter& inner = *check({name + ".inner.weight", {"inner", width()}, true});
    check({name + ".inner.bias", {inner.shape[0]}, false, true});
    check_linear(name + ".outer", width(), inner.shape[0]);
    check_norm(name + "_residual.norm");
  }

  // The tensor that was expected; null if it is optional and not there.
  const Parameter* check(const Expected& expected) {
    known_.insert(expected.name);
    const auto found = tensors_.find(expected.name);
    if (found == tensors_.end()) {
      const std::string fault = "parameters misses the tensor " + quote(expected.name);
      require(expected.optional, fault);
      const ModelSizes& model = manifest_.model;
      require(expected.name != kSourceTokens || model.source_vocabulary <= model.target_vocabulary,
              fault + ": the target's table has " + std::to_string(model.target_vocabulary) + " rows, too few for " +
                  std::to_string(model.source_vocabulary) + " source tokens");
      return nullptr;
    }
    check_tensor(*found->second, expected);
    return found->second;
  }

  void check_tensor(const Parameter& tensor, const Expected& expected) const {
    const std::string start = "parameter " + quote(tensor.name);
    const std::string beyond = " beyond the " + std::to_string(file_bytes_) + " bytes of " + quote(kWeightsName);
    require(fits(tensor.shape, expected.shape), start + " must be of shape " + show(expected.shape) + ", not " +
                                                    show(Shape(tensor.shape.begin(), tensor.shape.end())));
    require(tensor.shape[0] >= expected.least, start + " has " + std::to_string(tensor.shape[0]) +
                                                   " rows, but sentences have up to " + std::to_string(expected.least) +
                                                   " tokens");
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
    require(tensor.offset <= file_bytes_ && lies_within(tensor, (file_bytes_ - tensor.offset) / element),
            start + " leads" + beyond);
    require(!overlaps(tensor), start + " has strides by which its elements overlap");
    if (int8) check_scales(*tensor.scales, tensor.shape[0], start, beyond);
  }

  void check_scales(std::int64_t scales, std::int64_t count, const std::string& start,
                    const std::string& beyond) const {
    require(scales >= 0 && scales % kScaleBytes == 0, start + " has scales at " + std::to_string(scales) +
                                                          ", which is not a multiple of " +
                                                          std::to_string(kScaleBytes) + " from 0 on");
    require(scales <= file_bytes_ && count <= (file_bytes_ - scales) / kScaleBytes,
            start + " has scales that lead" + beyond);
  }
};

Ids decode_integers(const Value& value) {
  Ids result;
  for (const Value& item : value.items()) result.push_back(item.integer());
  return result;
}

Parameter decode_parameter(const Value& value) {
  value.fields({"name", "dtype", "offset", "shape", "strides", "scales"});
  const Value scales = value["scales"];
  return {value["name"].text(),
          value["dtype"].literal({"float32", "float16", "int8"}),
          value["offset"].integer(),
          decode_integers(value["shape"]),
          decode_integers(value["strides"]),
          scales.is_null() ? std::nullopt : std::optional(scales.integer())};
}

}  // namespace

Parameters decode_parameters(const Value& value) {
  value.fields({"architecture", "tensors"});
  const Value architecture = value["architecture"];
  architecture.fields({"norm", "activation", "embedding_scale", "layer_norm_epsilon"});
  Parameters parameters{{architecture["norm"].literal({"post", "pre", "post_final"}),
                         architecture["activation"].literal({"relu", "gelu", "silu"}),
                         architecture["embedding_scale"].number(), architecture["layer_norm_epsilon"].number()},
                        {}};
  for (const Value& tensor : value["tensors"].items()) parameters.tensors.push_back(decode_parameter(tensor));
  return parameters;
}

std::string parameter_fault(const Manifest& manifest, const Parameters& parameters) {
  try {
    Table(manifest, parameters).check();
  } catch (const Table::Fault& fault) {
    return fault.text;
  }
  return "";
}

}  // namespace txport::core
