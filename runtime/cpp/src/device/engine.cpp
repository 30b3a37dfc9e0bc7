#include "device/engine.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "device/buffers.hpp"

namespace txport::core {

namespace {

// Added to the attention scores of padding: far below any score, yet finite in float16.
constexpr float kMasked = -30000.0F;
constexpr std::uint32_t kMaskedHalf = 0xF753;  // the same number in float16
// Steps that the device makes before the host looks: looking costs about a tenth of a step, and what is made after the
// last row has finished is lost.
constexpr std::int64_t kPoll = 4;

bool is_cache(const std::string& name) { return name.rfind("self_", 0) == 0; }
bool is_cross(const std::string& name) { return name.rfind("cross_", 0) == 0; }

// IEEE 754 binary16: 1 bit of sign, 5 of exponent, 10 of fraction.
float float_of_half(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const float fraction = static_cast<float>(half & 1023) / 1024;
  const float sign = (half & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15));
}

// The encoder's output, in buffers that go back when it does.
class DeviceMemory : public Memory {
 public:
  DeviceMemory(Pool::Lease buffers, std::int64_t width) : buffers(std::move(buffers)), width(width) {}
  const Pool::Lease buffers;
  const std::int64_t width;  // of its rows, in tokens
};

// Write ids from row `first` on, in the tensor's own type; a graph may lack the tensor.
void upload_ids(DeviceBuffers& buffers, const std::string& name, const Ids& ids, std::size_t first = 0) {
  const DeviceTensor* tensor = buffers.find(name);
  if (tensor == nullptr) return;
  std::byte* to = tensor->address + first * tensor->item_bytes;
  if (tensor->item_bytes == sizeof(std::int64_t)) {
    buffers.device().upload(to, ids.data(), ids.size() * sizeof(std::int64_t));
  } else {
    const std::vector<std::int32_t> narrow(ids.begin(), ids.end());
    buffers.device().upload(to, narrow.data(), narrow.size() * sizeof(std::int32_t));
  }
}

class DeviceEngine : public Engine {
 public:
  DeviceEngine(const Manifest& manifest, DeviceParts given)
      : parts(std::move(given)),
        pad(manifest.tokens.pad),
        tokens_(manifest.tokens),
        encoders(*manifest.graph("encoder"), parts.id_type, *parts.encoder, parts.make_device, nullptr),
        steps(*manifest.graph("decoder_step", parts.lowering), parts.id_type, *parts.step, parts.make_device,
              [this](DeviceBuffers& buffers) { warm_up(buffers); }) {}

  const std::string& name() const override { return parts.name; }
  const Limits& limits() const override { return parts.limits; }
  const SpecialTokens& tokens() const override { return tokens_; }
  std::int64_t poll() const override { return kPoll; }

  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    const auto batch = static_cast<std::int64_t>(source_lengths.size());
    const BatchSizes sizes{batch, static_cast<std::int64_t>(input_ids.size()) / batch, 0};
    Pool::Lease buffers = encoders.take(sizes);
    upload_ids(*buffers, "input_ids", input_ids);
    upload_ids(*buffers, "source_lengths", source_lengths);
    buffers->program().run(sizes);
    // Whoever copies from here does so on another queue.
    buffers->device().synchronize();
    return std::make_shared<DeviceMemory>(std::move(buffers), sizes.source);
  }

  std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                         bool logits) const override;

  // Every row finished, as if it had never been placed.
  void reset(DeviceBuffers& buffers) const {
    const auto rows = static_cast<std::size_t>(buffers.sizes().batch);
    upload_ids(buffers, "token_ids", Ids(rows, pad));
    upload_ids(buffers, "positions", Ids(rows, 0));
    upload_ids(buffers, "target_limits", Ids(rows, 1));
    Device& device = buffers.device();
    device.fill(buffers.at("finished").address, 1, 1, rows);
  }

  const DeviceParts parts;
  const std::int64_t pad;

 private:
  SpecialTokens tokens_;
  mutable std::atomic<bool> warned_ = false;

 public:
  mutable Pool encoders;
  mutable Pool steps;

 private:
  // New buffers of a step: what never changes, and the step recorded. Its first runs are made before, since they may
  // still compile and allocate, which cannot be recorded: ONNX Runtime plans its memory in the first one and has it in
  // the second. They write the first slot of caches, which `place` clears.
  void warm_up(DeviceBuffers& buffers) const {
    reset(buffers);
    Ids positions(static_cast<std::size_t>(buffers.sizes().target));
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
    upload_ids(buffers, "cache_positions", positions);
    const auto run = [&buffers] { buffers.program().run(buffers.sizes()); };
    run();
    run();
    buffers.device().synchronize();
    if (!parts.step->can_be_recorded()) return buffers.set_replay(run);
    std::string fault;
    buffers.set_replay(buffers.device().record(run, fault));
    if (!fault.empty() && parts.warn && !warned_.exchange(true)) {
      parts.warn("steps are launched one by one, without CUDA graphs: " + fault);
    }
  }
};

