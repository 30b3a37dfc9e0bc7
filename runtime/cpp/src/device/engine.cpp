#include "device/engine.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "bundle/interface.hpp"
#include "device/beams.hpp"
#include "device/state.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

// Maximum number of steps that the device may be ahead of the host. Steps after the end of the last row are wasted.
constexpr std::int64_t kMaxStepsAhead = 4;
constexpr std::int64_t kSourceMultiple =
    8;  // encoder sources are padded to a multiple of this, so that copies consist of whole words

class DeviceEngine : public Engine {
 public:
  DeviceEngine(const Manifest& manifest, DeviceParts parts)
      : parts_(std::move(parts)),
        tokens_(manifest.tokens),
        vocabulary_(manifest.model.target_vocabulary),
        encoder_(manifest.encoder()),
        source_name_(manifest.model.feature_size ? kFeatures : kInputIds),
        source_numbers_(manifest.model.feature_size.value_or(1)),
        step_{manifest.step(parts_.lowering), parts_.id_type, *parts_.program},
        pool_(step_, *parts_.device, latch_, tokens_.pad,
              [this](const DeviceBuffers& buffers) { return warm_up(buffers); }) {}

  const std::string& name() const override { return parts_.name; }
  const Limits& limits() const override { return parts_.limits; }
  const SpecialTokens& tokens() const override { return tokens_; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::int64_t poll() const override { return kMaxStepsAhead; }

  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    return encode_on_device(input_ids, tokens_.pad, source_lengths);
  }

  std::shared_ptr<const Memory> encode_features(const std::vector<float>& features,
                                                const Ids& source_lengths) const override {
    return encode_on_device(features, 0.0F, source_lengths);
  }

  // Encode ids `[batch, source]`, or vectors `[batch, source, feature_size]`. Buffers are padded with `pad`.
  template <typename Number>
  std::shared_ptr<const Memory> encode_on_device(const std::vector<Number>& sources, Number pad,
                                                 const Ids& source_lengths) const {
    const auto batch = static_cast<std::int64_t>(source_lengths.size());
    const std::int64_t source = static_cast<std::int64_t>(sources.size()) / batch / source_numbers_;
    const std::int64_t width =
        std::min((source + kSourceMultiple - 1) / kSourceMultiple * kSourceMultiple, parts_.limits.source);
    const StepSizes sizes{batch, width, 0};
    DeviceTensors tensors = tensors_of(encoder_, parts_.id_type, sizes);
    std::vector<Stack> stacks = source_stacks(tensors);
    const std::array others{kCrossBias, source_name_, "source_lengths"};  // not in stacks
    std::size_t bytes = 0;
    for (const Stack& stack : stacks) bytes += aligned(stack.bytes());
    for (const char* name : others) bytes += aligned(tensors.at(name).bytes());
    return latch_.guard([&] {
      Pool::Lease<Block> memory = pool_.memory(bytes);
      std::byte* at = memory->address();
      for (Stack& stack : stacks) {
        stack.put(at, tensors);
        at += aligned(stack.bytes());
      }
      for (const char* name : others) {
        tensors.at(name).address = at;
        at += aligned(tensors.at(name).bytes());
      }
      upload_padded(tensors.at(source_name_), sources, pad);
      upload(tensors.at("source_lengths"), source_lengths);
      parts_.program->encode(tensors, sizes);
      return std::make_shared<DeviceMemory>(std::move(memory), std::move(stacks), tensors.at(kCrossBias));
    });
  }

  std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                         const Outputs& outputs) const override {
    return latch_.guard([&]() -> std::unique_ptr<DecoderState> {
      const auto beams = static_cast<std::int64_t>(outputs.beams);
      // Without a beam search graph, beams are ordinary rows whose caches are copied.
      if (beams == 1 || parts_.program->beam_graph(beams) == nullptr) {
        return std::make_unique<DeviceState>(steps_, rows, source, target);
      }
      const StepSizes sizes{static_cast<std::int64_t>(rows) / beams, source, target, beams};
      return std::make_unique<DeviceBeams>(steps_, sizes);
    });
  }

  void synchronize() const override {
    latch_.guard([&] { parts_.device->synchronize(); });
  }

 private:
  const DeviceParts parts_;
  const SpecialTokens tokens_;
  const std::int64_t vocabulary_;
  const Graph encoder_;
  const char* const source_name_;      // of the ids or vectors that the encoder reads
  const std::int64_t source_numbers_;  // numbers of a token or vector
  const DeviceGraph step_;
  const Latch latch_;
  const Pool pool_;
  const DeviceSteps steps_{step_, pool_, latch_, tokens_};
  mutable bool warned_ = false;

  // Upload rows of numbers, padded to the rows of the tensor.
  template <typename Number>
  void upload_padded(const DeviceTensor& tensor, const std::vector<Number>& sources, Number pad) const {
    const auto rows = static_cast<std::size_t>(tensor.shape[0]);
    const std::size_t source = sources.size() / rows;
    const std::size_t width = tensor.count() / rows;
    std::vector<Number> padded(rows * width, pad);
    for (std::size_t row = 0; row < rows; ++row) {
      std::copy_n(sources.data() + row * source, source, padded.data() + row * width);
    }
    upload(tensor, padded);
  }

  void upload(const DeviceTensor& tensor, const std::vector<float>& numbers) const {
    parts_.device->upload(tensor.address, numbers.data(), tensor.bytes());
  }

  void upload(const DeviceTensor& tensor, const Ids& ids) const {
    const StateLayout layout(ids.size(), parts_.id_type);
    std::vector<std::byte> bytes(tensor.bytes());
    for (std::size_t i = 0; i < ids.size(); ++i) layout.set_id(bytes.data(), 0, i, ids[i]);
    parts_.device->upload(tensor.address, bytes.data(), bytes.size());
  }

  // Run steps on new buffers, in which all rows are finished. Libraries allocate memory and choose kernels in their
  // first runs, which cannot be captured. These steps write the first slot of the caches, which `place` clears.
  std::unique_ptr<StepGroups> warm_up(const DeviceBuffers& buffers) const {
    constexpr int kRuns = 2;
    for (int i = 0; i < kRuns; ++i) buffers.step(0);
    parts_.device->synchronize();
    CapturedRuns::OnRefused on_refused;
    if (parts_.program->can_be_captured()) on_refused = [this](const std::string& fault) { warn(fault); };
    return std::make_unique<StepGroups>(
        *parts_.device, [&buffers](std::size_t ring_index) { buffers.step(ring_index); }, std::move(on_refused));
  }

  void warn(const std::string& fault) const {
    if (!parts_.warn || std::exchange(warned_, true)) return;
    parts_.warn("steps are launched one by one, without CUDA graphs: " + fault);
  }
};

}  // namespace

std::unique_ptr<Engine> make_device_engine(const Manifest& manifest, DeviceParts parts) {
  return std::make_unique<DeviceEngine>(manifest, std::move(parts));
}

}  // namespace txport::core
