#include "bundle/manifest.hpp"

#include <algorithm>
#include <stdexcept>
#include <system_error>

#include "bundle/files.hpp"
#include "bundle/hash.hpp"
#include "bundle/interface.hpp"
#include "bundle/rules.hpp"
#include "bundle/strict_json.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

MadeBy decode_made_by(const Value& value) {
  value.fields({"name", "version"});
  return {value["name"].text(), value["version"].text()};
}

ModelSizes decode_model(const Value& value) {
  value.fields(
      {"encoder_layers", "decoder_layers", "d_model", "heads", "head_dim", "source_vocabulary", "target_vocabulary"},
      {"copies", "encoder_heads", "feature_size"});
  const bool reads_features = value.has("feature_size") && !value["feature_size"].is_null();
  return {value["encoder_layers"].integer(),
          value["decoder_layers"].integer(),
          value["d_model"].integer(),
          value["heads"].integer(),
          value["head_dim"].integer(),
          value["source_vocabulary"].integer(),
          value["target_vocabulary"].integer(),
          value.has("copies") && value["copies"].boolean(),
          value[value.has("encoder_heads") ? "encoder_heads" : "heads"].integer(),
          reads_features ? std::optional(value["feature_size"].integer()) : std::nullopt};
}

SpecialTokens decode_tokens(const Value& value) {
  value.fields({"pad", "unk", "bos", "eos"});
  return {value["pad"].integer(), value["unk"].integer(), value["bos"].integer(), value["eos"].integer()};
}

Range decode_range(const Value& value) {
  value.fields({"min", "opt", "max"});
  return {value["min"].integer(), value["opt"].integer(), value["max"].integer()};
}

Dimensions decode_dimensions(const Value& value) {
  value.fields({"batch", "source", "target"});
  return {decode_range(value["batch"]), decode_range(value["source"]), decode_range(value["target"])};
}

Island decode_island(const Value& value) {
  value.fields({"graph", "nodes", "reason"});
  Island island{value["graph"].text(), {}, value["reason"].text()};
  for (const Value& node : value["nodes"].items()) island.nodes.push_back(node.text());
  return island;
}

Precision decode_precision(const Value& value) {
  value.fields({"type", "weights", "islands"});
  Precision precision{
      value["type"].literal({"float32", "float16"}), value["weights"].literal({"float32", "float16", "int8"}), {}};
  for (const Value& island : value["islands"].items()) precision.islands.push_back(decode_island(island));
  return precision;
}

// Decode an integer or one of the given words.
std::variant<std::int64_t, std::string> decode_choice(const Value& value, std::initializer_list<const char*> words) {
  if (value.is_integer()) return value.integer();
  if (value.is_text()) return value.literal(words);
  value.refuse("a string or an integer");
}

Tensor decode_tensor(const Value& value) {
  value.fields({"name", "dtype", "shape", "optional"});
  Tensor tensor{
      value["name"].text(), value["dtype"].literal({"float32", "float16", "int64", "int32", "bool"}), {}, false};
  for (const Value& size : value["shape"].items()) {
    tensor.shape.push_back(decode_choice(size, {"batch", "source", "target", "beam", "rows", "slots"}));
  }
  tensor.optional = value["optional"].boolean();
  return tensor;
}

Graph decode_graph(const Value& value) {
  value.fields({"name", "role", "lowering", "optional", "file", "opsets", "inputs", "outputs", "aliases"});
  Graph graph;
  graph.name = value["name"].text();
  graph.role = value["role"].text();
  graph.lowering = value["lowering"].literal({"standard", "ort", "scatter", "tensorscatter"});
  graph.optional = value["optional"].boolean();
  graph.file = value["file"].text();
  for (const auto& [domain, version] : value["opsets"].members()) graph.opsets[domain] = version.integer();
  for (const Value& tensor : value["inputs"].items()) graph.inputs.push_back(decode_tensor(tensor));
  for (const Value& tensor : value["outputs"].items()) graph.outputs.push_back(decode_tensor(tensor));
  for (const Value& alias : value["aliases"].items()) {
    const auto pair = alias.items(2);
    graph.aliases.emplace_back(pair[0].text(), pair[1].text());
  }
  return graph;
}

