#include "device/state.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>

#include "bundle/interface.hpp"
#include "half.hpp"

namespace txport::core {

namespace {

using Places = std::vector<std::size_t>;

Places first_places(std::size_t rows) {
  Places places(rows);
  std::iota(places.begin(), places.end(), std::size_t{0});
  return places;
}

struct Run {
  std::size_t to;
  std::size_t from;
  std::size_t count;
};

// Group pairs that are consecutive in both lists, so that one copy moves several rows.
std::vector<Run> runs_of(const Places& to, const Places& from) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const bool follows =
        !runs.empty() && to[i] == runs.back().to + runs.back().count && from[i] == runs.back().from + runs.back().count;
    if (follows) {
      ++runs.back().count;
    } else {
      runs.push_back({to[i], from[i], 1});
    }
  }
  return runs;
}

// Return the places with repeated ones replaced by unused places below `count`.
Places without_repeats(const Places& places, std::size_t count) {
  std::vector<bool> named(count);
  for (const std::size_t place : places) named[place] = true;
  std::vector<bool> seen(count);
  Places result;
  for (std::size_t place : places) {
    if (seen[place]) {
      place = static_cast<std::size_t>(std::find(named.begin(), named.end(), false) - named.begin());
      named[place] = true;
    }
    seen[place] = true;
    result.push_back(place);
  }
  return result;
}

// Copy caches and cross-attention of some rows to other rows, whose caches may have another length.
void copy_run(const DeviceBuffers& old, const DeviceBuffers& now, const Run& run) {
  Device& device = now.device();
  const std::size_t planes = old.caches().names.size();
  const std::size_t lines = run.count * old.caches().heads;
  if (now.caches().line > old.caches().line) now.caches().clear(device, run.to, run.count);
  const std::size_t length = std::min(old.caches().line, now.caches().line);
  device.copy(now.caches().at(run.to), old.caches().at(run.from), length, lines, planes);
  for (std::size_t i = 0; i < old.sources().size(); ++i) {
    const Stack& from = old.sources()[i];
    device.copy(now.sources()[i].at(run.to), from.at(run.from), from.line, run.count * from.heads, from.names.size());
  }
  const Buffer bias = old.bias(run.from);
  device.copy(now.bias(run.to), bias, run.count * bias.row);
}

}  // namespace

DeviceState::DeviceState(const DeviceSteps& steps, std::size_t rows, std::int64_t source, std::int64_t target)
    : DeviceState(steps, {steps.pool.step({static_cast<std::int64_t>(rows), source, target}), first_places(rows)},
                  source) {}

DeviceState::DeviceState(const DeviceSteps& steps, Room room, std::int64_t source)
    : steps_(steps), buffers_(std::move(room.buffers)), places_(std::move(room.places)), source_(source) {}

DeviceState::Places DeviceState::places_of(const std::vector<std::size_t>& entries) const {
  Places places;
  for (const std::size_t entry : entries) places.push_back(places_[entry]);
  return places;
}

void DeviceState::place(const std::vector<std::size_t>& rows, const Memory& memory,
                        const std::vector<std::size_t>& memory_rows, const Ids& target_limits) {
  assert(read_ == groups_);
  const auto& encoded = dynamic_cast<const DeviceMemory&>(memory);
  const Places entries = places_of(rows);
  steps_.latch.guard([&] {
    place_sources(entries, encoded, memory_rows);
    const StateLayout& layout = buffers_->layout();
    std::byte* host = buffers_->host();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      layout.set_id(host, layout.token_ids, entries[i], steps_.tokens.bos);
      layout.set_id(host, layout.positions, entries[i], 0);
      layout.set_id(host, layout.target_limits, entries[i], target_limits[i]);
      host[layout.finished + entries[i]] = std::byte{0};
    }
    buffers_->upload_state();
  });
}

void DeviceState::place_sources(const Places& entries, const DeviceMemory& memory,
                                const std::vector<std::size_t>& memory_rows) const {
  for (const Run& run : runs_of(entries, memory_rows)) place_run(run.to, memory, run.from, run.count);
}

// Values of earlier sentences are cleared. They are masked, but a NaN would propagate through the mask.
void DeviceState::place_run(std::size_t place, const DeviceMemory& memory, std::size_t memory_row,
                            std::size_t count) const {
  Device& device = buffers_->device();
  const std::vector<Stack>& sources = buffers_->sources();
  const Buffer bias = buffers_->bias(place);
  const std::size_t bias_row = memory.bias.row_bytes();
  buffers_->caches().clear(device, place, count);
  if (bias_row < bias.row) {
    for (const Stack& stack : sources) stack.clear(device, place, count);
    device.copy(bias, buffers_->masked(), count * bias.row);
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Stack& from = memory.sources[i];
    device.copy(sources[i].at(place), from.at(memory_row), from.line, count * from.heads, from.names.size());
  }
  device.copy(bias, {memory.bias.address + memory_row * bias_row, bias_row}, bias_row, count);
}

void DeviceState::step(std::int64_t count) {
  assert(groups_ - read_ < buffers_->polls().size() && static_cast<std::size_t>(count) <= kRingSteps);
  steps_.latch.guard([&] { buffers_->launch(static_cast<std::size_t>(count), buffers_->polls()[groups_ % 2]); });
  ++groups_;
}

