// There is one execution context for each set of buffers, with the optimization profile of its bucket, and one for each
// profile of the encoder. All contexts run on one stream and share one block of memory for temporaries. The block is
// never moved, since captured graphs contain its address. All functions used here exist in TensorRT 8.6 to 11.
//
// Steps of TensorRT 8.6 also write the scores of self-attention, as outputs that are not read. All contexts share the
// memory for them: 4 bytes for each layer, row, head and position of the largest caches.

#include "engines/trt.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <shared_mutex>
#include <utility>
#include <variant>

#include "bundle/files.hpp"
#include "bundle/interface.hpp"
#include "device/buffers.hpp"
#include "device/capture.hpp"
#include "device/cuda.hpp"
#include "device/engine.hpp"
#include "device/gpu.hpp"
#include "engines/tensorrt.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

// The runtime and its log. All engines of a directory share it, and it must outlive them.
struct Runtime {
  TensorRtLog log;
  std::unique_ptr<nvinfer1::IRuntime> runtime;
};

// An open engine file.
struct OpenEngine {
  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<nvinfer1::ICudaEngine> engine;
  std::set<std::string> names;  // names of inputs and outputs
};

// An optimization profile of an engine.
struct Bucket {
  std::shared_ptr<const OpenEngine> engine;
  int profile;
  StepSizes maximum;  // maximum sizes, but `beams` is exact; target is 0 for an encoder
};

std::string title() { return tensorrt_version().title(); }

bool is_scores(const std::string& name) { return name.rfind(kScores, 0) == 0; }

// Device memory for the temporaries of all contexts and, after them, for `scores_bytes` of each output `scores`.
class Scratch {
 public:
  Scratch(std::shared_ptr<Device> device, std::size_t bytes, std::set<std::string> scores, std::size_t scores_bytes)
      : bytes(bytes), device_(std::move(device)), scores_(std::move(scores)), scores_bytes_(aligned(scores_bytes)) {
    try {
      address_ = device_->allocate(aligned(bytes) + scores_.size() * scores_bytes_);
    } catch (const ResourceError& error) {
      throw ResourceError(std::string(error.what()) +
                          " for the engines' temporaries: run tx-build again with a smaller --max-batch");
    }
  }
  ~Scratch() { device_->free(address_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::size_t bytes;
  std::byte* address() const { return address_; }
  std::byte* scores(const std::string& name) const {
    const auto index = std::distance(scores_.begin(), scores_.find(name));
    return address_ + aligned(bytes) + static_cast<std::size_t>(index) * scores_bytes_;
  }
  Device& device() const { return *device_; }

 private:
  const std::shared_ptr<Device> device_;
  const std::set<std::string> scores_;
  const std::size_t scores_bytes_;
  std::byte* address_ = nullptr;
};

// A context with the profile of its bucket.
class Context {
 public:
  Context(Bucket bucket, const Graph& graph, std::shared_ptr<const Scratch> scratch)
      : bucket_(std::move(bucket)), graph_(graph), scratch_(std::move(scratch)) {
    context_ = new_context(*bucket_.engine->engine, scratch_->address(), scratch_->bytes);
    if (!context_ || !context_->setOptimizationProfileAsync(bucket_.profile, stream())) {
      const std::string fault = title() + " makes no execution context: " + why();
      // A context allocates little memory besides the scratch memory. If less than this is free, that is the cause of
      // the failure.
      if (scratch_->device().free_memory() < kLowMemory) throw ResourceError(fault);
      throw_failure(fault);
    }
    scratch_->device().synchronize();
  }

  const StepSizes& maximum() const { return bucket_.maximum; }

  void bind(const DeviceTensors& tensors) {
    for (const std::string& name : bucket_.engine->names) {
      if (is_input(name)) set_shape(name, tensors.at(name).shape);
      std::byte* address = is_scores(name) ? scratch_->scores(name) : tensors.at(name).address;
      if (!context_->setTensorAddress(name.c_str(), address)) {
        throw EngineError(title() + " refuses the address of " + name);
      }
    }
  }

  void enqueue() {
    scratch_->device().activate();
    if (!context_->enqueueV3(stream())) throw_failure(title() + " failed: " + why());
  }

 private:
  static constexpr std::size_t kLowMemory = std::size_t{64} << 20;

  const Bucket bucket_;
  const Graph& graph_;
  const std::shared_ptr<const Scratch> scratch_;
  std::unique_ptr<nvinfer1::IExecutionContext> context_;

  cudaStream_t stream() const { return static_cast<cudaStream_t>(scratch_->device().stream()); }
  std::string why() const { return bucket_.engine->runtime->log.why(); }

  bool is_input(const std::string& name) const {
    return std::any_of(graph_.inputs.begin(), graph_.inputs.end(), [&](const Tensor& t) { return t.name == name; });
  }

  void set_shape(const std::string& name, const std::vector<std::int64_t>& shape) {
    nvinfer1::Dims dims{};
    dims.nbDims = static_cast<std::int32_t>(shape.size());
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      dims.d[axis] = static_cast<std::remove_reference_t<decltype(dims.d[0])>>(shape[axis]);
    }
    if (!context_->setInputShape(name.c_str(), dims)) {
      throw EngineError(title() + " refuses the shape of " + name + " for a batch of " + std::to_string(shape[0]) +
                        " rows: " + why());
    }
  }
};

// The buckets of one graph, sorted by number of rows, then by cache length.
struct Role {
  Graph graph;
  std::vector<Bucket> buckets;