std::optional<std::string> decode_optional_text(const Value& value) {
  return value.is_null() ? std::nullopt : std::optional(value.text());
}

std::optional<TokenizerSide> decode_side(const Value& value) {
  if (value.is_null()) return std::nullopt;
  value.fields({"model", "vocabulary"});
  return TokenizerSide{value["model"].text(), decode_optional_text(value["vocabulary"])};
}

std::vector<Affix> decode_affixes(const Value& value) {
  std::vector<Affix> affixes;
  for (const Value& item : value.items()) affixes.push_back(decode_choice(item, {kSourceLanguage, kTargetLanguage}));
  return affixes;
}

std::map<std::string, std::int64_t> decode_ids_by_name(const Value& value) {
  std::map<std::string, std::int64_t> result;
  for (const auto& [name, id] : value.members()) result[name] = id.integer();
  return result;
}

std::optional<Languages> decode_languages(const Value& value) {
  if (value.is_null()) return std::nullopt;
  value.fields({"source", "target", "source_default", "target_default", "in_text"}, {"marker"});
  Languages languages{decode_ids_by_name(value["source"]), decode_ids_by_name(value["target"]),
                      decode_optional_text(value["source_default"]), decode_optional_text(value["target_default"]),
                      value["in_text"].boolean()};
  if (value.has("marker")) {
    const auto parts = value["marker"].items(2);
    languages.marker = {parts[0].text(), parts[1].text()};
  }
  return languages;
}

AddedToken decode_added_token(const Value& value) {
  value.fields({"content", "id"}, {"special", "lstrip", "rstrip", "single_word", "normalized"});
  const auto flag = [&](const char* name) { return value.has(name) && value[name].boolean(); };
  return {value["content"].text(), value["id"].integer(), flag("special"),   flag("lstrip"),
          flag("rstrip"),          flag("single_word"),   flag("normalized")};
}

std::optional<AddedTokens> decode_added(const Value& value) {
  if (value.is_null()) return std::nullopt;
  value.fields({"tokens", "rules"}, {"spaces", "prefix"});
  AddedTokens added;
  for (const Value& token : value["tokens"].items()) added.tokens.push_back(decode_added_token(token));
  added.rules = value["rules"].literal({"tokenizers", "python"});
  if (value.has("spaces")) added.spaces = value["spaces"].literal({"dropped", "kept", "kept_before_normalized"});
  if (value.has("prefix")) added.prefix = value["prefix"].literal({"always", "first"});
  return added;
}

TokenizerDescription decode_tokenizer(const Value& value) {
  value.fields({"kind", "source", "target", "source_prefix", "source_suffix", "target_prefix", "languages"},
               {"added", "prompt", "score_sums"});
  return {value["kind"].literal({"sentencepiece", "tokenizers", "bytes", "none"}),
          decode_side(value["source"]),
          decode_side(value["target"]),
          decode_affixes(value["source_prefix"]),
          decode_affixes(value["source_suffix"]),
          decode_affixes(value["target_prefix"]),
          decode_languages(value["languages"]),
          value.has("added") ? decode_added(value["added"]) : std::nullopt,
          value.has("prompt") && value["prompt"].boolean(),
          value.has("score_sums") ? value["score_sums"].literal({"float64", "float32"}) : "float64"};
}

std::optional<Verification> decode_verification(const Value& value) {
  if (value.is_null()) return std::nullopt;
  // Bundles of older versions have the flag `fused` instead of `engines`.
  const bool has_flag = value.has("fused") && value["fused"].is_boolean() && !value.has("engines");
  value.fields({"passed", "sentences", "token_identical", "batch_identical", "max_logit_error"},
               {has_flag ? "fused" : "engines"});
  Verification result{value["passed"].boolean(),          value["sentences"].integer(),
                      value["token_identical"].integer(), value["batch_identical"].integer(),
                      value["max_logit_error"].number(),  {}};
  if (value.has("engines")) {
    for (const Value& engine : value["engines"].items()) result.engines.push_back(engine.text());
  } else {
    result.engines.emplace_back("ort");
    if (has_flag && value["fused"].boolean()) result.engines.emplace_back("fused");
  }
  return result;
}

