#include "fused/model.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>

#include "bundle/files.hpp"
#include "errors.hpp"
#include "system/system.hpp"

namespace txport::core::fused {

namespace {

// Maximum ratio of packed weights to the weights of the bundle: float16 may become float32, and narrow heads are
// padded. A larger ratio means that tensors share data in the file, so that a small file could take any amount of
// memory.
constexpr std::size_t kMaxGrowth = 8;
constexpr std::size_t kAnyGrowth = std::size_t{64} << 20;  // bytes of packed weights that are allowed for any file

// Minimum size of a file whose float16 weights stay float16. Smaller ones fit the caches of a core, from which float32
// is read as fast, and needs no conversion.
constexpr std::size_t kMinFloat16 = std::size_t{4} << 20;

std::size_t size_of(std::int64_t size) { return static_cast<std::size_t>(size); }

// Refuse weights that some instruction sets cannot use.
void refuse_unsound(const ModelFile& file) {
  throw BundleError(text_of(file.weights) +
                    " has weights that are not finite numbers, or int8 weights of -128: export the bundle again");
}

// Tensors of the bundle by name.
class Tensors {
 public:
  Tensors(const ModelFile& file, const std::byte* data) : file_(file) {
    for (const Parameter& tensor : file.parameters.tensors) views_[tensor.name] = view(tensor, data);
  }

  bool has(const std::string& name) const { return views_.count(name) == 1; }
  // Return the view of a tensor; an empty view if there is none.
  View find(const std::string& name) const { return has(name) ? views_.at(name) : View{}; }
  const View& operator[](const std::string& name) const { return views_.at(name); }
  // Return a vector, or the first rows of a matrix, as float32 [rows, columns padded with zeros]; empty if there is
  // none.
  std::vector<float> floats(const std::string& name, std::int64_t rows = 1) const {
    if (!has(name)) return {};
    std::vector<float> result = floats_of(views_.at(name), size_of(rows));
    if (!std::all_of(result.begin(), result.end(), [](float value) { return std::isfinite(value); }))
      refuse_unsound(file_);
    return result;
  }
  Norm norm(const std::string& name) const { return {floats(name + ".weight"), floats(name + ".bias")}; }
  Linear linear(const std::string& name) const { return {views_.at(name + ".weight"), find(name + ".bias")}; }

 private:
  const ModelFile& file_;
  std::map<std::string, View> views_;

  static View view(const Parameter& tensor, const std::byte* data) {
    const Kind kind = tensor.dtype == "int8" ? Kind::int8 : tensor.dtype == "float16" ? Kind::float16 : Kind::float32;
    View view;
    view.data = data + tensor.offset;
    view.kind = kind;
    view.rows = tensor.shape.size() == 2 ? size_of(tensor.shape[0]) : 1;
    view.columns = size_of(tensor.shape.back());
    view.row_stride = size_of(tensor.strides.front());
    view.column_stride = size_of(tensor.strides.back());
    if (tensor.scales) view.scales = data + *tensor.scales;
    return view;
  }
};

// Return the relative positions of a stack for up to `most` tokens; empty if the stack has no table. A row of the table
// is a distance. The table of the encoder has distances in both directions, with 0 in the middle. That of the decoder
// has distances to keys before the query, with 0 first.
PositionBias position_bias(const Tensors& tensors, const std::string& stack, std::size_t heads, std::size_t most) {
  const std::string name = stack + "_positions.weight";
  if (!tensors.has(name)) return {};
  const View& view = tensors[name];
  const std::vector<float> table = tensors.floats(name, static_cast<std::int64_t>(view.rows));
  const bool causal = stack == "decoder";
  PositionBias bias{{}, view.columns / heads, heads, 2 * most + kPanel, most - 1};
  bias.values.resize(view.columns * bias.stride);
  for (std::size_t distance = 0; distance < most; ++distance) {
    for (std::size_t column = 0; column < view.columns; ++column) {
      const auto at = [&](std::size_t row) { return table[row * padded(view.columns) + column]; };
      float* zero = bias.values.data() + column * bias.stride + bias.zero;
      *(zero - distance) = at(causal ? distance : view.rows / 2 - distance);
      if (!causal) *(zero + distance) = at(view.rows / 2 + distance);
    }
  }
  return bias;
}

Activation activation_of(const std::string& name) {
  if (name == "relu") return Activation::relu;
  if (name == "silu") return Activation::silu;
  return name == "gelu" ? Activation::gelu : Activation::gelu_tanh;
}

// List of the matrices to pack, in the order in which they are used.
class Plans {
 public:
  Plans(const ModelFile& file, const Tensors& tensors) : file_(file), tensors_(tensors) {}