  Role(Graph graph, std::vector<Bucket> opened) : graph(std::move(graph)), buckets(std::move(opened)) {
    std::sort(buckets.begin(), buckets.end(), [](const Bucket& first, const Bucket& second) {
      return std::pair(first.maximum.batch, first.maximum.target) <
             std::pair(second.maximum.batch, second.maximum.target);
    });
  }
};

class TrtProgram : public Program {
 public:
  TrtProgram(Role encoder, Role step, Role beams, const Limits& limits, std::int64_t heads,
             std::shared_ptr<Device> device)
      : encoder_(std::move(encoder)), step_(std::move(step)), beams_(std::move(beams)), source_(limits.source) {
    std::size_t maximum = 0;
    std::set<std::string> scores;
    std::int64_t numbers = 0;
    for (const Role* role : {&encoder_, &step_, &beams_}) {
      for (const Bucket& bucket : role->buckets) {
        maximum = std::max(maximum, scratch_bytes(*bucket.engine->engine));
        numbers = std::max(numbers, bucket.maximum.batch * heads * bucket.maximum.target);
        for (const std::string& name : bucket.engine->names) {
          if (is_scores(name)) scores.insert(name);
        }
      }
    }
    scratch_ = std::make_shared<Scratch>(std::move(device), maximum, std::move(scores),
                                         sizeof(float) * static_cast<std::size_t>(numbers));
    for (const Bucket& bucket : encoder_.buckets) {
      encoders_.push_back(std::make_unique<Context>(bucket, encoder_.graph, scratch_));
    }
  }

  // The library may wait for the whole device when engines and contexts go.
  ~TrtProgram() override {
    const std::shared_lock uncaptured(whole_device());
    encoders_.clear();
    for (Role* role : {&encoder_, &step_, &beams_}) role->buckets.clear();
  }
  TrtProgram(const TrtProgram&) = delete;
  TrtProgram& operator=(const TrtProgram&) = delete;

  const Graph* beam_graph(std::int64_t beams) const override {
    const bool any = std::any_of(beams_.buckets.begin(), beams_.buckets.end(),
                                 [&](const Bucket& bucket) { return bucket.maximum.beams == beams; });
    return any ? &beams_.graph : nullptr;
  }

  StepSizes bucket(const StepSizes& requested) const override {
    const Bucket& bucket = smallest(requested);
    return {bucket.maximum.batch, source_bucket(requested.source, source_), bucket.maximum.target, requested.beams};
  }

  std::function<void()> bind(const DeviceTensors& tensors, const StepSizes& sizes) const override {
    const auto context = std::make_shared<Context>(smallest(sizes), role_of(sizes).graph, scratch_);
    context->bind(tensors);
    return [context] { context->enqueue(); };
  }

  void encode(const DeviceTensors& tensors, const StepSizes& sizes) const override {
    const auto found = std::find_if(encoders_.begin(), encoders_.end(),
                                    [&](const auto& context) { return context->maximum().batch >= sizes.batch; });
    if (found == encoders_.end()) throw BundleError(too_large(sizes));
    (*found)->bind(tensors);
    (*found)->enqueue();
  }

  bool can_be_captured() const override { return true; }
  // TensorRT only allows an output to overwrite an input if a layer requests it (getAliasedInputTensor).
  bool runs_in_order() const override { return false; }

 private:
  Role encoder_;
  Role step_;
  Role beams_;  // no buckets if there are no engines for beam search
  const std::int64_t source_;
  std::shared_ptr<const Scratch> scratch_;
  std::vector<std::unique_ptr<Context>> encoders_;

  const Role& role_of(const StepSizes& sizes) const { return sizes.beams == 1 ? step_ : beams_; }

  // Return the first bucket that fits: the fewest rows, then the shortest cache.
  const Bucket& smallest(const StepSizes& requested) const {
    const std::vector<Bucket>& buckets = role_of(requested).buckets;
    const auto found = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
      return bucket.maximum.beams == requested.beams && bucket.maximum.batch >= requested.batch &&
             bucket.maximum.target >= requested.target && requested.source <= source_;
    });
    if (found != buckets.end()) return *found;
    throw BundleError(too_large(requested));
  }

  static std::string too_large(const StepSizes& requested) {
    return "no TensorRT engine takes a batch of " + std::to_string(requested.batch) + " rows of " +
           std::to_string(requested.source) + " source and " + std::to_string(requested.target) +
           " target tokens: use a smaller batch, or run tx-build again for larger ones";
  }
};

