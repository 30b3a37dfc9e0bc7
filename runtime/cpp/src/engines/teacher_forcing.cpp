#include "engines/teacher_forcing.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "bundle/interface.hpp"
#include "errors.hpp"

#ifdef TXPORT_WITH_ORT
#include "engines/ort.hpp"
#include "engines/ort_session.hpp"
#endif

namespace txport::core {

namespace {

// Maximum number of values of one output, or of all logits, of a run (64 MiB), unless a single sentence needs more.
constexpr std::size_t kMaxNumbers = std::size_t{1} << 24;

std::string users_of(const std::string& role) {
  return role == kDecoder ? "alignments, attention, replace_unknowns and the scores of given translations need"
                          : "embeddings and the encoder's attention need";
}

#ifdef TXPORT_WITH_ORT

// Ids `[rows, longest]` or vectors `[rows, longest, width]`, and the length of each row.
struct Padded {
  Ids ids;
  std::vector<float> vectors;
  std::int64_t width = 0;
  Ids lengths;
  std::size_t longest = 0;

  std::vector<std::int64_t> shape() const {
    return {static_cast<std::int64_t>(lengths.size()), static_cast<std::int64_t>(longest)};
  }
};

Padded padded(const std::vector<Ids>& all, const std::vector<std::size_t>& rows, std::int64_t pad) {
  Padded result;
  for (const std::size_t row : rows) result.longest = std::max(result.longest, all[row].size());
  for (const std::size_t row : rows) {
    result.ids.insert(result.ids.end(), all[row].begin(), all[row].end());
    result.ids.resize((result.lengths.size() + 1) * result.longest, pad);
    result.lengths.push_back(static_cast<std::int64_t>(all[row].size()));
  }
  return result;
}

Padded padded(const std::vector<EncoderInput>& all, const std::vector<std::size_t>& rows, std::int64_t pad) {
  if (all[rows.front()].vectors == nullptr) {
    std::vector<Ids> ids;
    ids.reserve(all.size());
    for (const EncoderInput& each : all) ids.push_back(each.ids);
    return padded(ids, rows, pad);
  }
  Padded result;
  const std::size_t width = all[rows.front()].vectors->columns;
  result.width = static_cast<std::int64_t>(width);
  for (const std::size_t row : rows) result.longest = std::max(result.longest, all[row].size());
  for (const std::size_t row : rows) {
    const std::vector<float>& values = all[row].vectors->values;
    result.vectors.insert(result.vectors.end(), values.begin(), values.end());
    result.vectors.resize((result.lengths.size() + 1) * result.longest * width);
    result.lengths.push_back(static_cast<std::int64_t>(all[row].size()));
  }
  return result;
}

template <typename Item>
std::vector<std::size_t> lengths_of(const std::vector<Item>& all) {
  std::vector<std::size_t> lengths;
  lengths.reserve(all.size());
  for (const Item& each : all) lengths.push_back(each.size());
  return lengths;
}

// Return a view for ONNX Runtime.
template <typename Number>
Ort::Value tensor_of(std::vector<Number>& numbers, const std::vector<std::int64_t>& shape) {
  const auto host = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor<Number>(host, numbers.data(), numbers.size(), shape.data(), shape.size());
}

// Inputs or outputs of a graph, by name.
using Named = std::map<std::string, Ort::Value>;

class OrtTeacherForcing : public TeacherForcing {
 public:
  OrtTeacherForcing(Bundle bundle, Manifest manifest, const Engine& engine, int threads)
      : bundle_(std::move(bundle)), manifest_(std::move(manifest)), engine_(engine), threads_(threads) {}