  Plan& whole(Matrix& matrix, const Linear& linear) {
    plans_.push_back({&matrix, {linear}, {1, linear.weight.rows}, {1, linear.weight.columns}});
    return plans_.back();
  }
  void whole(Matrix& matrix, const std::string& name) { whole(matrix, tensors_.linear(name)); }
  // Add the projections of an attention with these names, whose outputs are heads, as one matrix.
  void to_heads(Matrix& matrix, const Groups& heads, const std::string& attention,
                std::initializer_list<const char*> names) {
    plans_.push_back({&matrix, {}, heads, {}});
    for (const char* name : names) plans_.back().parts.push_back(tensors_.linear(attention + name));
    plans_.back().inputs = {1, plans_.back().parts.front().weight.columns};
  }
  void from_heads(Matrix& matrix, const Groups& heads, const std::string& name) {
    whole(matrix, name), plans_.back().inputs = heads;
  }
  template <class Layer>
  void feed_forward(Layer& layer, const std::string& name) {
    if (tensors_.has(name + ".gate.weight")) whole(layer.gate, name + ".gate");
    whole(layer.inner, name + ".inner");
    whole(layer.outer, name + ".outer");
  }

  // Pack all matrices into one block.
  Block pack(Team& team) {
    const std::size_t file_bytes = size_of(file_.bytes);
    Cursor size(nullptr);
    for (Plan& plan : plans_) {
      plan.widened = file_bytes < kMinFloat16;
      lay_out(plan, size);
    }
    if (size.bytes() > kAnyGrowth && (size.bytes() - kAnyGrowth) / kMaxGrowth > file_bytes) {
      throw BundleError("the " + std::to_string(file_bytes) + " bytes of " + file_.weights.string() + " would become " +
                        std::to_string(size.bytes()) + " in memory, since tensors share them: export the bundle again");
    }
    Block block(size.bytes());
    Cursor at(block.data());
    for (const Plan& plan : plans_) lay_out(plan, at);
    std::atomic<bool> sound{true};
    Team::Lease lease(team, kMaxThreads);
    lease.run([&](const Member& member) {
      for (const Plan& plan : plans_) {
        const Member::Range panels = member.share(plan.matrix->panels);
        if (!fused::pack(plan, panels.begin, panels.end)) sound = false;
      }
    });
    if (!sound) refuse_unsound(file_);
    return block;
  }