// Check the inputs and outputs of an engine, except scores. TensorRT may remove unused inputs. It needs memory for
// every output, so tx-build must have removed outputs that are not bound.
void check_tensors(const fs::path& path, const OpenEngine& opened, const Graph& graph, const std::string& id_type) {
  std::map<std::string, std::string> listed;
  for (const auto* tensors : {&graph.inputs, &graph.outputs}) {
    for (const Tensor& tensor : *tensors) listed[tensor.name] = tensor.dtype == "int64" ? id_type : tensor.dtype;
  }
  bool fits = std::all_of(graph.outputs.begin(), graph.outputs.end(), [&](const Tensor& tensor) {
    return opened.names.count(tensor.name) == (is_bound(tensor) ? 1 : 0);
  });
  for (const std::string& name : opened.names) {
    if (is_scores(name)) continue;
    fits = fits && listed.count(name) == 1 && listed[name] == name_of(opened.engine->getTensorDataType(name.c_str()));
  }
  if (!fits) {
    throw BundleError(path.string() + " has other inputs or outputs than the manifest: run tx-build again");
  }
}

std::shared_ptr<const OpenEngine> open_file(const std::shared_ptr<Runtime>& runtime, const Built& built,
                                            const EngineFile& file, const Graph& graph) {
  const fs::path path = built.directory / file.file;
  const std::string data = read_bundle_file(path, static_cast<std::size_t>(file.bytes));
  auto opened = std::make_shared<OpenEngine>();
  opened->runtime = runtime;
  opened->engine.reset(runtime->runtime->deserializeCudaEngine(data.data(), data.size()));
  if (!opened->engine) {
    throw_failure<BundleError>(title() + " does not open " + path.string() + ": " + runtime->log.why() +
                               "; run tx-build again");
  }
  for (std::int32_t i = 0; i < opened->engine->getNbIOTensors(); ++i) {
    opened->names.insert(opened->engine->getIOTensorName(i));
  }
  check_tensors(path, *opened, graph, built.record.id_type);
  return opened;
}

std::vector<Bucket> open_role(const std::shared_ptr<Runtime>& runtime, const Built& built, const std::string& role,
                              const Graph& graph) {
  std::vector<Bucket> buckets;
  for (const EngineFile& file : built.record.of_role(role)) {
    const auto opened = open_file(runtime, built, file, graph);
    for (std::size_t i = 0; i < file.profiles.size(); ++i) {
      const Profile& profile = file.profiles[i];
      const std::int64_t target = profile.target ? profile.target->max : 0;
      buckets.push_back(
          {opened, static_cast<int>(i), {profile.batch.max, profile.source.max, target, profile.beams.value_or(1)}});
    }
  }
  return buckets;
}

// Return the maximum sizes that all engines of a directory accept.
Limits limits_of(const BuildRecord& record) {
  std::map<std::string, std::int64_t> batches;
  Limits limits{0, record.engines[0].profiles[0].source.max, 0};
  for (const EngineFile& file : record.engines) {
    for (const Profile& profile : file.profiles) {
      batches[file.role] = std::max(batches[file.role], profile.batch.max);
      limits.source = std::min(limits.source, profile.source.max);
      if (profile.target) limits.target = std::max(limits.target, profile.target->max);
    }
  }
  limits.batch = std::min(batches["encoder"], batches["decoder_step"]);
  return limits;
}

}  // namespace

Built find_trt(const fs::path& directory, const Manifest& manifest, bool trust_engines) {
  const auto gpu = find_gpu();
  if (const auto* why = std::get_if<std::string>(&gpu)) {
    throw MissingLibrary("device trt cannot be used here: " + *why + "; use device cpu");
  }
  return best(directory, manifest, std::get<Gpu>(gpu), tensorrt_version(), trust_engines);
}

std::unique_ptr<Engine> open_trt(const Manifest& manifest, const Built& built,
                                 const std::function<void(const std::string&)>& warn) {
  const BuildRecord& record = built.record;
  std::shared_ptr<Device> device = cuda_device();
  record.check_files(built.directory);
  std::shared_lock uncaptured(whole_device());
  const auto runtime = std::make_shared<Runtime>();
  runtime->runtime = make_tensorrt_runtime(runtime->log);
  if (record.version_compatible) runtime->runtime->setEngineHostCodeAllowed(true);
  const auto role = [&](const std::string& name, const Graph& graph) {
    return Role(graph, open_role(runtime, built, name, graph));
  };
  const Limits limits = limits_of(record);
  const Graph* graph = manifest.optional_graph(kBeams);
  if (graph == nullptr && !record.of_role(kBeams).empty()) {
    throw BundleError(built.directory.string() + " has engines of a graph that the bundle lacks: run tx-build again");
  }
  const Graph& step = manifest.step(record.lowering);
  Role beams = graph == nullptr ? Role(step, {}) : role(kBeams, *graph);
  auto program = std::make_unique<TrtProgram>(role(kEncoder, manifest.encoder()), role(kStep, step), std::move(beams),
                                              limits, manifest.model.heads, device);
  uncaptured.unlock();  // a program that is dropped takes it again
  return make_device_engine(
      manifest, {title() + ", lowering " + record.lowering + ", " + built.directory.filename().string(), limits,
                 record.id_type, record.lowering, std::move(device), std::move(program), warn});
}

}  // namespace txport::core
