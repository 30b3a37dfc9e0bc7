#include "bundle/rules.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "bundle/archive.hpp"
#include "bundle/interface.hpp"
#include "bundle/tokenizer_rules.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::int64_t kMaxSize = (std::int64_t{1} << 31) - 1;
// Never listed under `files`: the manifest itself, and engines that tx-build builds on the device.
constexpr std::array<const char*, 2> kUnlisted{"manifest.json", "engines"};

using Tensors = std::map<std::string, Tensor>;

std::string show(const std::vector<Size>& shape) {
  std::string result;
  for (const Size& size : shape) {
    const auto* number = std::get_if<std::int64_t>(&size);
    result += (result.empty() ? "" : ", ") +
              (number != nullptr ? std::to_string(*number) : quote(std::get<std::string>(size)));
  }
  return "[" + result + "]";
}

// Checks of one manifest. Each check throws BundleError.
class Rules {
 public:
  Rules(const Manifest& manifest, const std::string& file) : manifest_(manifest), file_(file) {}

  void check() const {
    check_sizes();
    check_tokens();
    check_files();
    check_tokenizer();
    check_graph_set();
    for (const Graph& graph : manifest_.graphs) {
      check_graph(graph);
      if (is_known(graph)) check_interface(graph);
    }
    const Precision& precision = manifest_.precision;
    require(precision.weights == precision.type || precision.weights == "int8",
            "precision.weights is " + quote(precision.weights) + ", which is neither its type " +
                quote(precision.type) + " nor 'int8'");
    for (const Island& island : precision.islands) {
      const auto named = [&](const Graph& graph) { return graph.name == island.graph; };
      require(std::any_of(manifest_.graphs.begin(), manifest_.graphs.end(), named),
              "precision.islands names the graph " + quote(island.graph) + ", which is not there");
    }
    check_alignment_heads();
    if (manifest_.parameters) {
      require(manifest_.files.count(kWeightsName) == 1,
              "parameters are views of " + quote(kWeightsName) + ", which is not listed under files");
      require_none(parameter_fault(manifest_.model_file(std::filesystem::path())));
    }
  }

 private:
  const Manifest& manifest_;
  const std::string& file_;

  void require(bool holds, const std::string& fault) const {
    if (!holds) throw BundleError(file_ + ": " + fault);
  }

  void require_none(const std::string& fault) const { require(fault.empty(), fault); }

  void check_alignment_heads() const {
    const ModelSizes& model = manifest_.model;
    std::set<std::pair<std::int64_t, std::int64_t>> listed;
    for (const auto& [layer, head] : manifest_.alignment_heads) {
      const bool inside = 0 <= layer && layer < model.decoder_layers && 0 <= head && head < model.heads;
      require(inside, alignment_head(layer, head) + ", outside the model's " + std::to_string(model.decoder_layers) +
                          " decoder layers of " + std::to_string(model.heads) + " heads");
    }
    for (const auto& [layer, head] : manifest_.alignment_heads) {
      require(listed.insert({layer, head}).second, alignment_head(layer, head) + " twice");
    }
  }

  static std::string alignment_head(std::int64_t layer, std::int64_t head) {
    return "alignment_heads has the layer " + std::to_string(layer) + " with the head " + std::to_string(head);
  }

  void check_sizes() const {
    require_none(size_fault(manifest_.model));
    const Dimensions& dimensions = manifest_.dimensions;
    for (const auto& [name, sizes] :
         {std::pair{"batch", dimensions.batch}, {"source", dimensions.source}, {"target", dimensions.target}}) {
      require(1 <= sizes.min && sizes.min <= sizes.opt && sizes.opt <= sizes.max && sizes.max <= kMaxSize,
              "dimensions." + std::string(name) +
                  " must satisfy 1 <= min <= opt <= max <= " + std::to_string(kMaxSize) + ", but is " +
                  std::to_string(sizes.min) + ", " + std::to_string(sizes.opt) + ", " + std::to_string(sizes.max));
    }
  }