  void read(const std::vector<EncoderInput>& sources, const std::vector<Ids>& targets, bool cross,
            const std::function<void(std::size_t, Reading)>& take) const override {
    environment();  // load ONNX Runtime, which the engine may not use
    const auto numbers = [this](std::size_t source, std::size_t target) {
      const ModelSizes& model = manifest_.model;
      const auto maps = static_cast<std::size_t>(model.decoder_layers * model.heads);
      // All outputs are computed, even unused ones.
      return target * std::max(static_cast<std::size_t>(model.target_vocabulary), maps * std::max(source, target));
    };
    std::vector<const char*> requested{"log_probabilities"};
    if (cross) requested.push_back("cross_attention");
    for (const auto& rows : batches_of(lengths_of(sources), lengths_of(targets), manifest_.limits().batch, numbers)) {
      const Named outputs = decode(sources, targets, rows, requested);
      const auto* scores = outputs.at("log_probabilities").GetTensorData<float>();
      const auto width = static_cast<std::size_t>(sizes_of(outputs.at("log_probabilities"))[1]);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const float* start = scores + i * width;
        Reading reading{{start, start + targets[rows[i]].size()}, {}};
        if (cross) {
          reading.cross = cross_of(outputs.at("cross_attention"), i, targets[rows[i]].size(), sources[rows[i]].size());
        }
        take(rows[i], std::move(reading));
      }
    }
  }

  void memories(const std::vector<Ids>& sources,
                const std::function<void(std::size_t, FloatMatrix)>& take) const override {
    environment();
    const ModelSizes& model = manifest_.model;
    const auto width = static_cast<std::size_t>(model.d_model);
    const auto numbers = [&](std::size_t source, std::size_t /*target*/) {
      return source * std::max(width, static_cast<std::size_t>(model.encoder_layers * model.encoder_heads) * source);
    };
    for (const auto& rows : batches_of(lengths_of(sources), lengths_of(sources), manifest_.limits().batch, numbers)) {
      Padded source = padded(sources, rows, manifest_.tokens.pad);
      const Named outputs = run(*manifest_.optional_graph(kEncoderAttention), source_tensors(source), {"memory"});
      const auto* memory = outputs.at("memory").GetTensorData<float>();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const float* start = memory + i * source.longest * width;
        const std::size_t length = sources[rows[i]].size();
        take(rows[i], {length, width, {start, start + length * width}});
      }
    }
  }

 private:
  const Bundle bundle_;
  const Manifest manifest_;
  const Engine& engine_;
  const int threads_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Ort::Session> sessions_;  // by name of the graph

  static std::vector<std::int64_t> sizes_of(const Ort::Value& tensor) {
    return tensor.GetTensorTypeAndShapeInfo().GetShape();
  }

  static Named source_tensors(Padded& source) {
    Named inputs;
    if (source.width > 0) {
      inputs.emplace(kFeatures, tensor_of(source.vectors, {source.shape()[0], source.shape()[1], source.width}));
    } else {
      inputs.emplace(kInputIds, tensor_of(source.ids, source.shape()));
    }
    inputs.emplace("source_lengths", tensor_of(source.lengths, {source.shape()[0]}));
    return inputs;
  }

  // Return cross-attention of one row of a tensor `[layers, batch, heads, target, source]`.
  static CrossAttention cross_of(const Ort::Value& tensor, std::size_t row, std::size_t targets, std::size_t sources) {
    const std::vector<std::int64_t> shape = sizes_of(tensor);
    const auto size = [&shape](std::size_t axis) { return static_cast<std::size_t>(shape[axis]); };
    CrossAttention cross{size(0), size(2), targets, sources, {}};
    cross.values.reserve(cross.layers * cross.heads * targets * sources);
    const auto* values = tensor.GetTensorData<float>();
    for (std::size_t layer = 0; layer < cross.layers; ++layer) {
      for (std::size_t head = 0; head < cross.heads; ++head) {
        const float* map = values + ((layer * size(1) + row) * cross.heads + head) * size(3) * size(4);
        for (std::size_t target = 0; target < targets; ++target) {
          const float* weights = map + target * size(4);
          cross.values.insert(cross.values.end(), weights, weights + sources);
        }
      }
    }
    return cross;
  }

