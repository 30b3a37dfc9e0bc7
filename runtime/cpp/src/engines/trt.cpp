// One execution context for each set of buffers, at the optimization profile of its bucket. All calls here are in
// TensorRT since 8.6 and still in 11.

#include "engines/trt.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "bundle/files.hpp"
#include "bundle/interface.hpp"
#include "device/cuda.hpp"
#include "device/engine.hpp"
#include "device/gpu.hpp"
#include "engines/tensorrt.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

// The runtime and its log, which all engines of a directory share and which must outlive them.
struct Runtime {
  TensorRtLog log;
  std::unique_ptr<nvinfer1::IRuntime> runtime;
};

// One engine file, opened.
struct OpenEngine {
  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<nvinfer1::ICudaEngine> engine;
  std::set<std::string> names;  // of its inputs and outputs
};

// One optimization profile and the engine that it is of.
struct Bucket {
  std::shared_ptr<const OpenEngine> engine;
  int profile;
  StepSizes most;  // target is 0 for an encoder
};

std::string title() { return tensorrt_version().title(); }

// One context with its tensors bound.
class TrtBound : public BoundProgram {
 public:
  TrtBound(Bucket bucket, const Graph& graph, Device& device, const DeviceTensors& tensors, const StepSizes& sizes)
      : bucket_(std::move(bucket)), graph_(graph), device_(device) {
    context_.reset(bucket_.engine->engine->createExecutionContext());
    if (!context_ || !context_->setOptimizationProfileAsync(bucket_.profile, stream())) {
      throw_failure(title() + " makes no execution context: " + bucket_.engine->runtime->log.why());
    }
    device_.synchronize();
    for (const std::string& name : bucket_.engine->names) {
      if (!context_->setTensorAddress(name.c_str(), tensors.at(name).address)) {
        throw EngineError(title() + " refuses the address of " + name);
      }
    }
    set_shapes(sizes);
  }

  void run(const StepSizes& sizes) override {
    if (!(sizes == shaped_)) set_shapes(sizes);
    if (!context_->enqueueV3(stream())) throw_failure(title() + " failed: " + bucket_.engine->runtime->log.why());
  }

 private:
  Bucket bucket_;
  const Graph& graph_;
  Device& device_;
  std::unique_ptr<nvinfer1::IExecutionContext> context_;
  StepSizes shaped_;

  cudaStream_t stream() const { return static_cast<cudaStream_t>(device_.stream()); }

  void set_shapes(const StepSizes& sizes) {
    const std::map<std::string, std::int64_t> named{
        {"batch", sizes.batch}, {"source", sizes.source}, {"target", sizes.target}};
    for (const Tensor& tensor : graph_.inputs) {
      if (bucket_.engine->names.count(tensor.name) == 0) continue;
      nvinfer1::Dims dims{};
      dims.nbDims = static_cast<std::int32_t>(tensor.shape.size());
      for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
        const auto* number = std::get_if<std::int64_t>(&tensor.shape[axis]);
        const std::int64_t size = number != nullptr ? *number : named.at(std::get<std::string>(tensor.shape[axis]));
        dims.d[axis] = static_cast<std::remove_reference_t<decltype(dims.d[0])>>(size);
      }
      if (!context_->setInputShape(tensor.name.c_str(), dims)) {
        throw EngineError(title() + " refuses the shape of " + tensor.name + " for a batch of " +
                          std::to_string(sizes.batch) + " rows: " + bucket_.engine->runtime->log.why());
      }
    }
    shaped_ = sizes;
  }
};

// All buckets of one role.
class TrtProgram : public Program {
 public:
  TrtProgram(Graph graph, std::vector<Bucket> buckets, std::int64_t source)
      : graph_(std::move(graph)), buckets_(std::move(buckets)), source_(source) {
    std::sort(buckets_.begin(), buckets_.end(), [](const Bucket& first, const Bucket& second) {
      return std::pair(first.most.batch, first.most.target) < std::pair(second.most.batch, second.most.target);
    });
  }