  void check_tokens() const {
    const ModelSizes& model = manifest_.model;
    require_none(token_fault(model, manifest_.tokens));
    require(!model.copies || model.source_vocabulary == model.target_vocabulary,
            "model.copies needs one vocabulary, but source and target have " + std::to_string(model.source_vocabulary) +
                " and " + std::to_string(model.target_vocabulary) + " ids");
    require(!model.copies || !model.feature_size, "model.copies needs source ids, but model.feature_size is set");
    const auto& rate = manifest_.frame_rate;
    require(!rate || (model.feature_size && *rate > 0),
            "frame_rate must be greater than 0, and needs model.feature_size");
    require(!manifest_.external_encoder || (model.feature_size && model.encoder_layers == 0),
            "external_encoder needs model.feature_size and model.encoder_layers = 0");
    require(!model.copies || !manifest_.parameters,
            "parameters are for the fused engine, which has no copy mechanism, but model.copies is true");
  }

  void check_files() const {
    for (const auto& [name, entry] : manifest_.files) {
      require(is_inside(name), "files names " + quote(name) + ", which is not a plain path inside the bundle");
      const std::string first = name.substr(0, name.find('/'));
      require(std::find(kUnlisted.begin(), kUnlisted.end(), first) == kUnlisted.end(),
              "files names " + quote(name) + ", which must not be listed");
      require(
          entry.bytes >= 0 && is_hash(entry.sha256),
          "files[" + quote(name) + "] has a negative size or a sha256 that is not 64 lower-case hexadecimal digits");
    }
  }

  void check_tokenizer() const {
    require_none(tokenizer_fault(manifest_));
    const auto& shortlist = manifest_.shortlist;
    require(!shortlist || !manifest_.model.feature_size, "shortlist needs source ids, but model.feature_size is set");
    require(!shortlist || manifest_.files.count(*shortlist) == 1,
            "shortlist names the file " + quote(shortlist.value_or("")) + ", which is not listed under files");
  }

  static bool is_required(const Graph& graph) { return graph.role == kEncoder || graph.role == kStep; }
  static bool is_known(const Graph& graph) {
    return is_required(graph) || graph.role == kDecoder || graph.role == kEncoderAttention || graph.role == kBeams;
  }

  void check_graph_set() const {
    std::set<std::string> names;
    std::set<std::pair<std::string, std::string>> kinds;
    std::map<std::string, int> roles;
    for (const Graph& graph : manifest_.graphs) {
      require(names.insert(graph.name).second, "graphs has the name " + quote(graph.name) + " twice");
      require(kinds.insert({graph.role, graph.lowering}).second,
              "graphs has the role " + quote(graph.role) + " in the lowering " + quote(graph.lowering) + " twice");
      ++roles[graph.role];
    }
    require(roles[kEncoder] == 1, "graphs must have exactly one of role 'encoder'");
    require(roles[kStep] > 0, "graphs must have at least one of role 'decoder_step'");
    for (const Graph& graph : manifest_.graphs) check_role(graph);
  }

  void check_role(const Graph& graph) const {
    const std::string start = "graph " + quote(graph.name);
    const std::string role = quote(graph.role);
    if (is_known(graph)) {
      require(!is_required(graph) || !graph.optional,
              start + " is optional, but a runtime cannot do without its role " + role);
      require(is_required(graph) || graph.optional,
              start + " is not optional, but a runtime can do without its role " + role);
      require((graph.role == kStep) != (graph.lowering == "standard"),
              start + " has the lowering " + quote(graph.lowering) + ", which does not match its role " + role);
    } else {
      require(graph.optional,
              start + " has the role " + role + ", which this txport does not support, and is not optional");
    }
    require(manifest_.files.count(graph.file) == 1,
            start + " names the file " + quote(graph.file) + ", which is not listed under files");
  }

  void check_graph(const Graph& graph) const {
    const std::string start = "graph " + quote(graph.name);
    const bool positive = std::all_of(graph.opsets.begin(), graph.opsets.end(),
                                      [](const auto& item) { return 1 <= item.second && item.second <= kMaxSize; });
    require(graph.opsets.count("") == 1 && positive,
            start + " has opsets without a positive version of the standard domain ''");
    Tensors inputs;
    Tensors outputs;
    std::set<std::string> names;
    for (auto [tensors, by_name] : {std::pair{&graph.inputs, &inputs}, {&graph.outputs, &outputs}}) {
      for (const Tensor& tensor : *tensors) {
        require(names.insert(tensor.name).second, start + " has the tensor " + quote(tensor.name) + " twice");
        for (const Size& size : tensor.shape) {
          const auto* number = std::get_if<std::int64_t>(&size);
          require(
              number == nullptr || (1 <= *number && *number <= kMaxSize),
              start + ": " + quote(tensor.name) + " has a size that is not between 1 and " + std::to_string(kMaxSize));
        }
        (*by_name)[tensor.name] = tensor;
      }
    }
    check_aliases(graph, inputs, outputs);
  }

