#include "fused/model.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>

#include "errors.hpp"

namespace txport::core::fused {

namespace {

std::size_t size_of(std::int64_t size) { return static_cast<std::size_t>(size); }

// The bundle's tensors by name.
class Tensors {
 public:
  Tensors(const Parameters& parameters, const std::byte* file) {
    for (const Parameter& tensor : parameters.tensors) views_[tensor.name] = view(tensor, file);
  }

  bool has(const std::string& name) const { return views_.count(name) == 1; }
  // An empty view if there is none.
  View find(const std::string& name) const { return has(name) ? views_.at(name) : View{}; }
  const View& operator[](const std::string& name) const { return views_.at(name); }
  Linear linear(const std::string& name) const { return {views_.at(name + ".weight"), find(name + ".bias")}; }

 private:
  std::map<std::string, View> views_;

  static View view(const Parameter& tensor, const std::byte* file) {
    View view;
    view.data = file + tensor.offset;
    view.kind = tensor.dtype == "int8" ? Kind::int8 : tensor.dtype == "float16" ? Kind::float16 : Kind::float32;
    const bool is_matrix = tensor.shape.size() == 2;
    view.rows = is_matrix ? size_of(tensor.shape[0]) : 1;
    view.columns = size_of(tensor.shape.back());
    view.row_stride = is_matrix ? size_of(tensor.strides[0]) : 0;
    view.column_stride = size_of(tensor.strides.back());
    if (tensor.scales) view.scales = file + *tensor.scales;
    return view;
  }
};

// Lists what is to be packed, in the order in which it is used.
class Plans {
 public:
  Plans(const Tensors& tensors, const Groups& heads) : tensors_(tensors), heads_(heads) {}

  void whole(Matrix& matrix, const Linear& linear, float padding = 0) {
    add({&matrix, {linear}, {1, linear.weight.rows}, {1, linear.weight.columns}, padding});
  }
  void whole(Matrix& matrix, const std::string& name) { whole(matrix, tensors_.linear(name)); }
  // To heads: attention's projections of these names.
  void to_heads(Matrix& matrix, const std::string& attention, std::initializer_list<const char*> names) {
    Plan plan{&matrix, {}, heads_, {1, heads_.count * heads_.size}};
    for (const char* name : names) plan.parts.push_back(tensors_.linear(attention + name));
    add(std::move(plan));
  }
  void from_heads(Matrix& matrix, const std::string& name) {
    const Linear linear = tensors_.linear(name);
    add({&matrix, {linear}, {1, linear.weight.rows}, heads_});
  }

  // Packs all of them into one block, some panels at a time.
  Block pack(Team& team) {
    Block block(bytes_);
    std::byte* at = block.data();
    struct Piece {
      const Plan* plan;
      std::size_t begin, end;
    };
    std::vector<Piece> pieces;
    for (const Plan& plan : plans_) {
      lay_out(plan, at);
      at += measure(plan);
      const std::size_t each = std::max<std::size_t>(1, kPieceBytes / (plan.matrix->steps * kStepBytes));
      for (std::size_t p = 0; p < plan.matrix->panels; p += each) {
        pieces.push_back({&plan, p, std::min(p + each, plan.matrix->panels)});
      }
    }
    std::atomic<std::size_t> next{0};
    Team::Lease lease = team.lease(kMostThreads);
    lease.run(lease.size(), [&](const Member&) {
      for (std::size_t i = next.fetch_add(1); i < pieces.size(); i = next.fetch_add(1)) {
        fused::pack(*pieces[i].plan, pieces[i].begin, pieces[i].end);
      }
    });
    return block;
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

  const Tensors& tensors_;
  const Groups heads_;
  std::vector<Plan> plans_;
  std::size_t bytes_ = 0;

  void add(Plan plan) {
    bytes_ += measure(plan);
    plans_.push_back(std::move(plan));
  }
};

// Copies LayerNorms, padded by zeros.
class Norms {
 public:
  Norms(const Tensors& tensors, std::size_t d, std::size_t count)
      : tensors_(tensors), width_(padded(d)), block_(2 * count * width_ * sizeof(float), true) {}

  Norm find(const std::string& name) {
    if (!tensors_.has(name + ".weight")) return {};
    const float* weight = copy(name + ".weight");
    return {weight, copy(name + ".bias")};
  }
  Block block() { return std::move(block_); }

 private:
  const Tensors& tensors_;
  const std::size_t width_;
  Block block_;
  std::size_t used_ = 0;