// One running batch. Its rows are some of the rows of its buffers.
class DeviceState : public DecoderState {
 public:
  DeviceState(const DeviceEngine& engine, Pool::Lease buffers, std::vector<std::size_t> places, std::int64_t source,
              bool logits)
      : engine_(engine), buffers_(std::move(buffers)), places_(std::move(places)), source_(source), logits_(logits) {}

  std::size_t rows() const override { return places_.size(); }
  std::int64_t source() const override { return source_; }
  std::int64_t target() const override { return buffers_->sizes().target; }

  // What earlier sentences left in a row is cleared: it is masked, but a NaN would come through the mask.
  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override {
    const auto& encoded = dynamic_cast<const DeviceMemory&>(memory);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t place = places_[rows[i]];
      for (const auto& [name, tensor] : buffers_->inputs()) {
        if (is_cache(name)) {
          const std::size_t bytes = tensor.row_bytes();
          device().fill(tensor.address + place * bytes, 0, 1, bytes);
        } else if (is_cross(name)) {
          place_source(encoded, memory_rows[i], tensor, name, place);
        }
      }
      upload_ids(*buffers_, "token_ids", {engine_.tokens().bos}, place);
      upload_ids(*buffers_, "positions", {0}, place);
      upload_ids(*buffers_, "target_limits", {target_limits[i]}, place);
      device().fill(buffers_->at("finished").address + place, 0, 1, 1);
    }
    // The encoder's buffers may be given to somebody else once this has returned.
    device().synchronize();
  }

  void step(std::int64_t count) override {
    const DeviceTensor& made = buffers_->at("token_ids");
    for (std::int64_t i = 0; i < count; ++i) {
      if (pending_ == kRingSteps) take_pending();
      buffers_->replay();
      std::byte* slot = buffers_->ring() + pending_ * made.bytes();
      device().copy({slot, made.bytes()}, {made.address, made.bytes()}, made.bytes(), 1);
      ++pending_;
    }
  }

  StepOutput read() override {
    take_pending();
    StepOutput output{std::move(made_), {}};
    made_.clear();
    const std::vector<std::uint8_t> flags = finished();
    for (const std::size_t place : places_) output.finished.push_back(flags[place] != 0);
    return output;
  }

  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override {
    const std::vector<std::uint8_t> flags = this->finished();
    const Ids positions = download_ids("positions");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t place = places_[rows[i]];
      if (flags[place] != 0 && !finished[i]) {
        upload_ids(*buffers_, "positions", {positions[place] + 1}, place);
      }
      upload_ids(*buffers_, "token_ids", {token_ids[i]}, place);
      device().fill(buffers_->at("finished").address + place, finished[i] ? 1 : 0, 1, 1);
    }
  }

  std::vector<float> logits(std::size_t row) override {
    const DeviceTensor& tensor = buffers_->at("logits");
    const std::byte* from = tensor.address + places_[row] * tensor.row_bytes();
    std::vector<float> result(tensor.row_bytes() / tensor.item_bytes);
    if (tensor.item_bytes == sizeof(float)) {
      device().download(result.data(), from, tensor.row_bytes());
      return result;
    }
    std::vector<std::uint16_t> halves(result.size());
    device().download(halves.data(), from, tensor.row_bytes());
    std::transform(halves.begin(), halves.end(), result.begin(), float_of_half);
    return result;
  }

  // Rows stay where they are if no other bucket would be taken.
  std::unique_ptr<DecoderState> moved(const std::vector<std::size_t>& rows, std::int64_t target) override {
    std::vector<std::size_t> places;
    places.reserve(rows.size());
    for (const std::size_t row : rows) places.push_back(places_[row]);
    const BatchSizes asked{static_cast<std::int64_t>(rows.size()), source_, target};
    if (engine_.parts.step->bucket(asked) == buffers_->sizes()) {
      return std::make_unique<DeviceState>(engine_, std::move(buffers_), std::move(places), source_, logits_);
    }
    auto next = engine_.allocate(rows.size(), source_, target, logits_);
    dynamic_cast<DeviceState&>(*next).copy_rows(*this, places);
    return next;
  }

 private:
  const DeviceEngine& engine_;
  Pool::Lease buffers_;
  std::vector<std::size_t> places_;  // of each row, in the buffers
  std::int64_t source_;
  bool logits_;
  std::size_t pending_ = 0;  // steps in the ring
  Ids made_;                 // [steps, rows], taken from the ring

  Device& device() const { return buffers_->device(); }

  std::vector<std::uint8_t> finished() const {
    std::vector<std::uint8_t> flags(static_cast<std::size_t>(buffers_->sizes().batch));
    device().download(flags.data(), buffers_->at("finished").address, flags.size());
    return flags;
  }

  Ids download_ids(const std::string& name) const {
    const DeviceTensor& tensor = buffers_->at(name);
    return download_ids(tensor.address, tensor.count(), tensor.item_bytes);
  }

  Ids download_ids(const std::byte* from, std::size_t count, std::size_t item_bytes) const {
    if (item_bytes == sizeof(std::int64_t)) {
      Ids ids(count);
      device().download(ids.data(), from, count * item_bytes);
      return ids;
    }
    std::vector<std::int32_t> narrow(count);
    device().download(narrow.data(), from, count * item_bytes);
    return {narrow.begin(), narrow.end()};
  }

  void take_pending() {
    if (pending_ == 0) return;
    const DeviceTensor& tokens = buffers_->at("token_ids");
    const Ids ring = download_ids(buffers_->ring(), pending_ * tokens.count(), tokens.item_bytes);
    for (std::size_t i = 0; i < pending_; ++i) {
      for (const std::size_t place : places_) made_.push_back(ring[i * tokens.count() + place]);
    }
    pending_ = 0;
  }

  // One row of the encoder's keys, values or bias; the rest of the row is zeroed, or masked.
  void place_source(const DeviceMemory& encoded, std::size_t from_row, const DeviceTensor& to, const std::string& name,
                    std::size_t place) const {
    const DeviceTensor& from = encoded.buffers->at(name);
    const bool bias = name == "cross_bias";
    std::byte* row = to.address + place * to.row_bytes();
    if (bias && to.item_bytes == sizeof(float)) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &kMasked, sizeof(bits));
      device().fill(row, bits, 4, to.row_bytes() / 4);
    } else if (bias) {
      device().fill(row, kMaskedHalf, 2, to.row_bytes() / 2);
    } else {
      device().fill(row, 0, 1, to.row_bytes());
    }
    // [rows, heads, tokens, head_dim], or [rows, 1, 1, tokens] of the bias: pieces of all tokens of a head.
    const auto width = static_cast<std::size_t>(encoded.width);
    const auto pieces = bias ? 1 : static_cast<std::size_t>(to.shape[1]);
    const std::size_t item = to.item_bytes * (bias ? 1 : static_cast<std::size_t>(to.shape[3]));
    const std::size_t stride = static_cast<std::size_t>(buffers_->sizes().source) * item;
    device().copy({row, stride}, {from.address + from_row * pieces * width * item, width * item}, width * item, pieces);
  }

  void copy_rows(DeviceState& other, const std::vector<std::size_t>& from_places) {
    const Ids positions = other.download_ids("positions");  // waits for the other queue, too
    for (const auto& [name, tensor] : buffers_->inputs()) {
      if (name == "cache_positions" || name == "logits") continue;
      const DeviceTensor& from = other.buffers_->at(name);
      for (std::size_t i = 0; i < from_places.size(); ++i) {
        std::byte* to_row = tensor.address + places_[i] * tensor.row_bytes();
        std::byte* from_row = from.address + from_places[i] * from.row_bytes();
        if (!is_cache(name)) {
          device().copy({to_row, tensor.row_bytes()}, {from_row, from.row_bytes()}, tensor.row_bytes(), 1);
          continue;
        }
        device().fill(to_row, 0, 1, tensor.row_bytes());
        const auto heads = static_cast<std::size_t>(tensor.shape[1]);
        const std::size_t token_bytes = static_cast<std::size_t>(tensor.shape[3]) * tensor.item_bytes;
        const std::int64_t used = std::min({positions[from_places[i]] + 1, target(), other.target()});
        device().copy({to_row, tensor.row_bytes() / heads}, {from_row, from.row_bytes() / heads},
                      static_cast<std::size_t>(used) * token_bytes, heads);
      }
    }
    // The other buffers may be given to somebody else once this has returned.
    device().synchronize();
  }
};

std::unique_ptr<DecoderState> DeviceEngine::allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                                     bool logits) const {
  Pool::Lease buffers = steps.take({static_cast<std::int64_t>(rows), source, target});
  reset(*buffers);
  std::vector<std::size_t> places(rows);
  for (std::size_t row = 0; row < rows; ++row) places[row] = row;
  return std::make_unique<DeviceState>(*this, std::move(buffers), std::move(places), source, logits);
}

}  // namespace

std::int64_t source_bucket(std::int64_t source, std::int64_t most) {
  std::int64_t width = 32;
  while (width < source) width *= 2;
  return std::min(width, most);
}

std::unique_ptr<Engine> make_device_engine(const Manifest& manifest, DeviceParts parts) {
  return std::make_unique<DeviceEngine>(manifest, std::move(parts));
}

}  // namespace txport::core
