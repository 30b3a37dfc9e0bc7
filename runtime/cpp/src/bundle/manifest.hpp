// manifest.json: all facts about a bundle that a runtime may rely on.
//
// The structs mirror the file field by field, as txport.runtime.bundle.manifest does in Python.
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
#include "engine.hpp"

namespace txport::core {

inline constexpr std::int64_t kFormatVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kGoldenName = "golden.json";
inline constexpr const char* kWeightsName = "onnx/weights.bin";
inline constexpr const char* kNoParameters = "its manifest has no table of parameters (export it again)";
// Of decoder steps, in the order in which ONNX Runtime should try them.
inline constexpr std::array kLowerings{"ort", "scatter", "tensorscatter"};

struct MadeBy {
  std::string name;
  std::string version;
};

// The sizes that a named dimension may take, and the one that engines are tuned for.
struct Range {
  std::int64_t min = 0;
  std::int64_t opt = 0;
  std::int64_t max = 0;
};

// Rows of a batch, source tokens (eos included), target tokens (eos included: the cache length).
struct Dimensions {
  Range batch;
  Range source;
  Range target;
};

// Nodes of one graph that compute in float32 although the graph is float16, and why.
struct Island {
  std::string graph;
  std::vector<std::string> nodes;
  std::string reason;
};

// What the graphs compute in (inputs, outputs, caches, activations), the type of weights (int8, or the same), and the
// nodes that stay in float32.
struct Precision {
  std::string type;
  std::string weights;
  std::vector<Island> islands;
};

// A size, or the name of a dimension.
using Size = std::variant<std::int64_t, std::string>;

// An input or output of a graph. An optional output need not be bound, and is not bound if this version does not
// support it.
struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<Size> shape;
  bool optional = false;
};

// One ONNX file. Each alias is an (input, output) pair that shares one buffer. An optional graph is left alone by
// versions that do not support its role.
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

// A model of SentencePiece, and the pieces in the order of the model's ids where those are not SentencePiece's own.
struct TokenizerSide {
  std::string model;
  std::optional<std::string> vocabulary;
};

inline constexpr const char* kSourceLanguage = "source_language";
inline constexpr const char* kTargetLanguage = "target_language";

// An id, or one of the words above: the id of the language that was chosen.
using Affix = std::variant<std::int64_t, std::string>;

inline const std::pair<std::string, std::string> kMariansMarker{">>", "<<"};

// Languages that can be chosen, by name, each with the id that selects it in the model.
struct Languages {
  std::map<std::string, std::int64_t> source;
  std::map<std::string, std::int64_t> target;
  std::optional<std::string> source_default;
  std::optional<std::string> target_default;
  bool in_text = false;  // a source text may begin with its target language, between the parts of `marker`
  // Between the default's, Marian's, every name is a language, and unk stands for an unknown one.
  std::pair<std::string, std::string> marker = kMariansMarker;
};

// A token that was added to a tokenizer, which a text contains as a whole.
struct AddedToken {
  std::string content;
  std::int64_t id = 0;
  bool special = false;      // answers do not show it
  bool lstrip = false;       // it takes the white space before it
  bool rstrip = false;       // it takes the white space after it
  bool single_word = false;  // it is not a part of a longer word
  bool normalized = false;   // it is searched for in the normalised text
};

// Added tokens, and how Hugging Face's tokenizer of the model treats the text around them; see
// txport.runtime.bundle.tokenizer_schema.
struct AddedTokens {
  std::vector<AddedToken> tokens;
  std::string rules;  // tokenizers or python
  std::string spaces = "dropped";
  std::string prefix = "always";
};

// The tokenizer and the affixes around the ids of a text. Kind "none" works on ids only; kind "tokenizers" is a
// tokenizer.json, of which C++ has byte-level BPE; of kind "bytes" an id is that of a byte of UTF-8.
struct TokenizerDescription {
  static constexpr std::int64_t kFirstByte = 3;  // the id of the byte 0 in the kind "bytes"

  std::string kind;
  std::optional<TokenizerSide> source;
  std::optional<TokenizerSide> target;
  std::vector<Affix> source_prefix;
  std::vector<Affix> source_suffix;
  std::vector<Affix> target_prefix;  // the forced beginning of each answer
  std::optional<Languages> languages;
  std::optional<AddedTokens> added;  // of the kinds "sentencepiece" and "bytes"
};

// The result of comparing the bundle with PyTorch at export; verification.json has the details.
struct Verification {
  bool passed = false;
  std::int64_t sentences = 0;
  std::int64_t token_identical = 0;
  std::int64_t batch_identical = 0;
  double max_logit_error = 0;
  std::vector<std::string> engines;  // what was compared: "ort" in each lowering, and "fused" where that can run it
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
  std::optional<std::int64_t> min_length;  // tokens to make before an answer may end
  std::optional<std::int64_t> max_length;  // the maximum number of tokens to make
  std::vector<std::string> unsupported;    // settings that this search does not have, as "name = value"
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
  // (layer, head) of cross-attention that point from a target token to its source; empty if none are known.
  std::vector<std::pair<std::int64_t, std::int64_t>> alignment_heads;
  std::optional<Parameters> parameters;  // none in bundles of older versions
  std::optional<std::string> shortlist;  // the file of Shortlist
  std::optional<double> frame_rate;      // feature vectors per second
  std::string sha256;
  std::string text;  // the file as it was read

  // Read and validate manifest.json, and check that each listed file is there, of the listed size.
  // Throws BundleError: there is no bundle, or it is of a newer format, damaged, incomplete or contradicts itself.
  static Manifest load(const Bundle& bundle);

  // Decode and validate the bytes of a manifest; `file` is its name in messages. Throws BundleError, as `load`, but
  // for faults that only the bundle shows.
  static Manifest parse(std::string_view data, const std::string& file = kManifestName);

  // Check that every listed file is inside the bundle, of the listed size and, if `hashes` returns true for its name,
  // of the listed hash. Throws BundleError: the first fault that was found.
  void check_files(const Bundle& bundle, const std::function<bool(const std::string&)>& hashes) const;

  Limits limits() const { return {dimensions.batch.max, dimensions.source.max, dimensions.target.max}; }

  // The bundle as the fused engine reads it. Throws EngineError: it has no parameters.
  ModelFile model_file(const Bundle& bundle) const;
  // Of a directory.
  ModelFile model_file(const std::filesystem::path& directory) const;

  // The graph of a loaded manifest, which exists by its rules.
  const Graph& encoder() const;
  // Throws BundleError: the bundle does not have this lowering.
  const Graph& step(const std::string& lowering) const;
  // The graph of kDecoder or kEncoderAttention; null if the bundle has none.
  const Graph* optional_graph(const std::string& role) const;

  // Those of the bundle's decoder steps, in the order of kLowerings.
  std::vector<std::string> lowerings() const;
  // The lowerings to try, in order: all, or `asked` alone unless it is empty.
  // Throws InputError: the lowering is unknown. BundleError: the bundle does not have it.
  std::vector<std::string> usable_lowerings(const std::string& asked) const;

 private:
  const Graph* find(const std::string& role, const std::string& lowering) const;
};

}  // namespace txport::core
