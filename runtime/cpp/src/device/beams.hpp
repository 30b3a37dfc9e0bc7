// A running batch of beam search on a device, with the graph "decoder_beams".
//
// The rows of a sentence share one entry of each buffer. Cross-attention exists once per sentence. When the search
// continues with other hypotheses, it moves the ancestor flags instead of caches (txport.exporter.graphs.lowerings).
// The host has all state except the caches. In each step it uploads one small block and downloads the candidates.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "device/state.hpp"

namespace txport::core {

// Rows are only reordered within their sentence, and sentences are moved as a whole. All unfinished rows of a sentence
// are at the same position.
class DeviceBeams : public DeviceState {
 public:
  // Create a state for `sizes.batch` sentences of `sizes.beams` rows. Throws the errors of DeviceState.
  DeviceBeams(const DeviceSteps& steps, const StepSizes& sizes);

  std::size_t rows() const override { return finished_.size(); }

  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override;
  void step(std::int64_t count) override;
  StepOutput read() override;
  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override;
  Top top(std::size_t k) override;
  void reorder(const std::vector<std::size_t>& rows) override;
  std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) override;

 private:
  const std::size_t beams_;
  Ids lengths_;  // number of tokens of each sentence
  Ids limits_;
  Ids token_ids_;  // of each row
  std::vector<bool> finished_;
  std::vector<std::byte> ancestors_;  // [rows, target, beams]
  bool in_flight_ = false;            // whether a step was launched and not finished yet
  // Tokens and flags of each step that was not read, and the number of steps of each such group.
  std::deque<std::pair<Ids, std::vector<bool>>> outputs_;
  std::deque<std::size_t> unread_;

  DeviceBeams(const DeviceSteps& steps, Room room, std::int64_t source);

  std::size_t place_of_row(std::size_t row) const override;
  std::size_t slots() const { return static_cast<std::size_t>(buffers().sizes().of("slots")); }
  bool is_active(std::size_t sentence) const;
  std::int64_t position(std::size_t sentence) const;
  void launch();
  void finish_step();
  void copy_host_state(const DeviceBeams& old, std::size_t old_slots, const std::vector<std::size_t>& sentences);
};

}  // namespace txport::core
