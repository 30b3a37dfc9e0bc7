// Small models with random weights and any options, as the fused engine reads them, and what they must say: the model
// once more, over whole sentences and in double precision, with int8 where the engine rounds to int8.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bundle/manifest.hpp"
#include "repository.hpp"

namespace random_model {

using namespace txport::core;

struct Options {
  std::string norm = "post";
  std::string activation = "relu";
  bool int8 = false;
  bool biases = true;
  bool embedding_norm = false;
  bool tied = true;
  bool shared = true;
  bool some_float32 = false;  // a few matrices of an int8 model
  bool float16 = false;
  bool rounded = false;  // float32 weights that float16 has, too
  bool rms = false;
  bool gated = false;
  std::string relative;  // positions by a table of each "stack" or each "layer"; empty for those of embeddings
  std::int64_t heads = 2;
  std::int64_t head_dim = 16;
  std::int64_t ffn = 48;
  std::int64_t encoder_layers = 2;
  std::int64_t decoder_layers = 1;
  std::int64_t source_vocabulary = 40;
  std::int64_t target_vocabulary = 40;
};

// Rows of numbers.
using Numbers = std::vector<double>;
using Rows = std::vector<Numbers>;

struct Tensor2 {
  std::size_t rows = 0;
  std::size_t columns = 0;
  Numbers values;  // as they are used: times the scale of their row
  Numbers scales;  // of int8 only
  double at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
};

inline std::uint16_t half_of(float value) {  // of normal numbers; rounds to even as IEEE 754
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  const std::uint32_t sign = bits >> 16U & 0x8000U;
  bits &= 0x7FFFFFFFU;
  if (bits < 0x38800000U) return static_cast<std::uint16_t>(sign);  // below 2^-14: zero is near enough
  bits += 0xFFFU + (bits >> 13U & 1U);
  return static_cast<std::uint16_t>(sign | ((bits >> 13U) - 0x1C000U));
}
inline double widened(std::uint16_t half) {
  const double fraction = 1 + (half & 0x3FFU) / 1024.0;
  const double value = (half & 0x7FFFU) == 0 ? 0 : std::ldexp(fraction, (half >> 10U & 31U) - 15);
  return (half & 0x8000U) != 0 ? -value : value;
}

class RandomModel {
 public:
  RandomModel(Options options, std::uint32_t seed) : options(std::move(options)), random_(seed) {
    manifest.model = {this->options.encoder_layers,
                      this->options.decoder_layers,
                      d(),
                      this->options.heads,
                      this->options.head_dim,
                      this->options.source_vocabulary,
                      this->options.target_vocabulary,
                      false,
                      this->options.heads,
                      std::nullopt};
    manifest.tokens = {0, 1, 2, 3};
    manifest.dimensions = {{1, 1, 16}, {1, 8, kPositions}, {1, 8, kPositions}};
    manifest.precision = {"float32", this->options.int8 ? "int8" : "float32", {}};
    manifest.parameters.emplace();
    manifest.parameters->architecture = {this->options.norm, this->options.activation, 1.7, kEpsilon,
                                         this->options.rms ? "rms" : "layer"};
    add_all();
    std::filesystem::create_directories(directory() / "onnx");
    std::ofstream(directory() / kWeightsName, std::ios::binary)
        .write(file_.data(), static_cast<std::streamsize>(file_.size()));
    manifest.files[kWeightsName] = {static_cast<std::int64_t>(file_.size()), ""};
  }

  static constexpr std::int64_t kPositions = 80;
  static constexpr double kEpsilon = 0.01;  // of norms: so large that an error in its use changes the logits

  const Options options;
  Manifest manifest;
  std::filesystem::path directory() const { return scratch_.path(); }
  ModelFile file() const { return manifest.model_file(directory()); }

  // [made, vocabulary]: the logits from which each token was made, after bos and those before it.
  Rows logits(const Ids& source, const Ids& made) const {
    const Rows memory = encode(source);
    Ids fed{manifest.tokens.bos};
    fed.insert(fed.end(), made.begin(), made.end() - 1);
    Rows x = embed("target_embedding", fed);
    for (std::int64_t i = 0; i < options.decoder_layers; ++i) {
      const std::string layer = "decoder." + std::to_string(i) + ".";
      x = sublayer(layer + "self_attention_residual", x,
                   [&](const Rows& y) { return attend(layer + "self_attention", y, y, true); });
      x = sublayer(layer + "cross_attention_residual", x,
                   [&](const Rows& y) { return attend(layer + "cross_attention", y, memory, false); });
      x = sublayer(layer + "feed_forward_residual", x,
                   [&](const Rows& y) { return feed_forward(layer + "feed_forward", y); });
    }
    if (options.norm != "post") x = layer_norm("decoder_norm", x);
    return linear(options.tied ? "target_embedding.tokens" : "projection", "projection.bias", x, false);
  }

