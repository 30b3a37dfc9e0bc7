// A running batch of beam search on a device, by the graph "decoder_beams".
//
// A sentence's rows are beams over one entry of each buffer: cross-attention exists once, and a search that continues
// with other hypotheses moves the flags of ancestors and no cache (txport.exporter.graphs.lowerings). All but the
// caches is on the host, which sees each step: one small block goes to the device, and the candidates come back.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "device/state.hpp"

namespace txport::core {

// Rows are reordered within their sentence, and sentences move whole. The rows of a sentence that have not finished are
// all at one position.
class DeviceBeams : public DeviceState {
 public:
  // `sizes.batch` sentences of `sizes.beams` rows. Throws as DeviceState.
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
  Ids lengths_;  // the tokens that each sentence has made
  Ids limits_;
  Ids token_ids_;  // of each row
  std::vector<bool> finished_;
  std::vector<std::byte> ancestors_;  // [rows, target, beams]
  bool under_way_ = false;            // a step whose tokens were not taken yet
  // The tokens and flags of each step that was not read, and the steps of each such group.
  std::deque<std::pair<Ids, std::vector<bool>>> made_;
  std::deque<std::size_t> unread_;

  DeviceBeams(const DeviceSteps& steps, Room room, std::int64_t source);

  std::size_t place_of_row(std::size_t row) const override;
  std::size_t slots() const { return static_cast<std::size_t>(buffers().sizes().of("slots")); }
  bool works(std::size_t sentence) const;
  std::int64_t position(std::size_t sentence) const;
  void launch();
  void take();
  void take_over(const DeviceBeams& old, std::size_t old_slots, const std::vector<std::size_t>& sentences);
};

}  // namespace txport::core
