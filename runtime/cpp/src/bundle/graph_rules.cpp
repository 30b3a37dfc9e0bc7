#include "bundle/graph_rules.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "bundle/manifest.hpp"
#include "bundle/protobuf.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string_view>;
using Tags = std::set<std::uint64_t>;

constexpr const char* kContrib = "com.microsoft";
constexpr const char* kFault = "is not an ONNX model";

// Operators with sizes as inputs: the first and the last of these inputs, and the maximum of a constant among them.
// They get sizes from shapes of tensors and from small constants, so that a graph cannot demand any amount of memory by
// a number.
struct Sized {
  std::size_t first;
  std::size_t last;
  std::int64_t most;
};
const std::map<std::string_view, Sized>& sized_operators() {
  static const std::map<std::string_view, Sized> sized{
      {"Expand", {1, 1, 1}}, {"Pad", {1, 1, 1}}, {"Range", {0, 2, 65'536}}};
  return sized;
}
// Operators that compute sizes by selecting from those of the first input; Concat from those of all.
const Names& selections() {
  static const Names names{"Concat", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"};
  return names;
}

// Operators that any version of tx-export has written, including those in bundles of the tests.
const Names& operators(std::string_view domain) {
  static const Names standard{"Abs",
                              "Add",
                              "ArgMax",
                              "Attention",
                              "Cast",
                              "Concat",
                              "Div",
                              "Equal",
                              "Erf",
                              "Exp",
                              "Expand",
                              "Gather",
                              "Gelu",
                              "Gemm",
                              "Greater",
                              "Identity",
                              "GreaterOrEqual",
                              "GatherElements",
                              "Less",
                              "LessOrEqual",
                              "Log",
                              "MatMul",
                              "Max",
                              "LayerNormalization",
                              "Min",
                              "Mod",
                              "Mul",
                              "Neg",
                              "Not",
                              "Or",
                              "Pad",
                              "Pow",
                              "QuantizeLinear",
                              "Range",
                              "Reciprocal",
                              "RMSNormalization",
                              "ReduceMax",
                              "ReduceMean",
                              "ReduceSum",
                              "Relu",
                              "Reshape",
                              "ScatterElements",
                              "Shape",
                              "Sigmoid",
                              "Slice",
                              "Softmax",
                              "Softplus",
                              "Split",
                              "Sqrt",
                              "Squeeze",
                              "Sub",
                              "Tanh",
                              "TensorScatter",
                              "TopK",
                              "Transpose",
                              "Unsqueeze",
                              "Where"};
  static const Names contributed{"FusedGemm",
                                 "GroupQueryAttention",
                                 "MatMulIntegerToFloat",
                                 "MultiHeadAttention",
                                 "QGemm",
                                 "SkipLayerNormalization",
                                 "SkipSimplifiedLayerNormalization"};
  static const Names none;
  return domain.empty() ? standard : domain == kContrib ? contributed : none;
}

// Wire types and tags of protobuf fields.
constexpr std::uint64_t kNumber = 0;
constexpr std::uint64_t kBytes = 2;
constexpr std::uint64_t kFixed32 = 5;
constexpr std::uint64_t tag(std::uint64_t number, std::uint64_t kind) { return number << 3U | kind; }

Tags tags(std::initializer_list<int> bytes, std::initializer_list<int> numbers = {},
          std::initializer_list<int> fixed = {}) {
  Tags result;
  for (const int number : bytes) result.insert(tag(static_cast<std::uint64_t>(number), kBytes));
  for (const int number : numbers) result.insert(tag(static_cast<std::uint64_t>(number), kNumber));
  for (const int number : fixed) result.insert(tag(static_cast<std::uint64_t>(number), kFixed32));
  return result;
}

// Iterates over the fields of a message and refuses fields other than `tags`.
class Allowed {
 public:
  Allowed(std::string_view message, const Tags& tags, const char* part)
      : fields_(message, kFault), tags_(tags), part_(part) {}

  std::optional<Field> next() {
    auto field = fields_.next();
    if (field && tags_.count(field->tag) == 0) {
      throw BundleError(std::string("contains ") + part_ + " with the field " + std::to_string(field->number) +
                        ", which tx-export does not write");
    }
    return field;
  }

 private:
  Fields fields_;
  const Tags& tags_;
  const char* part_;
};

[[noreturn]] void refuse_weight(const std::string& reason) { throw BundleError("contains a weight that " + reason); }

void check_attribute(std::string_view message) {
  // Only numbers and strings: no tensors, graphs, sparse tensors, types, lists of these, or references.
  static const Tags allowed = tags({1, 4, 7, 8, 9, 13}, {3, 8, 20}, {2, 7});
  for (Allowed fields(message, allowed, "an attribute"); fields.next();) continue;
}

struct Node {
  std::string_view kind;
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
};

Node check_node(std::string_view message) {
  static const Tags allowed = tags({1, 2, 3, 4, 5, 6, 7, 9});
  Node node;
  std::vector<std::string_view> kinds;
  std::vector<std::string_view> domains;
  for (Allowed fields(message, allowed, "a node"); const auto field = fields.next();) {
    if (field->number == 1) node.inputs.push_back(field->bytes);
    if (field->number == 2) node.outputs.push_back(field->bytes);
    if (field->number == 4) kinds.push_back(field->bytes);
    if (field->number == 5) check_attribute(field->bytes);
    if (field->number == 7) domains.push_back(field->bytes);
  }
  if (kinds.size() != 1 || domains.size() > 1) throw BundleError("contains a node without exactly one operator");
  const std::string domain(domains.empty() ? std::string_view() : domains[0]);
  if (operators(domain).count(kinds[0]) == 0) {
    const std::string name = domain + (domain.empty() || kinds[0].empty() ? "" : ".") + std::string(kinds[0]);
    throw BundleError("contains the operator " + quote(name) + ", which tx-export does not write");
  }
  node.kind = kinds[0];
  return node;
}

// Parse an offset or a length.
std::uint64_t number_of(std::string_view text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const bool digits = std::all_of(text.begin(), text.end(), [](char each) { return each >= '0' && each <= '9'; });
  if (!digits || text.empty() || text.size() >= 20 || std::from_chars(text.data(), end, value).ptr != end) {
    refuse_weight("has the offset or length " + quote(std::string(text.substr(0, 40))));
  }
  return value;
}

std::pair<std::string_view, std::string_view> pair_of(std::string_view message) {
  static const Tags allowed = tags({1, 2});
  std::vector<Field> parts;
  for (Allowed fields(message, allowed, "external data"); const auto field = fields.next();) parts.push_back(*field);
  if (parts.size() != 2 || parts[0].number != 1 || parts[1].number != 2) {
    refuse_weight("has external data without one key and one value");
  }
  return {parts[0].bytes, parts[1].bytes};
}

// Check that the external data of a weight of this size is inside weights.bin.
void check_location(const std::vector<std::string_view>& entries, std::uint64_t size, std::uint64_t weights) {
  const std::string file = fs::path(kWeightsName).filename().string();
  std::map<std::string_view, std::string_view> fields;
  for (const std::string_view entry : entries) {
    const auto [key, value] = pair_of(entry);
    const bool is_known = key == "location" || key == "offset" || key == "length";
    if (!is_known || !fields.emplace(key, value).second) refuse_weight("has more than one location, offset or length");
  }
  if (fields["location"] != file) {
    refuse_weight("is in the file " + quote(std::string(fields["location"])) + " instead of " + quote(file));
  }
  const std::uint64_t offset = fields.count("offset") == 0 ? 0 : number_of(fields["offset"]);
  const std::uint64_t length = fields.count("length") == 0 ? size : number_of(fields["length"]);
  if (length != size || size > weights || offset > weights - size) {
    refuse_weight("is not a range of " + std::to_string(size) + " bytes inside " + file);
  }
}

// Return the size of an element of a TensorProto.DataType; 0 for types that tx-export does not write.
std::uint64_t element_bytes(std::uint64_t type) {
  constexpr std::array<std::uint64_t, 11> kSizes{0, 4, 1, 1, 0, 0, 4, 8, 0, 1, 2};
  return type < kSizes.size() ? kSizes.at(type) : 0;
}

// Return the size of a tensor in bytes; UINT64_MAX if it overflows.
std::uint64_t bytes_of(const std::vector<std::uint64_t>& dimensions, std::uint64_t element) {
  std::uint64_t size = element;
  for (const std::uint64_t dimension : dimensions) {
    if (dimension == 0) return 0;
    size = size > UINT64_MAX / dimension ? UINT64_MAX : size * dimension;
  }
  return size;
}

// Integers of weights that are in the graph, by name.
using Constants = std::map<std::string_view, std::vector<std::int64_t>>;

// Parse little-endian integers of 4 or 8 bytes.
std::vector<std::int64_t> integers_of(std::string_view bytes, std::size_t element) {
  std::vector<std::int64_t> values;
  for (std::size_t at = 0; at < bytes.size(); at += element) {
    std::uint64_t value =
        element == 4 && (static_cast<unsigned char>(bytes[at + 3]) & 0x80U) != 0 ? UINT64_MAX << 32U : 0;
    for (std::size_t i = 0; i < element; ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at + i])) << 8U * i;
    }
    values.push_back(static_cast<std::int64_t>(value));
  }
  return values;
}

void check_tensor(std::string_view message, std::uint64_t weights, Constants& constants) {
  static const Tags allowed = tags({4, 5, 7, 8, 9, 12, 13, 16}, {1, 2, 5, 7, 14}, {4});
  constexpr std::size_t kMaxDimensions = 8;
  std::vector<std::uint64_t> dimensions;
  std::vector<std::uint64_t> types;
  std::vector<std::uint64_t> locations;
  std::string_view name;
  std::vector<std::string_view> raw;
  std::vector<std::string_view> entries;
  for (Allowed fields(message, allowed, "a weight"); const auto field = fields.next();) {
    if (field->number == 1) dimensions.push_back(field->value);
    if (field->number == 2) types.push_back(field->value);
    if (field->number == 8) name = field->bytes;
    if (field->number == 9) raw.push_back(field->bytes);
    if (field->number == 13) entries.push_back(field->bytes);
    if (field->number == 14) locations.push_back(field->value);
  }
  const bool is_external = locations.size() == 1 && locations[0] == 1;
  const bool is_internal = locations.empty() || (locations.size() == 1 && locations[0] == 0);
  if (!(is_external || is_internal) || is_external == entries.empty() || raw.size() + (is_external ? 1 : 0) > 1) {
    refuse_weight("is neither in the graph nor in a file");
  }
  const std::uint64_t element = types.size() == 1 ? element_bytes(types[0]) : 0;
  if (element == 0) refuse_weight("has a type that tx-export does not write");
  if (dimensions.size() > kMaxDimensions) refuse_weight("has " + std::to_string(dimensions.size()) + " dimensions");
  const std::uint64_t size = bytes_of(dimensions, element);
  if (raw.empty() && !is_external && size / element > message.size()) {
    refuse_weight("has fewer than " + std::to_string(size / element) + " elements");
  }
  if (!raw.empty() && raw[0].size() != size) {
    refuse_weight("has " + std::to_string(raw[0].size()) + " bytes instead of " + std::to_string(size));
  }
  if (is_external) check_location(entries, size, weights);
  constexpr std::uint64_t kInt32 = 6;
  constexpr std::uint64_t kInt64 = 7;
  if (!raw.empty() && (types[0] == kInt32 || types[0] == kInt64)) constants[name] = integers_of(raw[0], element);
}

// Check that sizes are those of tensors, or constants up to `most`. `sources`: the operators of sizes, by output.
void check_sizes(const Node& node, const std::map<std::string_view, const Node*>& sources, const Constants& constants) {
  const auto& [first, last, most] = sized_operators().at(node.kind);
  std::vector<std::string_view> names;
  for (std::size_t i = first; i <= last && i < node.inputs.size(); ++i) names.push_back(node.inputs[i]);
  Names seen;
  while (!names.empty()) {
    const std::string_view name = names.back();
    names.pop_back();
    const auto found = sources.find(name);
    const Node* source = found == sources.end() ? nullptr : found->second;
    if (!seen.insert(name).second || (source != nullptr && source->kind == "Shape")) continue;
    if (source != nullptr && selections().count(source->kind) == 1) {
      const auto& inputs = source->inputs;
      const std::size_t count = source->kind == "Concat" ? inputs.size() : std::min<std::size_t>(inputs.size(), 1);
      names.insert(names.end(), inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(count));
      continue;
    }
    const auto constant = constants.find(name);
    const auto fits = [most = most](std::int64_t size) { return -most <= size && size <= most; };
    if (source == nullptr && constant != constants.end() &&
        std::all_of(constant->second.begin(), constant->second.end(), fits)) {
      continue;
    }
    throw BundleError("contains the operator " + quote(std::string(node.kind)) +
                      " with sizes that tx-export does not write");
  }
}

void check_parts(std::string_view message, std::uint64_t weights) {
  static const Tags allowed = tags({1, 2, 5, 10, 11, 12, 13, 16});
  std::vector<Node> nodes;
  Constants constants;
  for (Allowed fields(message, allowed, "the graph"); const auto field = fields.next();) {
    if (field->number == 1) nodes.push_back(check_node(field->bytes));
    if (field->number == 5) check_tensor(field->bytes, weights, constants);
  }
  std::map<std::string_view, const Node*> sources;
  for (const Node& node : nodes) {
    const bool has_sizes = sized_operators().count(node.kind) + selections().count(node.kind) == 1;
    if (!has_sizes && node.kind != "Shape") continue;
    for (const std::string_view output : node.outputs) sources[output] = &node;
  }
  for (const Node& node : nodes) {
    if (sized_operators().count(node.kind) == 1) check_sizes(node, sources, constants);
  }
}

void check_opset(std::string_view message) {
  static const Tags allowed = tags({1}, {2});
  for (Allowed fields(message, allowed, "an opset"); const auto field = fields.next();) {
    if (field->number == 1 && operators(field->bytes).empty()) {
      throw BundleError("uses operators of the domain " + quote(std::string(field->bytes)) +
                        ", which tx-export does not use");
    }
  }
}

// Return the size of weights.bin; 0 if it is missing, so that every range is refused.
std::uint64_t size_of_weights(const Bundle& bundle) {
  if (!bundle.is_directory()) return bundle.has(kWeightsName) ? bundle.view(kWeightsName).size() : 0;
  std::error_code fault;
  const auto size = fs::file_size(bundle.directory() / kWeightsName, fault);
  return fault ? 0 : size;
}

}  // namespace

void check_graph(std::string_view model, std::uint64_t weights) {
  static const Tags allowed = tags({2, 3, 4, 6, 7, 8, 14}, {1, 5});
  std::size_t graphs = 0;
  for (Allowed fields(model, allowed, "the model"); const auto field = fields.next();) {
    if (field->number == 8) check_opset(field->bytes);
    if (field->number == 7) {
      ++graphs;
      check_parts(field->bytes, weights);
    }
  }
  if (graphs != 1) throw BundleError("contains " + std::to_string(graphs) + " graphs instead of one");
}

std::string checked_graph(const Bundle& bundle, const std::string& name) {
  const fs::path folder = fs::path(kWeightsName).parent_path();
  const fs::path path(name);
  std::string model = bundle.read(name, kLargestGraph);
  try {
    if (path.parent_path() != folder || path.extension() != ".onnx") {
      throw BundleError("is not a file " + folder.string() + "/*.onnx");
    }
    check_graph(model, size_of_weights(bundle));
    return model;
  } catch (const BundleError& error) {
    throw BundleError("txport does not load " + bundle.name(name) + ", which " + error.what() +
                      ": export the bundle again with tx-export");
  }
}

}  // namespace txport::core
