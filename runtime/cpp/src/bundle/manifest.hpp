// manifest.json, which describes a bundle for runtimes.
//
// The structs mirror the file field by field. The Python twin is txport.runtime.bundle.manifest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bundle/bundle.hpp"
#include "bundle/parameters.hpp"
#include "ids.hpp"

namespace txport::core {

inline constexpr std::int64_t kFormatVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kGoldenName = "golden.json";
inline constexpr const char* kWeightsName = "onnx/weights.bin";
inline constexpr const char* kNoParameterTable = "its manifest has no table of parameters (export it again)";
// Lowerings of decoder steps, in the order in which ONNX Runtime tries them.
inline constexpr std::array kLowerings{"ort", "scatter", "tensorscatter"};

struct MadeBy {
  std::string name;
  std::string version;
};

// The range of a named dimension, and the size for which engines are tuned.
struct Range {
  std::int64_t min = 0;
  std::int64_t opt = 0;
  std::int64_t max = 0;
};

// Rows of a batch, source tokens including eos, and target tokens including eos (the cache length).
struct Dimensions {
  Range batch;
  Range source;
  Range target;
};

// Nodes of a float16 graph that compute in float32, with the reason.
struct Island {
  std::string graph;
  std::vector<std::string> nodes;
  std::string reason;
};

// The type of inputs, outputs, caches and activations of the graphs, the type of weights (int8 or the same), and the
// nodes that stay in float32.
struct Precision {
  std::string type;
  std::string weights;
  std::vector<Island> islands;
};

// A size or the name of a dimension.
using Size = std::variant<std::int64_t, std::string>;

// An input or output of a graph. Optional outputs need not be bound. Outputs that this version does not support are not
// bound.
struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<Size> shape;
  bool optional = false;
};

// One ONNX file. Each alias is an (input, output) pair that shares one buffer. Versions that do not support the role of
// an optional graph ignore the graph.
struct Graph {
  std::string name;
  std::string role;
  std::string lowering;
  bool optional = false;
  std::string file;
  std::map<std::string, std::int64_t> opsets;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::vector<std::pair<std::string, std::string>> aliases;
};

// A SentencePiece model, and optionally a vocabulary file, if the Transformer's ids differ from SentencePiece's.
struct TokenizerSide {
  std::string model;
  std::optional<std::string> vocabulary;
};

inline constexpr const char* kSourceLanguage = "source_language";
inline constexpr const char* kTargetLanguage = "target_language";

// An id, or one of the placeholders above for the id of the chosen language.
using Affix = std::variant<std::int64_t, std::string>;

inline const std::pair<std::string, std::string> kMariansMarker{">>", "<<"};

// Languages by name, with the id that selects each in the model.
struct Languages {
  std::map<std::string, std::int64_t> source;
  std::map<std::string, std::int64_t> target;
  std::optional<std::string> source_default;
  std::optional<std::string> target_default;
  bool in_text = false;  // a source text may begin with a marker for its target language
  // Start and end of the marker. With the default, Marian's marker, any name is accepted, and unknown languages become
  // unk.
  std::pair<std::string, std::string> marker = kMariansMarker;
};

// A token that was added to a tokenizer and is never split.
struct AddedToken {
  std::string content;
  std::int64_t id = 0;
  bool special = false;      // not part of decoded text
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool single_word = false;  // only matches as a whole word
  bool normalized = false;   // found in the normalised text
};

// Added tokens, and how the model's Hugging Face tokenizer treats the text around them; see
// txport.runtime.bundle.tokenizer_schema.
struct AddedTokens {
  std::vector<AddedToken> tokens;
  std::string rules;  // tokenizers or python
  std::string spaces = "dropped";
  std::string prefix = "always";
};

// The tokenizer and the affixes around the ids of a text. Kind "none" has no tokenizer and accepts only ids. Kind
// "tokenizers" is a tokenizer.json, of which C++ supports byte-level BPE. In kind "bytes", ids represent bytes of
// UTF-8.
struct TokenizerDescription {
  static constexpr std::int64_t kFirstByte = 3;  // id of the byte 0 in kind "bytes"

