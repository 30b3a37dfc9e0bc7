// Both sessions use the stream of the device, which orders copies and steps without waiting. The device captures steps
// as CUDA graphs, as for TensorRT. CUDA graphs of ONNX Runtime are not used, because they belong to one thread, but any
// thread may read a stream of tokens. ONNX Runtime owns the temporaries. They are unused between runs, and runs do not
// overlap.

#include "engines/ort_cuda.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <utility>

#include "bundle/interface.hpp"
#include "device/capture.hpp"
#include "device/cuda.hpp"
#include "device/engine.hpp"
#include "engines/ort_session.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::int64_t kMinTarget = 32;

// A session with bound tensors.
class Bound {
 public:
  Bound(Ort::Session& session, const Graph& graph, const DeviceTensors& tensors, bool on_gpu)
      : session_(session), binding_(session) {
    const Ort::MemoryInfo memory(on_gpu ? "Cuda" : "Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault);
    const auto value = [&](const Tensor& tensor) {
      const DeviceTensor& buffer = tensors.at(tensor.name);
      return Ort::Value::CreateTensor(memory, buffer.address, buffer.bytes(), buffer.shape.data(), buffer.shape.size(),
                                      type_of(tensor.dtype).onnx);
    };
    for (const Tensor& tensor : graph.inputs) binding_.BindInput(tensor.name.c_str(), value(tensor));
    for (const Tensor& tensor : graph.outputs) {
      if (is_bound(tensor)) binding_.BindOutput(tensor.name.c_str(), value(tensor));
    }
    // The stream orders all work; the host only waits when it reads.
    if (on_gpu) options_.AddConfigEntry("disable_synchronize_execution_providers", "1");
  }

  void run() { core::run(session_, options_, binding_); }

 private:
  Ort::Session& session_;
  Ort::RunOptions options_;
  Ort::IoBinding binding_;
};

std::int64_t power_of_two(std::int64_t number, std::int64_t maximum) {
  std::int64_t power = 1;
  while (power < number) power *= 2;
  return std::min(power, maximum);
}

class OrtProgram : public Program {
 public:
  // `device` must outlive the program.
  OrtProgram(OrtSessions sessions, std::unique_ptr<BeamSession> beams, const Manifest& manifest, Device& device,
             bool on_gpu)
      : sessions_(std::make_unique<const OrtSessions>(std::move(sessions))),
        beams_(std::move(beams)),
        encoder_(manifest.encoder()),
        limits_(manifest.limits()),
        on_gpu_(on_gpu),
        encoder_runs_(device, 3, nullptr) {}

  ~OrtProgram() override {
    const std::shared_lock uncaptured(whole_device());
    beams_.reset();
    sessions_.reset();
  }
  OrtProgram(const OrtProgram&) = delete;
  OrtProgram& operator=(const OrtProgram&) = delete;

  // The graph supports any number of rows. Its session has its own copy of the weights on the GPU.
  const Graph* beam_graph(std::int64_t /*beams*/) const override {
    return beams_->open() == nullptr ? nullptr : &beams_->graph();
  }

  // Round sizes up to powers of two, so that buffers and captured steps are reused.
  StepSizes bucket(const StepSizes& requested) const override {
    const std::int64_t target = power_of_two(std::max(requested.target, kMinTarget), limits_.target);
    const std::int64_t maximum = std::max<std::int64_t>(limits_.batch / requested.beams, 1);
    return {power_of_two(requested.batch, maximum), source_bucket(requested.source, limits_.source), target,
            requested.beams};
  }

  std::function<void()> bind(const DeviceTensors& tensors, const StepSizes& sizes) const override {
    Ort::Session& session = sizes.beams == 1 ? sessions_->step : *beams_->open();
    const Graph& graph = sizes.beams == 1 ? sessions_->step_graph : beams_->graph();
    const auto bound = std::make_shared<Bound>(session, graph, tensors, on_gpu_);
    return [bound] { bound->run(); };
  }

  // A captured run can be reused for the same address and sizes, which determine the computation.
  void encode(const DeviceTensors& tensors, const StepSizes& sizes) const override {
    const auto run = [&] {
      Bound(sessions_->encoder, encoder_, tensors, on_gpu_).run();
    };  // only called during this call
    on_gpu_ ? encoder_runs_.launch({tensors.at(encoder_.inputs.front().name).address, sizes.batch, sizes.source}, run)
            : run();
  }

  bool can_be_captured() const override { return on_gpu_; }
  bool runs_in_order() const override { return true; }

 private:
  std::unique_ptr<const OrtSessions> sessions_;
  std::unique_ptr<const BeamSession> beams_;
  const Graph encoder_;
  const Limits limits_;
  const bool on_gpu_;
  mutable CapturedRuns encoder_runs_;
};

}  // namespace

std::unique_ptr<Engine> open_ort_on(std::shared_ptr<Device> device, const Bundle& bundle, const Manifest& manifest,
                                    const Choice& choice, const std::function<void(const std::string&)>& warn) {
  OrtSessions sessions = open_sessions(bundle, manifest, choice, 1, device->stream());
  std::string name = sessions.name;
  std::string lowering = sessions.step_graph.lowering;
  auto beams = std::make_unique<BeamSession>(bundle, manifest, choice.device, 1, device->stream());
  auto program =
      std::make_unique<OrtProgram>(std::move(sessions), std::move(beams), manifest, *device, choice.device == "cuda");
  return make_device_engine(manifest, {std::move(name), manifest.limits(), "int64", std::move(lowering),
                                       std::move(device), std::move(program), warn});
}

std::unique_ptr<Engine> open_ort_cuda(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
                                      const std::function<void(const std::string&)>& warn) {
  if (!has_cuda_provider()) {
    throw MissingLibrary("device " + choice.device +
                         " needs an ONNX Runtime with its CUDA provider, which this one lacks: use device cpu");
  }
  return open_ort_on(cuda_device(), bundle, manifest, choice, warn);
}

}  // namespace txport::core