  const float* copy(const std::string& name) {
    auto* to = reinterpret_cast<float*>(block_.data()) + used_;
    used_ += width_;
    read_row(tensors_[name], 0, to);
    return to;
  }
};

Activation activation_of(const std::string& name) {
  return name == "relu" ? Activation::relu : name == "gelu" ? Activation::gelu : Activation::silu;
}

// The norms of a stack's borders; `names` are its layers' sublayers.
std::vector<Norm> borders(Norms& norms, const std::string& stack, std::size_t layers, bool norm_first,
                          std::initializer_list<const char*> names) {
  std::vector<Norm> result;
  if (!norm_first) result.emplace_back();
  for (std::size_t i = 0; i < layers; ++i) {
    for (const char* name : names) {
      result.push_back(norms.find(stack + "." + std::to_string(i) + "." + name + "_residual.norm"));
    }
  }
  if (norm_first) result.push_back(norms.find(stack + "_norm"));
  return result;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat facts {};
  if (file >= 0 && ::fstat(file, &facts) == 0 && facts.st_size > 0) {
    bytes_ = static_cast<std::size_t>(facts.st_size);
    data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
  }
  if (file >= 0) ::close(file);
  if (data_ == nullptr || data_ == MAP_FAILED) {
    throw BundleError(path.string() + " cannot be mapped into memory: copy or export the bundle again");
  }
}

MappedFile::~MappedFile() { ::munmap(data_, bytes_); }

Model::Model(const std::filesystem::path& directory, const Manifest& manifest, Team& team)
    : d(size_of(manifest.model.d_model)),
      width(padded(d)),
      heads{size_of(manifest.model.heads), size_of(manifest.model.head_dim)},
      vocabulary(size_of(manifest.model.target_vocabulary)),
      epsilon(static_cast<float>(manifest.parameters->architecture.layer_norm_epsilon)),
      embedding_scale(static_cast<float>(manifest.parameters->architecture.embedding_scale)),
      norm_first(manifest.parameters->architecture.norm == "pre"),
      int8_caches(manifest.precision.weights == "int8"),
      activation(activation_of(manifest.parameters->architecture.activation)),
      encoder(size_of(manifest.model.encoder_layers)),
      decoder(size_of(manifest.model.decoder_layers)),
      file_(directory / kWeightsName) {
  const Tensors tensors(*manifest.parameters, file_.data());
  const std::string target_tokens = "target_embedding.tokens.weight";
  const std::string source_tokens = "source_embedding.tokens.weight";
  source = {
      tensors[tensors.has(source_tokens) ? source_tokens : target_tokens], tensors["source_embedding.positions"], {}};
  target = {tensors[target_tokens], tensors["target_embedding.positions"], {}};

  Plans plans(tensors, heads);
  for (std::size_t i = 0; i < encoder.size(); ++i) {
    const std::string name = "encoder." + std::to_string(i);
    plans.to_heads(encoder[i].query_key_value, name + ".attention.", {"query", "key", "value"});
    plans.from_heads(encoder[i].output, name + ".attention.output");
    plans.whole(encoder[i].inner, name + ".feed_forward.inner");
    plans.whole(encoder[i].outer, name + ".feed_forward.outer");
  }
  for (std::size_t i = 0; i < decoder.size(); ++i) {
    const std::string name = "decoder." + std::to_string(i);
    plans.to_heads(decoder[i].query_key_value, name + ".self_attention.", {"query", "key", "value"});
    plans.from_heads(decoder[i].self_output, name + ".self_attention.output");
    plans.to_heads(decoder[i].query, name + ".cross_attention.", {"query"});
    plans.to_heads(decoder[i].key_value, name + ".cross_attention.", {"key", "value"});
    plans.from_heads(decoder[i].cross_output, name + ".cross_attention.output");
    plans.whole(decoder[i].inner, name + ".feed_forward.inner");
    plans.whole(decoder[i].outer, name + ".feed_forward.outer");
  }
  const Linear last{tensors[tensors.has("projection.weight") ? "projection.weight" : target_tokens],
                    tensors.find("projection.bias")};
  plans.whole(projection, last, -std::numeric_limits<float>::infinity());  // padding is never the largest
  matrices_ = plans.pack(team);
  for (const EncoderLayer& layer : encoder) ffn = std::max(ffn, layer.inner.outputs());
  for (const DecoderLayer& layer : decoder) ffn = std::max(ffn, layer.inner.outputs());

  Norms norms(tensors, d, 2 + 2 * encoder.size() + 1 + 3 * decoder.size() + 1);
  source.norm = norms.find("source_embedding.norm");
  target.norm = norms.find("target_embedding.norm");
  encoder_norms = borders(norms, "encoder", encoder.size(), norm_first, {"attention", "feed_forward"});
  decoder_norms =
      borders(norms, "decoder", decoder.size(), norm_first, {"self_attention", "cross_attention", "feed_forward"});
  if (!norm_first) encoder_final = norms.find("encoder_norm");
  if (!norm_first) decoder_final = norms.find("decoder_norm");
  norms_ = norms.block();
}

}  // namespace txport::core::fused