  std::string kind;
  std::optional<TokenizerSide> source;
  std::optional<TokenizerSide> target;
  std::vector<Affix> source_prefix;
  std::vector<Affix> source_suffix;
  std::vector<Affix> target_prefix;  // forced beginning of each translation
  std::optional<Languages> languages;
  std::optional<AddedTokens> added;    // for kinds "sentencepiece" and "bytes"
  bool prompt = false;                 // target_prefix does not count in the length of a hypothesis
  std::string score_sums = "float64";  // arithmetic of SentencePiece's unigram models
};

// The result of comparing the bundle with PyTorch at export; verification.json has the details.
struct Verification {
  bool passed = false;
  std::int64_t sentences = 0;
  std::int64_t token_identical = 0;
  std::int64_t batch_identical = 0;
  double max_logit_error = 0;
  std::vector<std::string> engines;  // engines compared: "ort" in each lowering, and "fused" if it supports the model
};

// The generation settings of the model (search/settings.hpp), for the option `generation`. Unset fields are
// empty.
struct Generation {
  std::optional<std::int64_t> beam;
  std::optional<double> length_penalty;
  std::optional<std::string> early_stopping;  // true, false or never
  std::optional<double> repetition_penalty;
  std::optional<std::int64_t> no_repeat_ngram;
  std::vector<Ids> bad_words;
  Ids suppress;
  Ids begin_suppress;
  Ids end_ids;
  std::optional<std::int64_t> forced_end;
  std::optional<bool> renormalize;
  std::optional<bool> sample;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<std::int64_t> min_length;  // minimum number of target tokens
  std::optional<std::int64_t> max_length;  // maximum number of target tokens
  std::optional<bool> replace_unknowns;
  std::vector<std::string> unsupported;  // settings that txport does not support, as "name = value"
};

struct Manifest {
  std::int64_t format_version = 0;
  MadeBy made_by;
  ModelSizes model;
  SpecialTokens tokens;
  Dimensions dimensions;
  Precision precision;
  std::vector<Graph> graphs;
  TokenizerDescription tokenizer;
  Generation generation;
  std::map<std::string, FileEntry> files;
  std::optional<Verification> verification;
  // (layer, head) of cross-attention heads that align target tokens with source tokens; empty if none are known.
  std::vector<std::pair<std::int64_t, std::int64_t>> alignment_heads;
  std::optional<Parameters> parameters;         // missing in bundles of older versions
  std::optional<std::string> shortlist;         // file name of the shortlist
  std::optional<double> frame_rate;             // feature vectors per second
  std::optional<std::string> external_encoder;  // name of the encoder whose states the bundle reads
  std::string sha256;
  std::string text;  // contents of the file

  // Read and validate manifest.json, and check that each listed file exists and has the listed size. Throws
  // BundleError: the bundle is missing, newer, damaged, incomplete or contradictory.
  static Manifest load(const Bundle& bundle);

  // Decode and validate the bytes of a manifest. `file` is its name in messages. Throws BundleError as `load` does,
  // except for faults of other files.
  static Manifest parse(std::string_view data, const std::string& file = kManifestName);

  // Check that every listed file is inside the bundle and has the listed size. If `hashes` returns true for its name,
  // also compare its hash. Throws BundleError with the first fault.
  void check_files(const Bundle& bundle, const std::function<bool(const std::string&)>& hashes) const;

  Limits limits() const { return {dimensions.batch.max, dimensions.source.max, dimensions.target.max}; }

  // Return the description of the model for the fused engine. Throws EngineError: the manifest has no parameters.
  ModelFile model_file(const Bundle& bundle) const;
  // The same, for a bundle in a directory.
  ModelFile model_file(const std::filesystem::path& directory) const;

  // Return the encoder graph, which every valid manifest has.
  const Graph& encoder() const;
  // Return the decoder step graph of a lowering. Throws BundleError: the bundle does not have this lowering.
  const Graph& step(const std::string& lowering) const;
  // Return the graph of an optional role; null if the bundle does not have it.
  const Graph* optional_graph(const std::string& role) const;

  // Return the lowerings of the bundle, in the order of kLowerings.
  std::vector<std::string> lowerings() const;
  // Return the lowerings to try, in order: all, or only `requested` if it is not empty. Throws InputError: the lowering
  // is unknown; BundleError: the bundle does not have it.
  std::vector<std::string> usable_lowerings(const std::string& requested) const;

 private:
  const Graph* find(const std::string& role, const std::string& lowering) const;
};

}  // namespace txport::core
