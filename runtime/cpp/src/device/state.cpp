#include "device/state.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "bundle/interface.hpp"

namespace txport::core {

namespace {

constexpr std::uint32_t kMaskedHalf = 0xF753;  // kMasked in float16

// IEEE 754 binary16: 1 bit of sign, 5 of exponent, 10 of fraction.
float float_of_half(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const float fraction = static_cast<float>(half & 1023) / 1024;
  const float sign = (half & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15));
}

std::vector<std::size_t> first_places(std::size_t rows) {
  std::vector<std::size_t> places(rows);
  for (std::size_t row = 0; row < rows; ++row) places[row] = row;
  return places;
}

}  // namespace

void upload_ids(const DeviceBuffers& buffers, const std::string& name, const Ids& ids, std::size_t first) {
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

void reset(const DeviceBuffers& buffers, std::int64_t pad) {
  const auto rows = static_cast<std::size_t>(buffers.sizes().batch);
  upload_ids(buffers, "token_ids", Ids(rows, pad));
  upload_ids(buffers, "positions", Ids(rows, 0));
  upload_ids(buffers, "target_limits", Ids(rows, 1));
  buffers.device().fill(buffers.at("finished").address, 1, 1, rows);
}

DeviceState::DeviceState(const DeviceSteps& steps, std::size_t rows, std::int64_t source, std::int64_t target,
                         bool logits)
    : DeviceState(steps, steps.pool.take(steps.graph, {static_cast<std::int64_t>(rows), source, target}),
                  first_places(rows), source, logits) {
  reset(*buffers_, steps_.tokens.pad);
}

DeviceState::DeviceState(const DeviceSteps& steps, Pool::Lease buffers, std::vector<std::size_t> places,
                         std::int64_t source, bool logits)
    : steps_(steps), buffers_(std::move(buffers)), places_(std::move(places)), source_(source), logits_(logits) {}

void DeviceState::place(const std::vector<std::size_t>& rows, const Memory& memory,
                        const std::vector<std::size_t>& memory_rows, const Ids& target_limits) {
  const auto& encoded = dynamic_cast<const DeviceMemory&>(memory);
  steps_.latch.guard([&] {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t place = places_[rows[i]];
      place_row(encoded, memory_rows[i], place);
      upload_ids(*buffers_, "token_ids", {steps_.tokens.bos}, place);
      upload_ids(*buffers_, "positions", {0}, place);
      upload_ids(*buffers_, "target_limits", {target_limits[i]}, place);
      set_finished(place, false);
    }
    // Once this has returned, the encoder's buffers may be reused on another stream.
    device().synchronize();
  });
}

// What earlier sentences left in a row is cleared: it is masked, but a NaN would come through the mask.
void DeviceState::place_row(const DeviceMemory& encoded, std::size_t memory_row, std::size_t place) const {
  for (const auto& [name, tensor] : buffers_->inputs()) {
    if (is_cache(name)) {
      const std::size_t bytes = tensor.row_bytes();
      device().fill(tensor.address + place * bytes, 0, 1, bytes);
    } else if (is_cross(name)) {
      place_source(encoded, memory_row, tensor, name, place);
    }
  }
}

// One row of the encoder's keys, values or bias; the rest of the row is zeroed, or masked.
void DeviceState::place_source(const DeviceMemory& encoded, std::size_t from_row, const DeviceTensor& to,
                               const std::string& name, std::size_t place) const {
  const DeviceTensor& from = encoded.buffers().at(name);
  const bool bias = name == kCrossBias;
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
  // [rows, heads, tokens, head_dim], or [rows, 1, 1, tokens] of the bias: one item for all tokens of a head.
  const auto width = static_cast<std::size_t>(encoded.width());
  const auto heads = bias ? 1 : static_cast<std::size_t>(to.shape[1]);
  const std::size_t token_bytes = to.item_bytes * (bias ? 1 : static_cast<std::size_t>(to.shape[3]));
  const std::size_t stride = static_cast<std::size_t>(buffers_->sizes().source) * token_bytes;
  const std::size_t bytes = width * token_bytes;
  device().copy({row, stride}, {from.address + from_row * heads * bytes, bytes}, bytes, heads);
}

void DeviceState::step(std::int64_t count) {
  const DeviceTensor& made = buffers_->at("token_ids");
  steps_.latch.guard([&] {
    for (std::int64_t i = 0; i < count; ++i) {
      if (pending_ == kRingSteps) take_pending();
      buffers_->replay();
      std::byte* slot = buffers_->ring() + pending_ * made.bytes();
      device().copy({slot, made.bytes()}, {made.address, made.bytes()}, made.bytes(), 1);
      ++pending_;
    }
  });
}

StepOutput DeviceState::read() {
  return steps_.latch.guard([&] {
    take_pending();
    StepOutput output{std::move(made_), {}};
    made_.clear();
    const std::vector<std::uint8_t> flags = finished();
    for (const std::size_t place : places_) output.finished.push_back(flags[place] != 0);
    return output;
  });
}