  StepSizes bucket(const StepSizes& asked) const override {
    const Bucket& found = smallest(asked);
    return {found.most.batch, source_bucket(asked.source, source_), found.most.target};
  }

  std::unique_ptr<BoundProgram> bind(Device& device, const DeviceTensors& tensors,
                                     const StepSizes& sizes) const override {
    return std::make_unique<TrtBound>(smallest(sizes), graph_, device, tensors, sizes);
  }

  bool can_be_captured() const override { return true; }

 private:
  const Graph graph_;
  std::vector<Bucket> buckets_;  // the fewest rows first, then the shortest cache
  std::int64_t source_;

  // The fewest rows, then the shortest cache, that have room.
  const Bucket& smallest(const StepSizes& asked) const {
    const auto found = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) {
      return bucket.most.batch >= asked.batch && bucket.most.target >= asked.target && asked.source <= source_;
    });
    if (found != buckets_.end()) return *found;
    throw BundleError("no TensorRT engine takes a batch of " + std::to_string(asked.batch) + " rows of " +
                      std::to_string(asked.source) + " source and " + std::to_string(asked.target) +
                      " target tokens: use a smaller batch, or run tx-build again for larger ones");
  }
};

// Inputs and outputs; an input that nothing reads may be left out. TensorRT wants memory for every output that an
// engine has: those that are not bound must have been removed by tx-build.
void check_tensors(const fs::path& path, const OpenEngine& opened, const Graph& graph, const std::string& id_type) {
  std::map<std::string, std::string> listed;
  for (const auto* tensors : {&graph.inputs, &graph.outputs}) {
    for (const Tensor& tensor : *tensors) listed[tensor.name] = tensor.dtype == "int64" ? id_type : tensor.dtype;
  }
  bool fits = std::all_of(graph.outputs.begin(), graph.outputs.end(), [&](const Tensor& tensor) {
    return opened.names.count(tensor.name) == (is_bound(tensor) ? 1 : 0);
  });
  for (const std::string& name : opened.names) {
    fits = fits && listed.count(name) == 1 && listed[name] == name_of(opened.engine->getTensorDataType(name.c_str()));
  }
  if (!fits) {
    throw BundleError(path.string() + " has other inputs or outputs than the manifest says: run tx-build again");
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
      buckets.push_back({opened, static_cast<int>(i), {profile.batch.max, profile.source.max, target}});
    }
  }
  return buckets;
}

// The largest sizes that all engines of a directory accept.
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

Built find_trt(const fs::path& directory, const Manifest& manifest) {
  const auto gpu = find_gpu();
  if (const auto* why = std::get_if<std::string>(&gpu)) {
    throw MissingLibrary("device trt cannot be used here: " + *why + "; use device cpu");
  }
  return best(directory, manifest, std::get<Gpu>(gpu), tensorrt_version());
}

std::unique_ptr<Engine> open_trt(const Manifest& manifest, const Built& built,
                                 const std::function<void(const std::string&)>& warn) {
  const BuildRecord& record = built.record;
  MakeDevice make_device = cuda_devices();
  record.check_files(built.directory);
  const auto runtime = std::make_shared<Runtime>();
  runtime->runtime = make_tensorrt_runtime(runtime->log);
  if (record.version_compatible) runtime->runtime->setEngineHostCodeAllowed(true);
  const Graph& encoder = manifest.encoder();
  const Graph& step = manifest.step(record.lowering);
  const Limits limits = limits_of(record);
  // The current context is that of the device from here on.
  make_device();
  DeviceParts parts{title() + ", lowering " + record.lowering + ", " + built.directory.filename().string(),
                    limits,
                    record.id_type,
                    record.lowering,
                    std::move(make_device),
                    std::make_unique<TrtProgram>(encoder, open_role(runtime, built, "encoder", encoder), limits.source),
                    std::make_unique<TrtProgram>(step, open_role(runtime, built, "decoder_step", step), limits.source),
                    warn};
  return make_device_engine(manifest, std::move(parts));
}

}  // namespace txport::core
