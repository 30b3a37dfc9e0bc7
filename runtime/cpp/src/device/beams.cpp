#include "device/beams.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>

#include "bundle/interface.hpp"

namespace txport::core {

namespace {

std::vector<std::size_t> first(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

}  // namespace

DeviceBeams::DeviceBeams(const DeviceSteps& steps, const StepSizes& sizes)
    : DeviceBeams(steps, {steps.pool.step(sizes), first(static_cast<std::size_t>(sizes.batch))}, sizes.source) {}

DeviceBeams::DeviceBeams(const DeviceSteps& steps, Room room, std::int64_t source)
    : DeviceState(steps, std::move(room), source),
      beams_(static_cast<std::size_t>(buffers().sizes().beams)),
      lengths_(places().size(), 0),
      limits_(places().size(), 1),
      token_ids_(places().size() * beams_, steps.tokens.pad),
      finished_(token_ids_.size(), true),
      ancestors_(token_ids_.size() * slots()) {}

std::size_t DeviceBeams::place_of_row(std::size_t row) const { return places()[row / beams_] * beams_ + row % beams_; }

// Return whether a sentence has unfinished rows.
bool DeviceBeams::is_active(std::size_t sentence) const {
  const auto flags = finished_.begin() + static_cast<std::ptrdiff_t>(sentence * beams_);
  const auto end = flags + static_cast<std::ptrdiff_t>(beams_);
  return std::find(flags, end, false) != end;
}

// Return the position of the next tokens of a sentence. Positions of finished sentences stay within the cache, where
// unused values are written.
std::int64_t DeviceBeams::position(std::size_t sentence) const { return std::min(lengths_[sentence], target() - 1); }

// A sentence starts in the first of its rows. The others are finished until `reorder`.
void DeviceBeams::place(const std::vector<std::size_t>& rows, const Memory& memory,
                        const std::vector<std::size_t>& memory_rows, const Ids& target_limits) {
  assert(unread_.empty());
  std::vector<std::size_t> sentences;
  for (const std::size_t row : rows) sentences.push_back(row / beams_);
  const auto& encoded = dynamic_cast<const DeviceMemory&>(memory);
  steps().latch.guard([&] { place_sources(places_of(sentences), encoded, memory_rows); });
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    lengths_[sentences[i]] = 0;
    limits_[sentences[i]] = target_limits[i];
    for (std::size_t beam = 0; beam < beams_; ++beam) {
      token_ids_[sentences[i] * beams_ + beam] = steps().tokens.bos;
      finished_[sentences[i] * beams_ + beam] = beam > 0;
    }
    std::fill_n(&ancestors_[sentences[i] * beams_ * slots()], beams_ * slots(), std::byte{0});
  }
}

void DeviceBeams::step(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    finish_step();
    launch();
  }
  unread_.push_back(static_cast<std::size_t>(count));
}

// Upload the inputs of a step, launch it, and download its outputs.
void DeviceBeams::launch() {
  DeviceBuffers& buffers = this->buffers();
  const StateLayout& layout = buffers.layout();
  std::byte* host = buffers.host();
  for (std::size_t row = 0; row < rows(); ++row) {
    const std::size_t sentence = row / beams_;
    const std::size_t place = place_of_row(row);
    const std::int64_t next_position = position(sentence);
    const std::int64_t slot = next_position * static_cast<std::int64_t>(beams_);
    assert(next_position == lengths_[sentence] || !is_active(sentence));
    ancestors_[row * slots() + static_cast<std::size_t>(slot) + row % beams_] = std::byte{1};
    std::memcpy(host + buffers.offset(kAncestors) + place * slots(), &ancestors_[row * slots()], slots());
    layout.set_id(host, buffers.offset("token_ids"), place, token_ids_[row]);
    layout.set_id(host, buffers.offset("positions"), place, next_position);
    layout.set_id(host, buffers.offset("first_slots"), place / beams_, slot);
  }
  steps().latch.guard([&] {
    buffers.upload_state();
    buffers.launch(1, buffers.polls()[0]);
  });
  in_flight_ = true;
}