void DeviceState::override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                                  const std::vector<bool>& finished) {
  steps_.latch.guard([&] {
    const std::vector<std::uint8_t> flags = this->finished();
    const Ids positions = download_ids("positions");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t place = places_[rows[i]];
      if (flags[place] != 0 && !finished[i]) upload_ids(*buffers_, "positions", {positions[place] + 1}, place);
      upload_ids(*buffers_, "token_ids", {token_ids[i]}, place);
      set_finished(place, finished[i]);
    }
  });
}

std::vector<float> DeviceState::logits(std::size_t row) {
  const DeviceTensor& tensor = buffers_->at(kLogits);
  const std::byte* from = tensor.address + places_[row] * tensor.row_bytes();
  std::vector<float> result(tensor.row_bytes() / tensor.item_bytes);
  steps_.latch.guard([&] {
    if (tensor.item_bytes == sizeof(float)) return device().download(result.data(), from, tensor.row_bytes());
    std::vector<std::uint16_t> halves(result.size());
    device().download(halves.data(), from, tensor.row_bytes());
    std::transform(halves.begin(), halves.end(), result.begin(), float_of_half);
  });
  return result;
}

std::unique_ptr<DecoderState> DeviceState::moved(const std::vector<std::size_t>& rows, std::int64_t target) {
  const StepSizes asked{static_cast<std::int64_t>(rows.size()), source_, target};
  return steps_.latch.guard([&]() -> std::unique_ptr<DecoderState> {
    if (steps_.graph.program.bucket(asked) == buffers_->sizes()) return rearranged(rows);
    auto next = std::make_unique<DeviceState>(steps_, rows.size(), source_, target, logits_);
    device().synchronize();  // the copies run on the other stream
    for (std::size_t row = 0; row < rows.size(); ++row) next->copy_row(*buffers_, places_[rows[row]], row);
    // Once this has returned, this state's buffers may be reused on another stream.
    next->device().synchronize();
    return next;
  });
}

// In the same buffers. A row stays where it is; a further copy of it goes to a place that no row keeps. Rows that are
// left out are finished, so that their positions do not run past the caches.
std::unique_ptr<DeviceState> DeviceState::rearranged(const std::vector<std::size_t>& rows) {
  std::vector<bool> kept(static_cast<std::size_t>(buffers_->sizes().batch));
  for (const std::size_t row : rows) kept[places_[row]] = true;
  std::vector<bool> used(kept.size());
  std::vector<std::size_t> places;
  for (const std::size_t row : rows) {
    std::size_t place = places_[row];
    if (used[place]) {
      place = static_cast<std::size_t>(std::find(kept.begin(), kept.end(), false) - kept.begin());
      copy_row(*buffers_, places_[row], place);
    }
    kept[place] = used[place] = true;
    places.push_back(place);
  }
  for (const std::size_t place : places_) {
    if (!kept[place]) set_finished(place, true);
  }
  return std::unique_ptr<DeviceState>(
      new DeviceState(steps_, std::move(buffers_), std::move(places), source_, logits_));
}

// Everything that a row holds. Caches may differ in length; sources do not.
void DeviceState::copy_row(const DeviceBuffers& from, std::size_t from_place, std::size_t place) const {
  for (const auto& [name, tensor] : buffers_->inputs()) {
    if (name == kCachePositions) continue;
    const DeviceTensor& other = from.at(name);
    const std::size_t to_bytes = tensor.row_bytes();
    const std::size_t from_bytes = other.row_bytes();
    std::byte* to_row = tensor.address + place * to_bytes;
    std::byte* from_row = other.address + from_place * from_bytes;
    const auto heads = to_bytes == from_bytes ? 1 : static_cast<std::size_t>(tensor.shape[1]);
    if (to_bytes > from_bytes) device().fill(to_row, 0, 1, to_bytes);
    device().copy({to_row, to_bytes / heads}, {from_row, from_bytes / heads}, std::min(to_bytes, from_bytes) / heads,
                  heads);
  }
}

std::vector<std::uint8_t> DeviceState::finished() const {
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(buffers_->sizes().batch));
  device().download(flags.data(), buffers_->at("finished").address, flags.size());
  return flags;
}

void DeviceState::set_finished(std::size_t place, bool finished) const {
  device().fill(buffers_->at("finished").address + place, finished ? 1 : 0, 1, 1);
}

Ids DeviceState::download_ids(const std::string& name) const {
  const DeviceTensor& tensor = buffers_->at(name);
  return download_ids(tensor.address, tensor.count(), tensor.item_bytes);
}

Ids DeviceState::download_ids(const std::byte* from, std::size_t count, std::size_t item_bytes) const {
  if (item_bytes == sizeof(std::int64_t)) {
    Ids ids(count);
    device().download(ids.data(), from, count * item_bytes);
    return ids;
  }
  std::vector<std::int32_t> narrow(count);
  device().download(narrow.data(), from, count * item_bytes);
  return {narrow.begin(), narrow.end()};
}

void DeviceState::take_pending() {
  if (pending_ == 0) return;
  const DeviceTensor& tokens = buffers_->at("token_ids");
  const Ids ring = download_ids(buffers_->ring(), pending_ * tokens.count(), tokens.item_bytes);
  for (std::size_t i = 0; i < pending_; ++i) {
    for (const std::size_t place : places_) made_.push_back(ring[i * tokens.count() + place]);
  }
  pending_ = 0;
}

}  // namespace txport::core