StepOutput DeviceState::read() {
  assert(read_ < groups_);
  const DeviceBuffers::Poll& poll = buffers_->polls()[read_ % 2];
  steps_.latch.watch([&] { poll.done->synchronize(); });
  ++read_;
  const StateLayout& layout = buffers_->layout();
  StepOutput output;
  for (std::size_t step = 0; step < poll.steps; ++step) {
    for (const std::size_t place : places_) {
      output.token_ids.push_back(layout.id(poll.block, layout.bytes_with(step), place));
    }
  }
  const std::byte* flags = poll.block + layout.finished;
  for (const std::size_t place : places_) output.finished.push_back(flags[place] != std::byte{0});
  std::memcpy(buffers_->host(), poll.block, layout.written);
  return output;
}

void DeviceState::override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                                  const std::vector<bool>& finished) {
  assert(read_ == groups_);
  const StateLayout& layout = buffers_->layout();
  std::byte* host = buffers_->host();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t place = places_[rows[i]];
    std::byte& flag = host[layout.finished + place];
    const int change = (flag != std::byte{0} ? 1 : 0) - (finished[i] ? 1 : 0);
    layout.set_id(host, layout.positions, place, layout.id(host, layout.positions, place) + change);
    layout.set_id(host, layout.token_ids, place, token_ids[i]);
    flag = std::byte{finished[i]};
  }
  steps_.latch.guard([&] { buffers_->upload_state(); });
}

std::vector<float> DeviceState::logits(std::size_t row) {
  const DeviceTensor& tensor = buffers_->at(kLogits);
  const std::byte* from = tensor.address + place_of_row(row) * tensor.row_bytes();
  std::vector<float> result(tensor.row_bytes() / tensor.item_bytes);
  std::vector<std::uint16_t> halves(tensor.item_bytes == sizeof(float) ? 0 : result.size());
  steps_.latch.guard([&] {
    void* to = halves.empty() ? static_cast<void*>(result.data()) : halves.data();
    buffers_->device().download(to, from, tensor.row_bytes());
    buffers_->device().synchronize();
  });
  std::transform(halves.begin(), halves.end(), result.begin(), float_of_half);
  return result;
}

// On the device, only the copies of repeated rows are copied.
void DeviceState::reorder(const std::vector<std::size_t>& rows) {
  assert(read_ == groups_);
  const Places entries = places_of(rows);
  places_ = without_repeats(entries, buffers_->layout().rows);
  steps_.latch.guard([&] {
    copy_from(*buffers_, entries);
    copy_host_block(*buffers_, entries);
  });
}

// If the buffers stay the same, rows keep their places, and only copies of repeated rows get new places.
std::unique_ptr<DecoderState> DeviceState::resized(const std::vector<std::size_t>& rows, std::int64_t target) {
  assert(read_ == groups_);
  const Places entries = places_of(rows);
  const DeviceBuffers& old = *buffers_;
  return steps_.latch.guard([&]() -> std::unique_ptr<DecoderState> {
    std::unique_ptr<DeviceState> next(new DeviceState(steps_, relocated(entries, target), source_));
    next->copy_from(old, entries);
    next->copy_host_block(old, entries);
    return next;
  });
}

DeviceState::Room DeviceState::relocated(const Places& entries, std::int64_t target) {
  const StepSizes old = buffers_->sizes();
  const StepSizes requested{static_cast<std::int64_t>(entries.size()), source_, target, old.beams};
  const bool same = steps_.graph.program.bucket(requested) == old;
  if (!same) return {steps_.pool.step(requested), first_places(entries.size())};
  Places places = without_repeats(entries, buffers_->layout().rows);
  return {std::move(buffers_), std::move(places)};
}

void DeviceState::copy_from(const DeviceBuffers& old, const Places& entries) const {
  Places to;
  Places from;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (&*buffers_ == &old && places_[i] == entries[i]) continue;
    to.push_back(places_[i]);
    from.push_back(entries[i]);
  }
  for (const Run& run : runs_of(to, from)) copy_run(old, *buffers_, run);
}

// Copy ids, positions, limits and flags of these places of the old buffers. All other rows become finished, so that
// their positions do not exceed the caches.
void DeviceState::copy_host_block(const DeviceBuffers& old, const Places& entries) const {
  const StateLayout& from = old.layout();
  const StateLayout& to = buffers_->layout();
  const std::vector<std::byte> block(old.host(),
                                     old.host() + from.bytes);  // copied, since both may be the same buffers
  std::byte* host = buffers_->host();
  std::fill_n(host + to.finished, to.rows, std::byte{1});
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::size_t place = places_[i];
    to.set_id(host, to.token_ids, place, from.id(block.data(), from.token_ids, entries[i]));
    to.set_id(host, to.positions, place, from.id(block.data(), from.positions, entries[i]));
    to.set_id(host, to.target_limits, place, from.id(block.data(), from.target_limits, entries[i]));
    host[to.finished + place] = block[from.finished + entries[i]];
  }
  buffers_->upload_state();
}

}  // namespace txport::core