std::int64_t decode_integer(const Value& value) { return value.integer(); }
double decode_number(const Value& value) { return value.number(); }
bool decode_flag(const Value& value) { return value.boolean(); }
std::string decode_text(const Value& value) { return value.text(); }

template <typename Decode>
auto decode_all(const Value& value, const Decode& decode) {
  std::vector<decltype(decode(value))> result;
  for (const Value& item : value.items()) result.push_back(decode(item));
  return result;
}

Ids decode_ids(const Value& value) { return decode_all(value, decode_integer); }

std::string decode_early_stopping(const Value& value) {
  if (value.is_boolean()) return value.boolean() ? "true" : "false";
  if (value.is_text()) return value.literal({"never"});
  value.refuse("true or false or a string");
}

Generation decode_generation(const Value& value) {
  value.fields({}, {"beam",
                    "length_penalty",
                    "early_stopping",
                    "repetition_penalty",
                    "no_repeat_ngram",
                    "bad_words",
                    "suppress",
                    "begin_suppress",
                    "end_ids",
                    "forced_end",
                    "renormalize",
                    "sample",
                    "temperature",
                    "top_k",
                    "top_p",
                    "min_p",
                    "min_length",
                    "max_length",
                    "replace_unknowns",
                    "unsupported"});
  const auto read = [&value](auto& setting, const char* name, const auto& decode) {
    if (value.has(name) && !value[name].is_null()) setting = decode(value[name]);
  };
  Generation result;
  read(result.beam, "beam", decode_integer);
  read(result.length_penalty, "length_penalty", decode_number);
  read(result.early_stopping, "early_stopping", decode_early_stopping);
  read(result.repetition_penalty, "repetition_penalty", decode_number);
  read(result.no_repeat_ngram, "no_repeat_ngram", decode_integer);
  read(result.bad_words, "bad_words", [](const Value& words) { return decode_all(words, decode_ids); });
  read(result.suppress, "suppress", decode_ids);
  read(result.begin_suppress, "begin_suppress", decode_ids);
  read(result.end_ids, "end_ids", decode_ids);
  read(result.forced_end, "forced_end", decode_integer);
  read(result.renormalize, "renormalize", decode_flag);
  read(result.sample, "sample", decode_flag);
  read(result.temperature, "temperature", decode_number);
  read(result.top_k, "top_k", decode_integer);
  read(result.top_p, "top_p", decode_number);
  read(result.min_p, "min_p", decode_number);
  read(result.min_length, "min_length", decode_integer);
  read(result.max_length, "max_length", decode_integer);
  read(result.replace_unknowns, "replace_unknowns", decode_flag);
  if (value.has("unsupported")) result.unsupported = decode_all(value["unsupported"], decode_text);
  return result;
}

std::vector<std::pair<std::int64_t, std::int64_t>> decode_heads(const Value& value) {
  std::vector<std::pair<std::int64_t, std::int64_t>> heads;
  for (const Value& item : value.items()) {
    const auto pair = item.items(2);
    heads.emplace_back(pair[0].integer(), pair[1].integer());
  }
  return heads;
}

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

Parameters decode_parameters(const Value& value) {
  value.fields({"architecture", "tensors"});
  const Value architecture = value["architecture"];
  architecture.fields({"norm", "activation", "embedding_scale", "layer_norm_epsilon"}, {"norm_kind"});
  Parameters parameters{{architecture["norm"].literal({"post", "pre", "post_final"}),
                         architecture["activation"].literal({"relu", "gelu", "gelu_tanh", "silu"}),
                         architecture["embedding_scale"].number(), architecture["layer_norm_epsilon"].number(),
                         architecture.has("norm_kind") ? architecture["norm_kind"].literal({"layer", "rms"}) : "layer"},
                        {}};
  for (const Value& tensor : value["tensors"].items()) parameters.tensors.push_back(decode_parameter(tensor));
  return parameters;
}

