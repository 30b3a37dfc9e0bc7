// A running batch of beam search on ONNX Runtime's CPU provider, with the graph "decoder_beams".
//
// The rows of a sentence share one entry of each buffer. Cross-attention exists once per sentence. When the search
// continues with other hypotheses, it moves the ancestor flags instead of caches (txport.exporter.graphs.lowerings).
// All unfinished rows of a sentence are at the same position.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engines/ort_state.hpp"

namespace txport::core {

// Sizes of a batch of beam search.
struct BeamSizes {
  std::size_t batch = 0;  // sentences
  std::size_t beams = 0;
  std::int64_t source = 0;
  std::int64_t target = 0;  // maximum number of tokens; caches may be shorter
};

// Rows are only reordered within their sentence, and sentences are moved as a whole.
class OrtBeams : public OrtState {
 public:
  // Create a state with new buffers. All rows are finished.
  OrtBeams(const OrtSteps& steps, const BeamSizes& sizes, const Outputs& outputs);

  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override;
  void step(std::int64_t count) override;
  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override;
  Top top(std::size_t k) override;
  void reorder(const std::vector<std::size_t>& rows) override;
  std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) override;

 private:
  bool logits_;
  HostTensors outputs_;  // outputs with an entry per row
  std::int64_t window_;  // current length of the caches

  OrtBeams(const OrtSteps& steps, HostTensors tensors, const BeamSizes& sizes, bool logits);

  std::int64_t* positions() const override { return tensors().at("lengths").as<std::int64_t>(); }
  std::unique_ptr<OrtState> with_tensors(HostTensors tensors, std::size_t batch, std::int64_t target) const override;
  HostTensors allocated(std::size_t batch, std::int64_t target) const override;
  const HostTensor& all_logits() const override { return outputs_.at("logits"); }

  bool is_active(std::size_t sentence) const;
  std::int64_t next_position(std::size_t sentence) const;
  bool* ancestors(std::size_t sentence, std::size_t beam) const;
  void bind_all();
  void lengthen();
  void prepare();
  void advance();
};

}  // namespace txport::core