  Named decode(const std::vector<EncoderInput>& sources, const std::vector<Ids>& targets,
               const std::vector<std::size_t>& rows, const std::vector<const char*>& requested) const {
    Padded source = padded(sources, rows, manifest_.tokens.pad);
    Padded target = padded(targets, rows, manifest_.tokens.pad);
    // ONNX Runtime on the CPU can share its encoder. The outputs of other engines are not in host memory.
    const auto memory = source.width > 0 ? encode_on_host(engine_, source.vectors, source.lengths)
                                         : encode_on_host(engine_, source.ids, source.lengths);
    Named inputs;
    if (memory != nullptr) {
      for (const auto& [name, tensor] : memory->tensors()) inputs.emplace(name, tensor.value());
    } else {
      inputs = run(manifest_.encoder(), source_tensors(source), cross_names());
    }
    inputs.emplace("target_ids", tensor_of(target.ids, target.shape()));
    inputs.emplace("target_lengths", tensor_of(target.lengths, {target.shape()[0]}));
    return run(*manifest_.optional_graph(kDecoder), inputs, requested);
  }

  // Return the names of outputs of the encoder that the decoder reads.
  std::vector<const char*> cross_names() const {
    std::vector<const char*> names;
    for (const Tensor& tensor : manifest_.optional_graph(kDecoder)->inputs) {
      if (is_cross(tensor.name)) names.push_back(tensor.name.c_str());
    }
    return names;
  }

  Named run(const Graph& graph, const Named& inputs, const std::vector<const char*>& requested) const {
    std::vector<const char*> names;
    std::vector<const OrtValue*> input_values;
    for (const Tensor& tensor : graph.inputs) {
      names.push_back(tensor.name.c_str());
      input_values.push_back(inputs.at(tensor.name));
    }
    std::vector<OrtValue*> values(requested.size());
    Ort::Session& opened = session(graph);
    try {
      Ort::ThrowOnError(Ort::GetApi().Run(opened, nullptr, names.data(), input_values.data(), input_values.size(),
                                          requested.data(), requested.size(), values.data()));
    } catch (const Ort::Exception& error) {
      throw_failure("ONNX Runtime failed: " + reason(error));
    }
    Named outputs;
    for (std::size_t i = 0; i < requested.size(); ++i) outputs.emplace(requested[i], Ort::Value(values[i]));
    return outputs;
  }

  // Return the session of a graph, which is loaded at its first use.
  Ort::Session& session(const Graph& graph) const {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(graph.name);
    if (found != sessions_.end()) return found->second;
    return sessions_.emplace(graph.name, open_on_cpu(bundle_, graph, threads_)).first->second;
  }
};

#endif

}  // namespace

void check_has(const Bundle& bundle, const Manifest& manifest, const std::string& role) {
  if (manifest.optional_graph(role) == nullptr) {
    throw BundleError(bundle.name() + " has no graph of the role " + quote(role) + ", which " + users_of(role) +
                      ": export it again with tx-export --with-attention");
  }
#ifndef TXPORT_WITH_ORT
  throw MissingLibrary("this build of txport has no ONNX Runtime, which " + users_of(role) +
                       ": configure it with -DTXPORT_WITH_ORT=ON");
#endif
}

std::unique_ptr<TeacherForcing> make_teacher_forcing(const Bundle& bundle, const Manifest& manifest,
                                                     const Engine& engine, int threads) {
#ifdef TXPORT_WITH_ORT
  return std::make_unique<OrtTeacherForcing>(bundle, manifest, engine, threads);
#else
  (void)bundle, (void)manifest, (void)engine, (void)threads;
  return nullptr;
#endif
}

std::vector<std::vector<std::size_t>> batches_of(const std::vector<std::size_t>& sources,
                                                 const std::vector<std::size_t>& targets, std::int64_t max_rows,
                                                 const std::function<std::size_t(std::size_t, std::size_t)>& numbers) {
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(targets[a], sources[a]) > std::pair(targets[b], sources[b]);
  });
  std::vector<std::vector<std::size_t>> batches;
  std::size_t source = 0;  // longest source of the batch
  for (const std::size_t row : order) {
    source = std::max(source, sources[row]);
    if (!batches.empty()) {
      const std::size_t rows = batches.back().size();
      const std::size_t target = targets[batches.back().front()];
      if (rows < static_cast<std::size_t>(max_rows) && (rows + 1) * numbers(source, target) <= kMaxNumbers) {
        batches.back().push_back(row);
        continue;
      }
    }
    source = sources[row];
    batches.push_back({row});
  }
  return batches;
}

}  // namespace txport::core
