#include "bundle/rules.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "bundle/tokenizer_rules.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::int64_t kLargestSize = (std::int64_t{1} << 31) - 1;
// Never listed under `files`: the manifest itself, and what is made on the device.
constexpr std::array<const char*, 2> kUnlisted{"manifest.json", "engines"};

using Tensors = std::map<std::string, Tensor>;

struct Interface {
  Tensors inputs;
  Tensors outputs;
};

std::string show(const std::vector<Size>& shape) {
  std::string result;
  for (const Size& size : shape) {
    const auto* number = std::get_if<std::int64_t>(&size);
    result += (result.empty() ? "" : ", ") +
              (number != nullptr ? std::to_string(*number) : quote(std::get<std::string>(size)));
  }
  return "[" + result + "]";
}

// The checks of one manifest; each throws BundleError.
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
      check_interface(graph);
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
  }

 private:
  const Manifest& manifest_;
  const std::string& file_;

  void require(bool holds, const std::string& fault) const {
    if (!holds) throw BundleError(file_ + ": " + fault);
  }

  void check_sizes() const {
    const ModelSizes& model = manifest_.model;
    const std::string range = ", which is not between 1 and " + std::to_string(kLargestSize);
    for (const auto& [name, size] : {std::pair{"encoder_layers", model.encoder_layers},
                                     {"decoder_layers", model.decoder_layers},
                                     {"d_model", model.d_model},
                                     {"heads", model.heads},
                                     {"head_dim", model.head_dim},
                                     {"source_vocabulary", model.source_vocabulary},
                                     {"target_vocabulary", model.target_vocabulary}}) {
      require(1 <= size && size <= kLargestSize, "model." + std::string(name) + " is " + std::to_string(size) + range);
    }
    const Dimensions& dimensions = manifest_.dimensions;
    for (const auto& [name, sizes] :
         {std::pair{"batch", dimensions.batch}, {"source", dimensions.source}, {"target", dimensions.target}}) {
      require(1 <= sizes.min && sizes.min <= sizes.opt && sizes.opt <= sizes.max && sizes.max <= kLargestSize,
              "dimensions." + std::string(name) + " must rise from min over opt to max, from 1 to " +
                  std::to_string(kLargestSize) + ", but is " + std::to_string(sizes.min) + ", " +
                  std::to_string(sizes.opt) + ", " + std::to_string(sizes.max));
    }
  }

  void check_tokens() const {
    const SpecialTokens& tokens = manifest_.tokens;
    const std::int64_t target = manifest_.model.target_vocabulary;
    const std::int64_t source = manifest_.model.source_vocabulary;
    for (const auto& [name, token] :
         {std::pair{"pad", tokens.pad}, {"unk", tokens.unk}, {"bos", tokens.bos}, {"eos", tokens.eos}}) {
      require(0 <= token && token < target, "tokens." + std::string(name) + " is " + std::to_string(token) +
                                                ", outside the target vocabulary of " + std::to_string(target));
    }
    for (const auto& [name, token] : {std::pair{"pad", tokens.pad}, {"eos", tokens.eos}}) {
      require(token < source,
              "tokens." + std::string(name) + " is outside the source vocabulary of " + std::to_string(source));
    }
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

  // Relative, POSIX, without empty, '.' or '..' parts, backslashes or control characters.
  static bool is_inside(const std::string& name) {
    for (std::size_t start = 0; start <= name.size();) {
      const std::size_t end = std::min(name.find('/', start), name.size());
      const std::string part = name.substr(start, end - start);
      if (part.empty() || part == "." || part == "..") return false;
      start = end + 1;
    }
    return std::none_of(name.begin(), name.end(),
                        [](char c) { return c == '\\' || static_cast<unsigned char>(c) < 32; });
  }

  void check_tokenizer() const {
    const std::string fault = tokenizer_fault(manifest_);
    require(fault.empty(), fault);
  }

  void check_graph_set() const {
    std::set<std::string> names;
    std::set<std::string> lowerings;
    std::ptrdiff_t encoders = 0;
    for (const Graph& graph : manifest_.graphs) {
      require(names.insert(graph.name).second, "graphs has the name " + quote(graph.name) + " twice");
      require(lowerings.insert(graph.lowering).second, "graphs has the lowering " + quote(graph.lowering) + " twice");
      encoders += graph.role == "encoder" ? 1 : 0;
    }
    require(encoders == 1, "graphs must have exactly one of role 'encoder'");
    require(manifest_.graphs.size() > 1, "graphs must have at least one of role 'decoder_step'");
    for (const Graph& graph : manifest_.graphs) {
      require((graph.role == "encoder") == (graph.lowering == "standard"),
              "graph " + quote(graph.name) + " has the lowering " + quote(graph.lowering) + ", unfit for its role " +
                  quote(graph.role));
      require(manifest_.files.count(graph.file) == 1, "graph " + quote(graph.name) + " names the file " +
                                                          quote(graph.file) + ", which is not listed under files");
    }
  }

  void check_graph(const Graph& graph) const {
    const std::string start = "graph " + quote(graph.name);
    const bool positive = std::all_of(graph.opsets.begin(), graph.opsets.end(),
                                      [](const auto& item) { return 1 <= item.second && item.second <= kLargestSize; });
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
          require(number == nullptr || (1 <= *number && *number <= kLargestSize),
                  start + ": " + quote(tensor.name) + " has a size that is not between 1 and " +
                      std::to_string(kLargestSize));
        }
        (*by_name)[tensor.name] = tensor;
      }
    }
    check_aliases(graph, inputs, outputs);
  }

  void check_aliases(const Graph& graph, const Tensors& inputs, const Tensors& outputs) const {
    const std::string start = "graph " + quote(graph.name) + " aliases ";
    std::set<std::string> used;  // inputs and outputs have no name in common
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

  // Compare a graph with the interface of its role: runtimes bind raw buffers by these names, types and shapes.
  void check_interface(const Graph& graph) const {
    const Interface expected = interface(graph.role);
    check_tensors(graph, "input", graph.inputs, expected.inputs);
    check_tensors(graph, "output", graph.outputs, expected.outputs);
    if (graph.role != "decoder_step") return;
    for (const std::string& name : state_names()) {
      const std::pair<std::string, std::string> alias{name, "next_" + name};
      require(std::find(graph.aliases.begin(), graph.aliases.end(), alias) != graph.aliases.end(),
              "graph " + quote(graph.name) + " misses the alias of " + quote(name) + " with " + quote(alias.second));
    }
  }

  void check_tensors(const Graph& graph, const std::string& kind, const std::vector<Tensor>& given,
                     const Tensors& expected) const {
    const std::string start = "graph " + quote(graph.name);
    Tensors found;
    for (const Tensor& tensor : given) {
      found[tensor.name] = tensor;
      require(expected.count(tensor.name) == 1, start + " has the " + kind + " " + quote(tensor.name) + ", which a " +
                                                    graph.role + " graph does not have");
    }
    for (const auto& [name, tensor] : expected) {
      const auto here = found.find(name);
      if (here == found.end()) {
        // Listed by the lowerings that need it.
        require(name == "cache_positions", start + " misses the " + kind + " " + quote(name));
        continue;
      }
      require(
          here->second.dtype == tensor.dtype && here->second.shape == tensor.shape,
          start + ": the " + kind + " " + quote(name) + " must be " + tensor.dtype + " of shape " + show(tensor.shape));
      require(!here->second.optional || tensor.optional,
              start + ": the " + kind + " " + quote(name) + " must not be optional");
    }
  }

  // Keys and values of each layer, after `start`; a manifest may claim billions of layers, and its graphs' inputs tell
  // how many can be true.
  std::vector<std::string> layer_names(const std::string& start) const {
    std::size_t most = 0;
    for (const Graph& graph : manifest_.graphs) most = std::max(most, graph.inputs.size() + graph.outputs.size());
    const auto layers = std::min(manifest_.model.decoder_layers, static_cast<std::int64_t>(most) + 1);
    std::vector<std::string> names;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      for (const char* kind : {"key_", "value_"}) names.push_back(start + kind + std::to_string(layer));
    }
    return names;
  }

  std::vector<std::string> state_names() const {
    std::vector<std::string> names{"token_ids", "positions", "finished"};
    for (std::string& name : layer_names("self_")) names.push_back(std::move(name));
    return names;
  }

  // The inputs and outputs that a graph of this role has (format 1).
  Interface interface(const std::string& role) const {
    const ModelSizes& sizes = manifest_.model;
    const std::string& floating = manifest_.precision.type;
    Interface result;
    const auto add = [](Tensors& tensors, const std::string& name, const std::string& dtype, std::vector<Size> shape) {
      tensors[name] = {name, dtype, std::move(shape), name == "logits"};
    };
    Tensors cross;
    add(cross, "cross_bias", floating, {"batch", std::int64_t{1}, std::int64_t{1}, "source"});
    for (const std::string& name : layer_names("cross_")) {
      add(cross, name, floating, {"batch", sizes.heads, "source", sizes.head_dim});
    }
    if (role == "encoder") {
      add(result.inputs, "input_ids", "int64", {"batch", "source"});
      add(result.inputs, "source_lengths", "int64", {"batch"});
      result.outputs = std::move(cross);
      return result;
    }
    result.inputs = std::move(cross);
    for (const char* name : {"token_ids", "positions", "target_limits"}) add(result.inputs, name, "int64", {"batch"});
    add(result.inputs, "finished", "bool", {"batch"});
    add(result.inputs, "cache_positions", "int64", {"target"});
    for (const char* name : {"next_token_ids", "next_positions"}) add(result.outputs, name, "int64", {"batch"});
    add(result.outputs, "next_finished", "bool", {"batch"});
    add(result.outputs, "logits", floating, {"batch", sizes.target_vocabulary});
    for (const std::string& name : layer_names("self_")) {
      const std::vector<Size> shape{"batch", sizes.heads, "target", sizes.head_dim};
      add(result.inputs, name, floating, shape);
      add(result.outputs, "next_" + name, floating, shape);
    }
    return result;
  }
};

}  // namespace

void check_rules(const Manifest& manifest, const std::string& file) { Rules(manifest, file).check(); }

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace txport::core