 private:
  const ModelFile& file_;
  const Tensors& tensors_;
  std::vector<Plan> plans_;
};

// Return the norms around the sublayers of a stack. `names`: the sublayers of each layer.
std::vector<Norm> sublayer_norms(const Tensors& tensors, const std::string& stack, std::size_t layers, bool norm_first,
                                 std::initializer_list<const char*> names) {
  std::vector<Norm> result;
  if (!norm_first) result.emplace_back();
  for (std::size_t i = 0; i < layers; ++i) {
    for (const char* name : names) {
      result.push_back(tensors.norm(stack + "." + std::to_string(i) + "." + name + "_residual.norm"));
    }
  }
  if (norm_first) result.push_back(tensors.norm(stack + "_norm"));
  return result;
}

// Minimum ratio of the vocabulary to the selected columns for which columns are copied. Copying a column reads as many
// bytes as multiplying by it, and only some rows may need it.
constexpr std::size_t kMinSaved = 2;

}  // namespace

Model::Model(const ModelFile& file, Team& team)
    : d(size_of(file.sizes.d_model)),
      width(padded(d)),
      heads{size_of(file.sizes.heads), size_of(file.sizes.head_dim)},
      all(heads.count * heads.width()),
      vocabulary(size_of(file.sizes.target_vocabulary)),
      features(size_of(file.sizes.feature_size.value_or(0))),
      epsilon(static_cast<float>(file.parameters.architecture.layer_norm_epsilon)),
      embedding_scale(static_cast<float>(file.parameters.architecture.embedding_scale)),
      norm_first(file.parameters.architecture.norm == "pre"),
      activation(activation_of(file.parameters.architecture.activation)),
      encoder(size_of(file.sizes.encoder_layers)),
      decoder(size_of(file.sizes.decoder_layers)) {
  std::optional<MappedFile> mapped;
  if (file.data == nullptr) mapped.emplace(file.weights, size_of(file.bytes));
  const Tensors tensors(file, mapped ? mapped->data() : file.data.get());
  const std::size_t count = size_of(file.sizes.encoder_heads);
  encoder_heads = heads;
  if (!encoder.empty()) encoder_heads = {count, tensors["encoder.0.attention.query.weight"].rows / count};
  encoder_all = encoder_heads.count * encoder_heads.width();
  int8_caches =
      file.precision == "int8" && std::max({size_of(file.limits.source), size_of(file.limits.target),
                                            size_of(file.sizes.head_dim), encoder_heads.size}) <= kMaxInt8Inputs;
  const std::string target_tokens = "target_embedding.tokens.weight";
  const std::string source_tokens = "source_embedding.tokens.weight";
  const std::string feature_layer = "source_embedding.projection";
  Plans plans(file, tensors);
  if (tensors.has(feature_layer + ".weight")) plans.whole(feature_projection, feature_layer);
  for (std::size_t i = 0; i < encoder.size(); ++i) {
    const std::string name = "encoder." + std::to_string(i);
    plans.to_heads(encoder[i].query_key_value, encoder_heads, name + ".attention.", {"query", "key", "value"});
    plans.from_heads(encoder[i].output, encoder_heads, name + ".attention.output");
    plans.feed_forward(encoder[i], name + ".feed_forward");
  }
  for (std::size_t i = 0; i < decoder.size(); ++i) {
    const std::string name = "decoder." + std::to_string(i);
    plans.to_heads(decoder[i].query_key_value, heads, name + ".self_attention.", {"query", "key", "value"});
    plans.from_heads(decoder[i].self_output, heads, name + ".self_attention.output");
    plans.to_heads(decoder[i].query, heads, name + ".cross_attention.", {"query"});
    plans.to_heads(decoder[i].key_value, heads, name + ".cross_attention.", {"key", "value"});
    plans.from_heads(decoder[i].cross_output, heads, name + ".cross_attention.output");
    plans.feed_forward(decoder[i], name + ".feed_forward");
  }
  const bool tied = !tensors.has("projection.weight");
  const Linear last{tensors[tied ? target_tokens : "projection.weight"], tensors.find("projection.bias")};
  Plan& plan = plans.whole(projection, last);
  plan.padding = -std::numeric_limits<float>::infinity();  // padding is never the largest logit
  // A smaller int8 projection fits the caches, where its products take as long as reading its copy.
  constexpr std::size_t kMinRead = std::size_t{1} << 21U;  // bytes
  const bool small = last.weight.kind == Kind::int8 && last.weight.rows * last.weight.columns < kMinRead;
  plan.bounds = small ? nullptr : &bounds;
  if (!tied) plans.whole(target.tokens, {tensors[target_tokens], {}});
  if (tensors.has(source_tokens)) plans.whole(source.tokens, {tensors[source_tokens], {}});
  matrices_ = plans.pack(team);
  if (tied) target.tokens = projection;
  if (!tensors.has(source_tokens)) source.tokens = target.tokens;
  for (const EncoderLayer& layer : encoder) {
    ffn = std::max(ffn, layer.inner.outputs());
    gated = gated || layer.gate.panels > 0;
  }
  for (const DecoderLayer& layer : decoder) {
    ffn = std::max(ffn, layer.inner.outputs());
    gated = gated || layer.gate.panels > 0;
  }
  // Matrices are packed in this order. A step reads few panels of a float32 projection, and all other matrices except
  // the projections to keys and values of cross-attention, which are small enough to be counted.
  const std::uint8_t* end = projection.panel(projection.int8() ? projection.panels : 0);
  step_bytes = static_cast<std::size_t>(end - decoder.front().query_key_value.data);
  if (!encoder.empty()) {
    const auto& [query_key_value, output, gate, inner, outer] = encoder.front();
    for (const Matrix* each : {&query_key_value, &output, &gate, &inner, &outer}) {
      layer_bytes += each->panels * each->stride;
    }
  }

  encoder_norms = sublayer_norms(tensors, "encoder", encoder.size(), norm_first, {"attention", "feed_forward"});
  decoder_norms = sublayer_norms(tensors, "decoder", decoder.size(), norm_first,
                                 {"self_attention", "cross_attention", "feed_forward"});
  if (!norm_first) encoder_final = tensors.norm("encoder_norm");
  if (!norm_first) decoder_final = tensors.norm("decoder_norm");
  encoder_bias = position_bias(tensors, "encoder", encoder_heads.count, size_of(file.limits.source));
  const auto rotation = [&](Rotation& of, const std::string& name, std::int64_t most) {
    of.cosines = tensors.floats(name + "_rotations.cosines", most);
    of.sines = tensors.floats(name + "_rotations.sines", most);
  };
  rotation(encoder_rotation, "encoder", file.limits.source);
  rotation(decoder_rotation, "decoder", file.limits.target);
  decoder_bias = position_bias(tensors, "decoder", heads.count, size_of(file.limits.target));
  const auto embed = [&](Embedding& embedding, const std::string& name, std::int64_t most) {
    embedding.positions = tensors.floats(name + ".positions", most);
    embedding.next = embedding.positions.empty() ? 0 : width;
    if (embedding.positions.empty()) embedding.positions.resize(width);
    embedding.norm = tensors.norm(name + ".norm");
  };
  embed(source, "source_embedding", file.limits.source);
  embed(target, "target_embedding", file.limits.target);
}

Selection::Selection(const Model& model, const std::vector<Words>& lists)
    : model_(model), projection_(model.projection), bounds_(model.bounds) {
  std::vector<std::int32_t> columns(model.vocabulary, -1);
  std::size_t count = 0;
  bool gathered = true;
  for (const Words& words : lists) {
    gathered = gathered && words != nullptr;
    if (!gathered) break;
    for (const std::int32_t id : *words) {
      std::int32_t& column = columns[static_cast<std::size_t>(id)];
      if (column < 0) ++count;
      column = 0;
    }
  }
  gathered = gathered && count * kMinSaved <= model.vocabulary;
  for (std::size_t id = 0; id < columns.size() && gathered; ++id) {
    if (columns[id] < 0) continue;
    columns[id] = static_cast<std::int32_t>(ids_.size());
    ids_.push_back(static_cast<std::int32_t>(id));
  }
  for (const Words& words : lists) {
    const auto [at, is_new] = columns_.try_emplace(words);
    if (!is_new || !gathered || words->size() == count) continue;
    for (const std::int32_t id : *words) at->second.push_back(columns[static_cast<std::size_t>(id)]);
  }
  if (!gathered) return;
  if (projection_.int8()) bounds_ = {};  // so few columns that caches hold them
  memory_ = Block(lay_out(nullptr));
  lay_out(memory_.data());
}

void Selection::gather(const Member& member) const {
  const Member::Range mine = member.share(ids_.empty() ? 0 : projection_.panels);
  for (std::size_t p = mine.begin; p < mine.end; ++p) {
    gather_panel(model_.projection, ids_.data(), ids_.size(), p, projection_);
    if (bounds_.copy.panels > 0) gather_panel(model_.bounds, ids_.data(), ids_.size(), p, bounds_);
  }
}

Columns Selection::columns(const Words& words) const {
  if (words == nullptr) return {};
  const std::vector<std::int32_t>& of = ids_.empty() ? *words : columns_.at(words);
  return {of.data(), of.data() + of.size()};
}

std::size_t Selection::lay_out(std::byte* base) {
  Cursor at(base);
  projection_.panels = padded(ids_.size()) / kPanel;
  take_arrays(projection_, bounds_.copy.panels > 0 ? &bounds_ : nullptr, at);
  return at.bytes();
}

}  // namespace txport::core::fused