 private:
  Scratch scratch_;
  std::mt19937 random_;
  std::string file_;
  std::map<std::string, Tensor2> tensors_;

  std::int64_t d() const { return options.heads * options.head_dim; }

  // ---- making ----

  std::int64_t append(const void* data, std::size_t bytes, std::size_t alignment) {
    file_.resize((file_.size() + alignment - 1) / alignment * alignment);
    const auto offset = static_cast<std::int64_t>(file_.size());
    file_.append(static_cast<const char*>(data), bytes);
    return offset;
  }

  // Numbers [rows, columns] in a random layout: by rows, by columns, or as part of a wider matrix.
  template <typename T>
  Parameter write(const std::string& name, const std::string& dtype, std::size_t rows, std::size_t columns, bool vector,
                  const std::vector<T>& values) {
    const bool by_columns = !vector && random_() % 2 == 0;
    const std::size_t inner = by_columns ? rows : columns;
    const std::size_t stride = inner + (vector ? 0 : random_() % 2 * (1 + random_() % 20));
    std::vector<T> stored((by_columns ? columns : rows) * stride, T(77));
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c)
        stored[by_columns ? c * stride + r : r * stride + c] = values[r * columns + c];
    }
    Parameter parameter;
    parameter.name = name;
    parameter.dtype = dtype;
    parameter.offset = append(stored.data(), stored.size() * sizeof(T), sizeof(T));
    if (vector) {
      parameter.shape = {static_cast<std::int64_t>(columns)};
      parameter.strides = {1};
    } else {
      parameter.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)};
      const auto wide = static_cast<std::int64_t>(stride);
      parameter.strides = by_columns ? Ids{1, wide} : Ids{wide, 1};
    }
    return parameter;
  }

  void add(const std::string& name, std::int64_t rows_, std::int64_t columns_, double size, double around,
           bool may_int8) {
    const auto rows = static_cast<std::size_t>(rows_);
    const auto columns = static_cast<std::size_t>(columns_);
    Tensor2 tensor{rows, columns, Numbers(rows * columns), {}};
    std::normal_distribution<double> normal(around, size);
    for (double& value : tensor.values) value = normal(random_);
    const bool vector = !may_int8 && rows == 1;
    const bool is_int8 = options.int8 && may_int8 && !(options.some_float32 && random_() % 3 == 0);
    Parameter parameter;
    if (is_int8) {
      std::vector<std::int8_t> bytes(rows * columns);
      std::vector<float> scales(rows);
      for (std::size_t r = 0; r < rows; ++r) {
        double largest = 0;
        for (std::size_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(tensor.at(r, c)));
        scales[r] = static_cast<float>(largest / 127);
        tensor.scales.push_back(scales[r]);
        for (std::size_t c = 0; c < columns; ++c) {
          const double q = std::nearbyint(tensor.at(r, c) / scales[r]);
          bytes[r * columns + c] = static_cast<std::int8_t>(std::max(-127.0, std::min(127.0, q)));
          tensor.values[r * columns + c] = bytes[r * columns + c] * tensor.scales[r];
        }
      }
      parameter = write(name, "int8", rows, columns, vector, bytes);
      parameter.scales = append(scales.data(), scales.size() * sizeof(float), sizeof(float));
    } else if (options.float16) {
      std::vector<std::uint16_t> halves(rows * columns);
      for (std::size_t i = 0; i < halves.size(); ++i) {
        halves[i] = half_of(static_cast<float>(tensor.values[i]));
        tensor.values[i] = widened(halves[i]);
      }
      parameter = write(name, "float16", rows, columns, vector, halves);
    } else {
      for (double& value : tensor.values) value = options.rounded ? widened(half_of(static_cast<float>(value))) : value;
      std::vector<float> floats(tensor.values.begin(), tensor.values.end());
      tensor.values.assign(floats.begin(), floats.end());
      parameter = write(name, "float32", rows, columns, vector, floats);
    }
    manifest.parameters->tensors.push_back(parameter);
    tensors_[name] = std::move(tensor);
  }

  void add_linear(const std::string& name, std::int64_t outputs, std::int64_t inputs, double factor = 1) {
    add(name + ".weight", outputs, inputs, factor / std::sqrt(static_cast<double>(inputs)), 0, true);
    if (options.biases) add(name + ".bias", 1, outputs, 0.2 * factor, 0, false);
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", 1, d(), 0.3, 1, false);
    if (!options.rms) add(name + ".bias", 1, d(), 0.2, 0, false);
  }
  void add_positions(const std::string& stack, std::int64_t rows, std::int64_t layers) {
    const std::int64_t tables = options.relative == "layer" ? layers : 1;
    add(stack + "_positions.weight", rows, tables * options.heads, 0.7, 0, false);
  }
  void add_attention(const std::string& name) {
    const double factor = 1.5 / std::sqrt(static_cast<double>(options.head_dim));
    add_linear(name + ".query", d(), d(), factor);
    for (const char* part : {".key", ".value", ".output"}) add_linear(name + part, d(), d());
    add_norm(name + "_residual.norm");
  }
  void add_feed_forward(const std::string& name) {
    const std::int64_t inner = options.ffn + static_cast<std::int64_t>(random_() % 40);  // of each layer its own
    if (options.gated) add_linear(name + ".gate", inner, d());
    add_linear(name + ".inner", inner, d());
    add_linear(name + ".outer", d(), inner);
    add_norm(name + "_residual.norm");
  }

  void add_all() {
    add("target_embedding.tokens.weight", options.target_vocabulary, d(), 0.6, 0, true);
    if (!options.shared) add("source_embedding.tokens.weight", options.source_vocabulary, d(), 0.6, 0, true);
    for (const char* side : {"source_embedding", "target_embedding"}) {
      if (options.relative.empty()) add(std::string(side) + ".positions", kPositions, d(), 0.5, 0, false);
      if (options.embedding_norm) add_norm(std::string(side) + ".norm");
    }
    if (!options.relative.empty()) {
      add_positions("encoder", 2 * kPositions - 1, options.encoder_layers);
      add_positions("decoder", kPositions, options.decoder_layers);
    }
    for (std::int64_t i = 0; i < options.encoder_layers; ++i) {
      const std::string layer = "encoder." + std::to_string(i) + ".";
      add_attention(layer + "attention");
      add_feed_forward(layer + "feed_forward");
    }
    for (std::int64_t i = 0; i < options.decoder_layers; ++i) {
      const std::string layer = "decoder." + std::to_string(i) + ".";
      add_attention(layer + "self_attention");
      add_attention(layer + "cross_attention");
      add_feed_forward(layer + "feed_forward");
    }
    if (options.norm != "post") add_norm("encoder_norm"), add_norm("decoder_norm");
    if (!options.tied) add("projection.weight", options.target_vocabulary, d(), 0.4, 0, true);
    if (options.biases) add("projection.bias", 1, options.target_vocabulary, 0.3, 0, false);
  }

  // ---- computing ----

  Rows linear(const std::string& name, const std::string& bias, const Rows& x, bool positive) const {
    const Tensor2& w = tensors_.at(name + ".weight");
    Rows result;
    for (const Numbers& row : x) {
      Numbers input = row;
      if (!w.scales.empty()) {
        double largest = 0;
        for (const double value : row) largest = std::max(largest, std::abs(value));
        const double steps = positive ? 255 : 127;
        for (double& value : input)
          value = largest > 0 ? std::nearbyint(value * (steps / largest)) * largest / steps : 0;
      }
      Numbers output(w.rows);
      for (std::size_t n = 0; n < w.rows; ++n) {
        if (tensors_.count(bias) == 1) output[n] = tensors_.at(bias).values[n];
        const double* weights = w.values.data() + n * w.columns;
        for (std::size_t k = 0; k < w.columns; ++k) output[n] += weights[k] * input[k];
      }
      result.push_back(std::move(output));
    }
    return result;
  }
  Rows linear(const std::string& name, const Rows& x, bool positive = false) const {
    return linear(name, name + ".bias", x, positive);
  }

  Rows layer_norm(const std::string& name, const Rows& x) const {
    Rows result;
    for (Numbers row : x) {
      double mean = 0;
      double square = 0;
      for (const double value : row) mean += options.rms ? 0 : value / static_cast<double>(row.size());
      for (const double value : row) square += (value - mean) * (value - mean) / static_cast<double>(row.size());
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = (row[i] - mean) / std::sqrt(square + kEpsilon) * tensors_.at(name + ".weight").values[i];
        if (!options.rms) row[i] += tensors_.at(name + ".bias").values[i];
      }
      result.push_back(std::move(row));
    }
    return result;
  }

  Rows embed(const std::string& name, const Ids& ids) const {
    const bool own = tensors_.count(name + ".tokens.weight") == 1;
    const Tensor2& tokens = tensors_.at((own ? name : "target_embedding") + ".tokens.weight");
    Rows x;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      x.emplace_back();
      for (std::size_t i = 0; i < tokens.columns; ++i) {
        x[t].push_back(tokens.at(static_cast<std::size_t>(ids[t]), i) * 1.7);
        if (options.relative.empty()) x[t][i] += tensors_.at(name + ".positions").at(t, i);
      }
    }
    return options.embedding_norm ? layer_norm(name + ".norm", x) : x;
  }

  template <typename Body>
  Rows sublayer(const std::string& name, const Rows& x, const Body& body) const {
    const bool first = options.norm == "pre";
    Rows sum = x;
    const Rows delta = body(first ? layer_norm(name + ".norm", x) : x);
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t i = 0; i < x[t].size(); ++i) sum[t][i] += delta[t][i];
    }
    return first ? sum : layer_norm(name + ".norm", sum);
  }

  // Numbers from `start` on as int8 with one scale has them.
  static void round(Numbers& row, std::size_t start, std::size_t count) {
    double largest = 0;
    for (std::size_t i = start; i < start + count; ++i) largest = std::max(largest, std::abs(row[i]));
    for (std::size_t i = start; i < start + count && largest > 0; ++i) {
      row[i] = std::nearbyint(row[i] * (127 / largest)) * largest / 127;
    }
  }

  // What the positions of a query and a key add to a score of self-attention; 0 where there are no such tables.
  double position_score(const std::string& name, std::size_t head, std::size_t query, std::size_t key) const {
    const std::string stack = name.substr(0, 7);
    if (options.relative.empty() || name.find("cross_attention") != std::string::npos) return 0;
    const std::size_t layer = options.relative == "layer" ? std::stoul(name.substr(8)) : 0;
    const auto middle = static_cast<std::size_t>(kPositions - 1);
    const std::size_t row = stack == "encoder" ? middle + key - query : query - key;
    return tensors_.at(stack + "_positions.weight").at(row, layer * static_cast<std::size_t>(options.heads) + head);
  }

  Rows attend(const std::string& name, const Rows& x, const Rows& from, bool causal) const {
    Rows query = linear(name + ".query", x);
    Rows key = linear(name + ".key", from);
    Rows value = linear(name + ".value", from);
    const auto head = static_cast<std::size_t>(options.head_dim);
    for (Rows* rows : {&query, &key, &value}) {
      for (Numbers& row : *rows) {
        for (std::size_t start = 0; options.int8 && start < row.size(); start += head) round(row, start, head);
      }
    }
    Rows mixed;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const std::size_t seen = causal ? t + 1 : from.size();
      mixed.emplace_back(static_cast<std::size_t>(d()));
      for (std::int64_t h = 0; h < options.heads; ++h) {
        const auto k = static_cast<std::size_t>(options.head_dim);
        const std::size_t start = static_cast<std::size_t>(h) * k;
        Numbers weights;
        for (std::size_t s = 0; s < seen; ++s) {
          double score = position_score(name, static_cast<std::size_t>(h), t, s);
          for (std::size_t i = start; i < start + k; ++i) score += query[t][i] * key[s][i];
          weights.push_back(score);
        }
        const double most = *std::max_element(weights.begin(), weights.end());
        double total = 0;
        for (double& weight : weights) total += weight = std::exp(weight - most);
        for (std::size_t s = 0; s < seen; ++s) {
          for (std::size_t i = start; i < start + k; ++i) mixed[t][i] += weights[s] / total * value[s][i];
        }
      }
    }
    return linear(name + ".output", mixed);
  }

  Rows feed_forward(const std::string& name, const Rows& x) const {
    Rows hidden = linear(name + (options.gated ? ".gate" : ".inner"), x);
    for (Numbers& row : hidden) {
      for (double& y : row) {
        const double cubed = std::sqrt(2 / std::acos(-1.0)) * (y + 0.044715 * y * y * y);
        if (options.activation == "gelu_tanh") y = 0.5 * y * (1 + std::tanh(cubed));
        if (options.activation == "relu") y = std::max(y, 0.0);
        if (options.activation == "gelu") y = y * 0.5 * (1 + std::erf(y / std::sqrt(2.0)));
        if (options.activation == "silu") y = y / (1 + std::exp(-y));
      }
    }
    if (!options.gated) return linear(name + ".outer", hidden, options.activation == "relu");
    const Rows inner = linear(name + ".inner", x);
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t i = 0; i < hidden[t].size(); ++i) hidden[t][i] *= inner[t][i];
    }
    return linear(name + ".outer", hidden);
  }

  Rows encode(const Ids& source) const {
    Rows x = embed("source_embedding", source);
    for (std::int64_t i = 0; i < options.encoder_layers; ++i) {
      const std::string layer = "encoder." + std::to_string(i) + ".";
      x = sublayer(layer + "attention_residual", x,
                   [&](const Rows& y) { return attend(layer + "attention", y, y, false); });
      x = sublayer(layer + "feed_forward_residual", x,
                   [&](const Rows& y) { return feed_forward(layer + "feed_forward", y); });
    }
    return options.norm == "post" ? x : layer_norm("encoder_norm", x);
  }
};

}  // namespace random_model