// Wait for the launched step, and set the best token of each row and whether it ends the row. The graphs of ordinary
// steps do this themselves.
void DeviceBeams::finish_step() {
  if (!in_flight_) return;
  const DeviceBuffers::Poll& poll = buffers().polls()[0];
  steps().latch.watch([&] { poll.done->synchronize(); });
  in_flight_ = false;
  const StateLayout& layout = buffers().layout();
  const auto candidates = static_cast<std::size_t>(buffers().at(kTopIds).shape[1]);
  for (std::size_t sentence = 0; sentence < lengths_.size(); ++sentence) {
    lengths_[sentence] += is_active(sentence) ? 1 : 0;
    const bool full = lengths_[sentence] >= limits_[sentence];
    for (std::size_t row = sentence * beams_; row < (sentence + 1) * beams_; ++row) {
      const std::int64_t best = layout.id(poll.block, buffers().offset(kTopIds), place_of_row(row) * candidates);
      token_ids_[row] = finished_[row] ? steps().tokens.pad : best;
      finished_[row] = finished_[row] || full || token_ids_[row] == steps().tokens.eos;
    }
  }
  outputs_.emplace_back(token_ids_, finished_);
}

StepOutput DeviceBeams::read() {
  assert(!unread_.empty());
  const std::size_t count = unread_.front();
  unread_.pop_front();
  if (outputs_.size() < count) finish_step();
  StepOutput output;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [tokens, finished] = outputs_.front();
    output.token_ids.insert(output.token_ids.end(), tokens.begin(), tokens.end());
    output.finished = finished;
    outputs_.pop_front();
  }
  return output;
}

void DeviceBeams::override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                                  const std::vector<bool>& finished) {
  assert(unread_.empty());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    token_ids_[rows[i]] = token_ids[i];
    finished_[rows[i]] = finished[i];
  }
}

// If k exceeds the number of candidates of the graph, the logits are downloaded.
Top DeviceBeams::top(std::size_t k) {
  const auto candidates = static_cast<std::size_t>(buffers().at(kTopIds).shape[1]);
  if (k > candidates) return DeviceState::top(k);
  const std::byte* block = buffers().polls()[0].block;
  const auto number = [&](const char* name, std::size_t index) {
    float value = 0;
    std::memcpy(&value, block + buffers().offset(name) + index * sizeof(float), sizeof(float));
    return value;
  };
  Top result;
  for (std::size_t row = 0; row < rows(); ++row) {
    const std::size_t place = place_of_row(row);
    for (std::size_t i = place * candidates; i < place * candidates + k; ++i) {
      result.token_ids.push_back(buffers().layout().id(block, buffers().offset(kTopIds), i));
      result.logits.push_back(number(kTopLogits, i));
    }
    result.normaliser.push_back(number(kNormaliser, place));
  }
  return result;
}

// Only host data is reordered; nothing is copied on the device.
void DeviceBeams::reorder(const std::vector<std::size_t>& rows) {
  assert(unread_.empty());
  const Ids ids = token_ids_;
  const std::vector<bool> finished = finished_;
  const std::vector<std::byte> ancestors = ancestors_;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    assert(rows[row] / beams_ == row / beams_);
    token_ids_[row] = ids[rows[row]];
    finished_[row] = finished[rows[row]];
    std::memcpy(&ancestors_[row * slots()], &ancestors[rows[row] * slots()], slots());
  }
}

std::unique_ptr<DecoderState> DeviceBeams::resized(const std::vector<std::size_t>& rows, std::int64_t target) {
  assert(unread_.empty());
  std::vector<std::size_t> sentences;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    assert(rows[i] % beams_ == i % beams_);
    if (i % beams_ == 0) sentences.push_back(rows[i] / beams_);
  }
  const Places entries = places_of(sentences);
  const DeviceBuffers& old = buffers();
  return steps().latch.guard([&]() -> std::unique_ptr<DecoderState> {
    const std::size_t old_slots = slots();
    std::unique_ptr<DeviceBeams> next(new DeviceBeams(steps(), relocated(entries, target), source()));
    next->copy_from(old, entries);
    next->copy_host_state(*this, old_slots, sentences);
    return next;
  });
}

// Copy the host data of some sentences of the old state.
void DeviceBeams::copy_host_state(const DeviceBeams& old, std::size_t old_slots,
                                  const std::vector<std::size_t>& sentences) {
  for (std::size_t row = 0; row < rows(); ++row) {
    const std::size_t from = sentences[row / beams_] * beams_ + row % beams_;
    lengths_[row / beams_] = old.lengths_[from / beams_];
    limits_[row / beams_] = old.limits_[from / beams_];
    token_ids_[row] = old.token_ids_[from];
    finished_[row] = old.finished_[from];
    std::memcpy(&ancestors_[row * slots()], &old.ancestors_[from * old_slots], std::min(slots(), old_slots));
  }
}

}  // namespace txport::core
