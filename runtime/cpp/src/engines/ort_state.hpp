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
  // `tensors` are those of OrtBuffers::state.
  OrtState(const OrtSteps& steps, HostTensors tensors, std::size_t rows, std::int64_t source, std::int64_t target);

  std::size_t rows() const override { return rows_; }
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
  std::unique_ptr<DecoderState> moved(const std::vector<std::size_t>& rows, std::int64_t target) override;

 private:
  const OrtSteps& steps_;
  HostTensors tensors_;
  std::size_t rows_;
  std::int64_t source_;
  std::int64_t target_;
  Ort::IoBinding binding_;
  bool clean_ = true;  // nothing was written into the caches yet
  Ids made_;

  bool has_logits() const { return tensors_.count("logits") == 1; }
  std::int64_t* token_ids() const { return tensors_.at("token_ids").as<std::int64_t>(); }
  std::int64_t* positions() const { return tensors_.at("positions").as<std::int64_t>(); }
  bool* finished() const { return tensors_.at("finished").as<bool>(); }

  std::unique_ptr<OrtState> next(HostTensors tensors, std::size_t rows, std::int64_t target) const;
  bool is_all(const std::vector<std::size_t>& rows) const;
  bool fits(const HostTensor& bias) const;
  void use_cross(const HostTensors& others);
  void clear_row(std::size_t row) const;
  void copy_memory_row(const HostTensors& encoded, std::size_t from_row, std::size_t row) const;

  std::unique_ptr<OrtState> narrowed(const std::vector<std::size_t>& rows) const;
  std::unique_ptr<OrtState> widened(const std::vector<std::size_t>& rows, std::int64_t target) const;
  std::unique_ptr<OrtState> with_caches(std::int64_t target) const;
  void gather(const std::vector<std::size_t>& rows) const;
  void copy_state_row(const OrtState& from, std::size_t from_row, std::size_t row) const;
};

}  // namespace txport::core