  void check_aliases(const Graph& graph, const Tensors& inputs, const Tensors& outputs) const {
    const std::string start = "graph " + quote(graph.name) + " aliases ";
    std::set<std::string> used;  // inputs and outputs have different names
    for (const auto& [input, output] : graph.aliases) {
      require(used.insert(input).second, start + quote(input) + " twice");
      require(used.insert(output).second, start + quote(output) + " twice");
      const auto first = inputs.find(input);
      const auto second = outputs.find(output);
      require(first != inputs.end() && second != outputs.end(),
              start + quote(input) + " with " + quote(output) + ", which are not an input and an output of it");
      require(first->second.dtype == second->second.dtype && first->second.shape == second->second.shape,
              start + quote(input) + " with " + quote(output) + ", which differ in dtype or shape");
    }
  }

  // Compare a graph with the interface of its role, since runtimes bind raw buffers with these names, types and shapes.
  void check_interface(const Graph& graph) const {
    const Interface expected = interface_of(graph.role, bounded_sizes(), manifest_.precision.type);
    check_tensors(graph, "input", graph.inputs, expected.inputs);
    check_tensors(graph, "output", graph.outputs, expected.outputs);
    for (const auto& alias : expected.aliases) {
      require(
          std::find(graph.aliases.begin(), graph.aliases.end(), alias) != graph.aliases.end(),
          "graph " + quote(graph.name) + " misses the alias of " + quote(alias.first) + " with " + quote(alias.second));
    }
  }

  void check_tensors(const Graph& graph, const std::string& kind, const std::vector<Tensor>& tensors,
                     const std::vector<Tensor>& expected) const {
    const std::string start = "graph " + quote(graph.name);
    Tensors expected_tensors;
    for (const Tensor& tensor : expected) expected_tensors[tensor.name] = tensor;
    Tensors actual_tensors;
    for (const Tensor& tensor : tensors) {
      actual_tensors[tensor.name] = tensor;
      const bool is_ignored = kind == "output" && tensor.optional;
      require(
          expected_tensors.count(tensor.name) == 1 || is_ignored,
          start + " has the " + kind + " " + quote(tensor.name) + ", which a " + graph.role + " graph does not have");
    }
    for (const Tensor& tensor : expected) {
      const auto actual = actual_tensors.find(tensor.name);
      if (actual == actual_tensors.end()) {
        require(tensor.name == kCachePositions || tensor.name == kSlotPositions,
                start + " misses the " + kind + " " + quote(tensor.name));
        continue;
      }
      require(actual->second.dtype == tensor.dtype && actual->second.shape == tensor.shape,
              start + ": the " + kind + " " + quote(tensor.name) + " must be " + tensor.dtype + " of shape " +
                  show(tensor.shape));
      require(!actual->second.optional || tensor.optional,
              start + ": the " + kind + " " + quote(tensor.name) + " must not be optional");
    }
  }

  // Return the model sizes with a bounded number of layers. A manifest may claim billions of layers; one layer more
  // than its graphs have tensors suffices to detect the fault.
  ModelSizes bounded_sizes() const {
    std::size_t max_tensors = 0;
    for (const Graph& graph : manifest_.graphs)
      max_tensors = std::max(max_tensors, graph.inputs.size() + graph.outputs.size());
    ModelSizes sizes = manifest_.model;
    sizes.decoder_layers = std::min(sizes.decoder_layers, static_cast<std::int64_t>(max_tensors) + 1);
    return sizes;
  }
};

}  // namespace

void check_rules(const Manifest& manifest, const std::string& file) { Rules(manifest, file).check(); }

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace txport::core
