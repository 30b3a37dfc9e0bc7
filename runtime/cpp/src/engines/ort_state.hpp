// A running batch on ONNX Runtime's CPU provider.
//
// A state binds all buffers of a step once. Caches and ids are input and output in the same buffers, so a step is one
// call that does not allocate buffers.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engines/ort_buffers.hpp"
#include "engines/ort_session.hpp"

namespace txport::core {

// Data that all states of an engine share. It must outlive them.
struct OrtSteps {
  const OrtBuffers& buffers;
  Ort::Session& session;
  SpecialTokens tokens;
};

class OrtState : public DecoderState {
 public:
  // `tensors` are from OrtBuffers::state. They have `batch` entries; `beams` rows share each entry.
  OrtState(const OrtSteps& steps, HostTensors tensors, std::size_t batch, std::int64_t source, std::int64_t target,
           std::size_t beams = 1);

  std::size_t rows() const override { return batch_ * beams_; }
  std::int64_t source() const override { return source_; }
  std::int64_t target() const override { return target_; }

  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override;
  void step(std::int64_t count) override;
  StepOutput read() override;
  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override;
  std::vector<float> logits(std::size_t row) override;
  void reorder(const std::vector<std::size_t>& rows) override;
  std::unique_ptr<DecoderState> resized(const std::vector<std::size_t>& rows, std::int64_t target) override;

 protected:
  const OrtSteps& steps() const { return steps_; }
  HostTensors& tensors() { return tensors_; }
  const HostTensors& tensors() const { return tensors_; }
  Ort::IoBinding& binding() { return binding_; }
  std::size_t batch() const { return batch_; }
  std::size_t beams() const { return beams_; }
  Ids& generated() { return generated_; }
  void set_target(std::int64_t target) { target_ = target; }

  std::int64_t* token_ids() const { return tensors_.at("token_ids").as<std::int64_t>(); }
  // Return the number of tokens that each entry has generated.
  virtual std::int64_t* positions() const { return tensors_.at("positions").as<std::int64_t>(); }
  bool* finished() const { return tensors_.at("finished").as<bool>(); }
  std::int64_t* target_limits() const { return tensors_.at("target_limits").as<std::int64_t>(); }

  // Record that steps may have written to the caches.
  void begin_step() { caches_are_zero_ = false; }
  void bind();
  // Return a state with some of the entries, moved to the front of the same buffers. Nothing is allocated or zeroed.
  std::unique_ptr<OrtState> narrowed(const std::vector<std::size_t>& entries);
  // Return a state with more entries, in new buffers.
  std::unique_ptr<OrtState> widened(const std::vector<std::size_t>& entries, std::int64_t target) const;

  // Create a state from tensors, and allocate the tensors of a new state.
  virtual std::unique_ptr<OrtState> with_tensors(HostTensors tensors, std::size_t batch, std::int64_t target) const;
  virtual HostTensors allocated(std::size_t batch, std::int64_t target) const;
  // Return the logits of all rows.
  virtual const HostTensor& all_logits() const { return tensors_.at("logits"); }

 private:
  const OrtSteps& steps_;
  HostTensors tensors_;
  std::size_t batch_;
  std::size_t beams_;
  std::int64_t source_;
  std::int64_t target_;
  Ort::IoBinding binding_;
  bool caches_are_zero_ = true;  // no step has written to the caches yet
  Ids sentences_;  // number of the sentence of each entry, in the order of placement; equal numbers have equal
                   // cross-attention
  std::int64_t placed_ = 0;
  Ids generated_;

  std::unique_ptr<OrtState> next(HostTensors tensors, std::size_t batch, std::int64_t target) const;
  bool is_all(const std::vector<std::size_t>& entries) const;
  bool fits(const HostTensor& bias) const;
  void use_cross(const HostTensors& others);
  void clear_row(std::size_t row) const;
  void copy_memory_row(const HostTensors& encoded, std::size_t from_row, std::size_t row) const;
  std::int64_t used(std::size_t row) const;

  std::unique_ptr<OrtState> with_caches(std::int64_t target) const;
  void gather(const std::vector<std::size_t>& rows);
  void copy_state_row(const OrtState& from, std::size_t from_row, std::size_t row);
};

}  // namespace txport::core
