// Both sessions work on the one stream that all batches share, which orders copies and steps without any waiting. A
// step is recorded as a CUDA graph by the device, as with TensorRT: ONNX Runtime's own graphs belong to one thread
// each, and a stream of tokens may be read in any. Temporaries are ONNX Runtime's; they are dead between two runs, and
// runs do not overlap.

#include "engines/ort_cuda.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "device/cuda.hpp"
#include "device/engine.hpp"
#include "engines/ort_session.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kShortestTarget = 32;

// What all batches share. The lock keeps what one thread records apart from what others ask for.
struct Shared {
  Shared(std::shared_ptr<Device> device, OrtSessions sessions, std::string where)
      : device(std::move(device)), sessions(std::move(sessions)), where(std::move(where)) {}

  std::shared_ptr<Device> device;
  OrtSessions sessions;
  std::string where;  // cuda or cpu
  std::recursive_mutex mutex;
};

// The shared device for one batch.
class SharedDevice : public Device {
 public:
  explicit SharedDevice(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::byte* allocate(std::size_t bytes) override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->device->allocate(bytes);
  }
  void free(std::byte* address) noexcept override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device->free(address);
  }
  void upload(std::byte* to, const void* from, std::size_t bytes) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device->upload(to, from, bytes);
  }
  void download(void* to, const std::byte* from, std::size_t bytes) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device->download(to, from, bytes);
  }
  void copy(Pieces to, Pieces from, std::size_t bytes, std::size_t count) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device->copy(to, from, bytes, count);
  }
  void fill(std::byte* to, std::uint32_t pattern, std::size_t item_bytes, std::size_t count) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device->fill(to, pattern, item_bytes, count);
  }
  void synchronize() override {
    const std::lock_guard lock(shared_->mutex);
    shared_->device->synchronize();
  }
  std::function<void()> record(std::function<void()> work, std::string& fault) override {
    const std::lock_guard lock(shared_->mutex);
    return [shared = shared_, replay = shared_->device->record(std::move(work), fault)] {
      const std::lock_guard lock(shared->mutex);
      replay();
    };
  }
  void* queue() const override { return shared_->device->queue(); }

 private:
  std::shared_ptr<Shared> shared_;
};

// A session with its tensors bound.
class OrtBound : public BoundProgram {
 public:
  OrtBound(std::shared_ptr<Shared> shared, const Ort::Session& session, const Graph& graph, DeviceTensors tensors)
      : shared_(std::move(shared)),
        session_(session),
        graph_(graph),
        tensors_(std::move(tensors)),
        memory_(shared_->where == "cuda" ? "Cuda" : "Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault),
        binding_(const_cast<Ort::Session&>(session)) {
    // The stream orders everything; only a look at the tokens waits for it.
    if (shared_->where == "cuda") options_.AddConfigEntry("disable_synchronize_execution_providers", "1");
  }

  void run(const BatchSizes& sizes) override {
    const std::lock_guard lock(shared_->mutex);
    if (!(sizes == bound_)) bind(sizes);
    try {
      core::run(session_, options_, binding_);
    } catch (const BundleError& error) {
      throw DeviceError(error.what());
    }
  }

 private:
  std::shared_ptr<Shared> shared_;
  const Ort::Session& session_;
  const Graph& graph_;
  const DeviceTensors tensors_;
  const Ort::MemoryInfo memory_;
  Ort::RunOptions options_;
  Ort::IoBinding binding_;
  BatchSizes bound_;

  void bind(const BatchSizes& sizes) {
    for (const Tensor& tensor : graph_.inputs) binding_.BindInput(tensor.name.c_str(), value(tensor, sizes));
    for (const Tensor& tensor : graph_.outputs) binding_.BindOutput(tensor.name.c_str(), value(tensor, sizes));
    bound_ = sizes;
  }

  // The beginning of a tensor's buffer, of as many items as these sizes have.
  Ort::Value value(const Tensor& tensor, const BatchSizes& sizes) const {
    const DeviceTensor& buffer = tensors_.at(tensor.name);
    std::vector<std::int64_t> shape;
    std::size_t bytes = buffer.item_bytes;
    for (const Size& size : tensor.shape) {
      if (const auto* number = std::get_if<std::int64_t>(&size)) {
        shape.push_back(*number);
      } else {
        const auto& name = std::get<std::string>(size);
        shape.push_back(name == "batch" ? sizes.batch : name == "source" ? sizes.source : sizes.target);
      }
      bytes *= static_cast<std::size_t>(shape.back());
    }
    return Ort::Value::CreateTensor(memory_, buffer.address, bytes, shape.data(), shape.size(),
                                    type_of(tensor.dtype).onnx);
  }
};

std::int64_t power_of_two(std::int64_t number, std::int64_t most) {
  std::int64_t power = 1;
  while (power < number) power *= 2;
  return std::min(power, most);
}

class OrtProgram : public Program {
 public:
  OrtProgram(std::shared_ptr<Shared> shared, Graph graph, Limits limits)
      : shared_(std::move(shared)), graph_(std::move(graph)), limits_(limits), step_(graph_.role == "decoder_step") {}

  // Powers of two, so that buffers and what is recorded are found again.
  BatchSizes bucket(const BatchSizes& asked) const override {
    const std::int64_t target = power_of_two(std::max(asked.target, kShortestTarget), limits_.target);
    return {power_of_two(asked.batch, limits_.batch), source_bucket(asked.source, limits_.source), step_ ? target : 0};
  }

  std::unique_ptr<BoundProgram> bind(Device& /*device*/, const DeviceTensors& tensors,
                                     const BatchSizes& /*bucket*/) const override {
    const Ort::Session& session = step_ ? shared_->sessions.step : shared_->sessions.encoder;
    return std::make_unique<OrtBound>(shared_, session, graph_, tensors);
  }

  bool can_be_recorded() const override { return shared_->where == "cuda"; }

 private:
  std::shared_ptr<Shared> shared_;
  const Graph graph_;
  const Limits limits_;
  const bool step_;
};

}  // namespace

std::unique_ptr<Engine> open_ort_on(const std::shared_ptr<Device>& device, const fs::path& directory,
                                    const Manifest& manifest, const Choice& choice,
                                    const std::function<void(const std::string&)>& warn) {
  const auto shared =
      std::make_shared<Shared>(device, open_sessions(directory, manifest, choice, 0, device->queue()), choice.device);
  const Graph& step = shared->sessions.step_graph;
  DeviceParts parts{shared->sessions.name,
                    manifest.limits(),
                    "int64",
                    step.lowering,
                    [shared] { return std::make_shared<SharedDevice>(shared); },
                    std::make_unique<OrtProgram>(shared, *manifest.graph("encoder"), manifest.limits()),
                    std::make_unique<OrtProgram>(shared, step, manifest.limits()),
                    warn};
  return make_device_engine(manifest, std::move(parts));
}

std::unique_ptr<Engine> open_ort_cuda(const fs::path& directory, const Manifest& manifest, const Choice& choice,
                                      const std::function<void(const std::string&)>& warn) {
  if (!has_cuda_provider()) {
    throw InputError("device " + choice.device +
                     " needs an ONNX Runtime with its CUDA provider, which this one has not: use device cpu");
  }
  return open_ort_on(cuda_devices()(), directory, manifest, choice, warn);
}

}  // namespace txport::core
