#include "device/engine.hpp"

#include <atomic>
#include <utility>

#include "bundle/interface.hpp"
#include "device/state.hpp"

namespace txport::core {

namespace {

// Steps that the device makes between two polls of the host: a poll costs about a tenth of a step, and what is made
// after the last row has finished is lost.
constexpr std::int64_t kPoll = 4;

class DeviceEngine : public Engine {
 public:
  DeviceEngine(const Manifest& manifest, DeviceParts parts)
      : parts_(std::move(parts)),
        tokens_(manifest.tokens),
        encoder_{manifest.encoder(), parts_.id_type, *parts_.encoder, nullptr},
        step_{manifest.step(parts_.lowering), parts_.id_type, *parts_.step,
              [this](const DeviceBuffers& buffers) { return warm_up(buffers); }},
        pool_(parts_.make_device) {}

  const std::string& name() const override { return parts_.name; }
  const Limits& limits() const override { return parts_.limits; }
  const SpecialTokens& tokens() const override { return tokens_; }
  std::int64_t poll() const override { return kPoll; }

  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    const auto batch = static_cast<std::int64_t>(source_lengths.size());
    const StepSizes sizes{batch, static_cast<std::int64_t>(input_ids.size()) / batch, 0};
    return latch_.guard([&] {
      Pool::Lease buffers = pool_.take(encoder_, sizes);
      upload_ids(*buffers, "input_ids", input_ids);
      upload_ids(*buffers, "source_lengths", source_lengths);
      buffers->program().run(sizes);
      // States copy from here on streams of their own.
      buffers->device().synchronize();
      return std::make_shared<DeviceMemory>(std::move(buffers), sizes.source);
    });
  }

  std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                         bool logits) const override {
    return latch_.guard([&] { return std::make_unique<DeviceState>(steps_, rows, source, target, logits); });
  }

 private:
  const DeviceParts parts_;
  const SpecialTokens tokens_;
  const DeviceGraph encoder_;
  const DeviceGraph step_;
  const Pool pool_;
  const Latch latch_;
  const DeviceSteps steps_{step_, pool_, latch_, tokens_};
  mutable std::atomic<bool> warned_ = false;

  // New buffers of a step: what never changes, and the step captured. It runs twice before, since early runs may
  // compile and allocate, which cannot be captured: ONNX Runtime plans its memory in the first run and allocates it in
  // the second. They write the first slot of the caches, which `place` clears.
  std::function<void()> warm_up(const DeviceBuffers& buffers) const {
    reset(buffers, tokens_.pad);
    Ids positions(static_cast<std::size_t>(buffers.sizes().target));
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
    upload_ids(buffers, kCachePositions, positions);
    const auto run = [&buffers] { buffers.program().run(buffers.sizes()); };
    run();
    run();
    buffers.device().synchronize();
    if (!parts_.step->can_be_captured()) return run;
    std::string fault;
    auto replay = buffers.device().capture(run, fault);
    if (!fault.empty() && parts_.warn && !warned_.exchange(true)) {
      parts_.warn("steps are launched one by one, without CUDA graphs: " + fault);
    }
    return replay;
  }
};

}  // namespace

std::unique_ptr<Engine> make_device_engine(const Manifest& manifest, DeviceParts parts) {
  return std::make_unique<DeviceEngine>(manifest, std::move(parts));
}

}  // namespace txport::core