Manifest decode(const Value& value) {
  value.fields({"format_version", "made_by", "model", "tokens", "dimensions", "precision", "graphs", "tokenizer",
                "generation", "files", "verification", "sha256"},
               {"alignment_heads", "parameters", "shortlist", "frame_rate", "external_encoder"});
  Manifest manifest;
  manifest.format_version = value["format_version"].integer();
  manifest.made_by = decode_made_by(value["made_by"]);
  manifest.model = decode_model(value["model"]);
  manifest.tokens = decode_tokens(value["tokens"]);
  manifest.dimensions = decode_dimensions(value["dimensions"]);
  manifest.precision = decode_precision(value["precision"]);
  for (const Value& graph : value["graphs"].items()) manifest.graphs.push_back(decode_graph(graph));
  manifest.tokenizer = decode_tokenizer(value["tokenizer"]);
  manifest.generation = decode_generation(value["generation"]);
  for (const auto& [name, entry] : value["files"].members()) {
    entry.fields({"bytes", "sha256"});
    manifest.files[name] = {entry["bytes"].integer(), entry["sha256"].text()};
  }
  manifest.verification = decode_verification(value["verification"]);
  if (value.has("alignment_heads")) manifest.alignment_heads = decode_heads(value["alignment_heads"]);
  if (value.has("parameters") && !value["parameters"].is_null()) {
    manifest.parameters = decode_parameters(value["parameters"]);
  }
  if (value.has("shortlist") && !value["shortlist"].is_null()) manifest.shortlist = value["shortlist"].text();
  if (value.has("frame_rate") && !value["frame_rate"].is_null()) manifest.frame_rate = value["frame_rate"].number();
  if (value.has("external_encoder") && !value["external_encoder"].is_null()) {
    manifest.external_encoder = value["external_encoder"].text();
  }
  manifest.sha256 = value["sha256"].text();
  return manifest;
}

// Check the version first, since newer formats may differ in everything else.
void check_version(const Json& value, const std::string& file) {
  const auto found = value.find("format_version");
  if (found == value.end() || !found->is_number_integer() || found->get<std::int64_t>() < 1) {
    throw BundleError(file + " has no usable format_version: it is not the manifest of a bundle");
  }
  const auto version = found->get<std::int64_t>();
  if (version > kFormatVersion) {
    throw BundleError(file + " has format_version " + std::to_string(version) + ", but this txport reads up to " +
                      std::to_string(kFormatVersion) +
                      ": install a newer txport or export the bundle again with this one");
  }
}

void check_own_hash(std::string_view data, const Json& value, const std::string& file) {
  const auto found = value.find("sha256");
  if (found == value.end() || !found->is_string() || !is_hash(found->get<std::string>())) {
    throw BundleError(file + " lacks the field 'sha256' (64 lower-case hexadecimal digits): it is incomplete");
  }
  const auto listed_hash = found->get<std::string>();
  std::string zeroed(data);
  if (const auto start = zeroed.rfind(listed_hash); start != std::string::npos) {
    zeroed.replace(start, 64, std::string(64, '0'));
  }
  if (sha256(zeroed) != listed_hash) {
    throw BundleError(file + " was changed after it was written (its own sha256 differs): get the bundle again");
  }
}

// Describe a directory without a manifest and the command for it, in the words of `tx-translate`.
std::string description_of(const fs::path& directory) {
  std::error_code ignored;
  const std::string name = (directory / ".").parent_path().filename().string();
  const bool run = name.size() > 4 && name.compare(name.size() - 4, 4, ".run") == 0;
  if (run && fs::is_regular_file(directory / "recipe.json", ignored)) {
    return " is the directory of a training run: tx-export makes a bundle of the checkpoint beside it";
  }
  Json config;
  try {
    config = Json::parse(read_file(directory / "config.json", kLargestFile), nullptr, false);
  } catch (const std::system_error&) {  // there is none
    config = nullptr;
  }
  if (config.contains("format_version")) {
    return " is a checkpoint of txport already: tx-export makes a bundle of it";
  }
  if (config.contains("model_type") || config.contains("architectures")) {
    return " is a Hugging Face model: tx-import makes a checkpoint of it, and tx-export a bundle of that";
  }
  const bool is_package = fs::is_regular_file(directory / "metadata.json", ignored);
  if (is_package && fs::is_regular_file(directory / "model" / "model.bin", ignored)) return kArgosPackage;
  if (fs::is_regular_file(directory / "model.bin", ignored)) {
    return " is a model in CTranslate2's format: tx-get makes a bundle of it";
  }
  return " has no manifest.json: it is not a bundle, or an incomplete copy of one";
}

