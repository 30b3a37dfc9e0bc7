// A running batch on ONNX Runtime's CPU provider.
//
// A state binds every buffer of its step once, caches and ids in = out: a step is then one call that allocates nothing
// of ours.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engines/ort_buffers.hpp"
#include "engines/ort_session.hpp"

namespace txport::core {

// What all states of an engine share; it must outlive them.
struct OrtSteps {
  const OrtBuffers& buffers;
  Ort::Session& session;
  SpecialTokens tokens;
};

class OrtState : public DecoderState {
 public:
  // `tensors` are those of OrtBuffers::state, with an entry for each of `batch`, which `beams` rows share.
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
  Ids& made() { return made_; }
  void set_target(std::int64_t target) { target_ = target; }

  std::int64_t* token_ids() const { return tensors_.at("token_ids").as<std::int64_t>(); }
  // The tokens that each entry has made.
  virtual std::int64_t* positions() const { return tensors_.at("positions").as<std::int64_t>(); }
  bool* finished() const { return tensors_.at("finished").as<bool>(); }
  std::int64_t* target_limits() const { return tensors_.at("target_limits").as<std::int64_t>(); }

  // The state before its first step again.
  void begin_step() { clean_ = false; }
  void bind();
  // Entries, no more than there are, at the front of the same buffers: nothing is allocated or zeroed.
  std::unique_ptr<OrtState> narrowed(const std::vector<std::size_t>& entries);
  // More entries than there are, in new buffers.
  std::unique_ptr<OrtState> widened(const std::vector<std::size_t>& entries, std::int64_t target) const;

  // A state of these tensors, and the tensors of a new one.
  virtual std::unique_ptr<OrtState> of(HostTensors tensors, std::size_t batch, std::int64_t target) const;
  virtual HostTensors allocated(std::size_t batch, std::int64_t target) const;
  // The logits of all rows.
  virtual const HostTensor& all_logits() const { return tensors_.at("logits"); }

 private:
  const OrtSteps& steps_;
  HostTensors tensors_;
  std::size_t batch_;
  std::size_t beams_;
  std::int64_t source_;
  std::int64_t target_;
  Ort::IoBinding binding_;
  bool clean_ = true;  // nothing was written into the caches yet
  Ids sentences_;      // which each entry has, counted as they are placed: those of one have equal cross-attention
  std::int64_t placed_ = 0;
  Ids made_;

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
