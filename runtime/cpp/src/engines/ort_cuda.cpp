// Both sessions work on the one stream that all batches share, which orders copies and steps without any waiting. The
// device captures a step as a CUDA graph, as with TensorRT: ONNX Runtime's own graphs belong to one thread each, and a
// stream of tokens may be read by any thread. Temporaries are ONNX Runtime's; they are dead between two runs, and runs
// do not overlap.

#include "engines/ort_cuda.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "bundle/interface.hpp"
#include "device/cuda.hpp"
#include "device/engine.hpp"
#include "engines/ort_session.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kShortestTarget = 32;

// What all batches share. The lock keeps what one thread captures apart from what others enqueue.
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
  std::size_t free_memory() override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->device->free_memory();
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
  void copy(Buffer to, Buffer from, std::size_t bytes, std::size_t count) override {
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
  std::function<void()> capture(std::function<void()> work, std::string& fault) override {
    const std::lock_guard lock(shared_->mutex);
    return [shared = shared_, replay = shared_->device->capture(std::move(work), fault)] {
      const std::lock_guard lock(shared->mutex);
      replay();
    };
  }
  void* stream() const override { return shared_->device->stream(); }

 private:
  std::shared_ptr<Shared> shared_;
};

// A session with its tensors bound.
class OrtBound : public BoundProgram {
 public:
  OrtBound(std::shared_ptr<Shared> shared, Ort::Session& session, const Graph& graph, DeviceTensors tensors)
      : shared_(std::move(shared)),
        session_(session),
        graph_(graph),
        tensors_(std::move(tensors)),
        memory_(shared_->where == "cuda" ? "Cuda" : "Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault),
        binding_(session) {
    // The stream orders everything; only polling waits for it.
    if (shared_->where == "cuda") options_.AddConfigEntry("disable_synchronize_execution_providers", "1");
  }

  void run(const StepSizes& sizes) override {
    const std::lock_guard lock(shared_->mutex);
    if (!(sizes == bound_)) bind(sizes);
    core::run(session_, options_, binding_);
  }

 private:
  std::shared_ptr<Shared> shared_;
  Ort::Session& session_;
  const Graph& graph_;
  const DeviceTensors tensors_;
  const Ort::MemoryInfo memory_;
  Ort::RunOptions options_;
  Ort::IoBinding binding_;
  StepSizes bound_;

  void bind(const StepSizes& sizes) {
    for (const Tensor& tensor : graph_.inputs) binding_.BindInput(tensor.name.c_str(), value(tensor, sizes));
    for (const Tensor& tensor : graph_.outputs) {
      if (is_bound(tensor)) binding_.BindOutput(tensor.name.c_str(), value(tensor, sizes));
    }
    bound_ = sizes;
  }

  // The beginning of a tensor's buffer, of as many items as these sizes have.
  Ort::Value value(const Tensor& tensor, const StepSizes& sizes) const {
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
      : shared_(std::move(shared)), graph_(std::move(graph)), limits_(limits), step_(graph_.role == kStep) {}

  // Powers of two, so that buffers and captured steps are reused.
  StepSizes bucket(const StepSizes& asked) const override {
    const std::int64_t target = power_of_two(std::max(asked.target, kShortestTarget), limits_.target);
    return {power_of_two(asked.batch, limits_.batch), source_bucket(asked.source, limits_.source), step_ ? target : 0};
  }

  std::unique_ptr<BoundProgram> bind(Device& /*device*/, const DeviceTensors& tensors,
                                     const StepSizes& /*bucket*/) const override {
    Ort::Session& session = step_ ? shared_->sessions.step : shared_->sessions.encoder;
    return std::make_unique<OrtBound>(shared_, session, graph_, tensors);
  }

  bool can_be_captured() const override { return shared_->where == "cuda"; }

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
      std::make_shared<Shared>(device, open_sessions(directory, manifest, choice, 0, device->stream()), choice.device);
  const Graph& step = shared->sessions.step_graph;
  DeviceParts parts{shared->sessions.name,
                    manifest.limits(),
                    "int64",
                    step.lowering,
                    [shared] { return std::make_shared<SharedDevice>(shared); },
                    std::make_unique<OrtProgram>(shared, manifest.encoder(), manifest.limits()),
                    std::make_unique<OrtProgram>(shared, step, manifest.limits()),
                    warn};
  return make_device_engine(manifest, std::move(parts));
}

std::unique_ptr<Engine> open_ort_cuda(const fs::path& directory, const Manifest& manifest, const Choice& choice,
                                      const std::function<void(const std::string&)>& warn) {
  if (!has_cuda_provider()) {
    throw MissingLibrary("device " + choice.device +
                         " needs an ONNX Runtime with its CUDA provider, which this one lacks: use device cpu");
  }
  return open_ort_on(cuda_devices()(), directory, manifest, choice, warn);
}

}  // namespace txport::core