// Return the bytes of a manifest; at most kLargestFile + 1 bytes of a larger file.
std::string manifest_of(const Bundle& bundle) {
  if (!bundle.is_directory()) {
    if (!bundle.has(kManifestName)) {
      throw BundleError(bundle.name() + " has no manifest.json: it is not a bundle, or an incomplete copy of one");
    }
    return std::string(bundle.view(kManifestName).substr(0, kLargestFile + 1));
  }
  std::error_code ignored;
  if (!fs::is_directory(bundle.directory(), ignored)) {
    const bool exists = fs::exists(bundle.directory(), ignored);
    throw BundleError(bundle.name() + (exists ? " is not a directory" : " does not exist") +
                      ": give a directory of tx-export or a file of tx-pack");
  }
  const fs::path manifest = bundle.directory() / kManifestName;
  const fs::file_status status = fs::status(manifest, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) {  // a named pipe may never open
    throw BundleError(bundle.name(kManifestName) + " is not a file: the bundle is damaged, copy or export it again");
  }
  try {
    return read_file(manifest, kLargestFile + 1);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::no_such_file_or_directory) {
      throw BundleError(bundle.name() + description_of(bundle.directory()));
    }
    throw BundleError(bundle.name(kManifestName) + " cannot be read: " + error.code().message());
  }
}

}  // namespace

Manifest Manifest::load(const Bundle& bundle) {
  Manifest manifest = parse(manifest_of(bundle), bundle.name(kManifestName));
  manifest.check_files(bundle, [](const std::string&) { return false; });
  return manifest;
}

Manifest Manifest::parse(std::string_view data, const std::string& file) {
  if (data.size() > kLargestFile) {
    throw BundleError(file + " is larger than " + std::to_string(kLargestFile) + " bytes: it is not a manifest");
  }
  const Json json = core::parse(data, file);
  check_version(json, file);
  check_own_hash(data, json, file);
  Manifest manifest = decode(Value(json, file));
  check_rules(manifest, file);
  manifest.text = data;
  return manifest;
}

void Manifest::check_files(const Bundle& bundle, const std::function<bool(const std::string&)>& hashes) const {
  for (const auto& [name, entry] : files) {
    const bool for_people = name == "README.md" || name == "verification.json";  // not read by runtimes
    if (for_people && !bundle.has(name)) continue;
    bundle.check(name, entry, hashes(name));
  }
}

ModelFile Manifest::model_file(const Bundle& bundle) const {
  ModelFile file = model_file(fs::path(bundle.name()));
  file.data = bundle.lent(kWeightsName, file.bytes);
  return file;
}

const Graph& Manifest::encoder() const {
  const Graph* graph = find(kEncoder, "standard");
  if (graph == nullptr) throw std::logic_error("a manifest without an encoder was not checked");
  return *graph;
}

const Graph& Manifest::step(const std::string& lowering) const {
  return *find(kStep, usable_lowerings(lowering).front());
}

const Graph* Manifest::optional_graph(const std::string& role) const { return find(role, "standard"); }

std::vector<std::string> Manifest::lowerings() const {
  std::vector<std::string> result;
  for (const char* name : kLowerings) {
    if (find(kStep, name) != nullptr) result.emplace_back(name);
  }
  return result;
}

std::vector<std::string> Manifest::usable_lowerings(const std::string& requested) const {
  std::vector<std::string> available = lowerings();
  if (requested.empty()) return available;
  if (std::find(kLowerings.begin(), kLowerings.end(), requested) == kLowerings.end()) {
    throw InputError("lowering " + quote(requested) + " is unknown: use " + joined(kLowerings));
  }
  if (std::find(available.begin(), available.end(), requested) == available.end()) {
    throw BundleError("the bundle has no lowering " + quote(requested) + ", only " + joined(available) +
                      ": choose one of these");
  }
  return {requested};
}

const Graph* Manifest::find(const std::string& role, const std::string& lowering) const {
  const auto found = std::find_if(graphs.begin(), graphs.end(),
                                  [&](const Graph& graph) { return graph.role == role && graph.lowering == lowering; });
  return found == graphs.end() ? nullptr : &*found;
}

}  // namespace txport::core
