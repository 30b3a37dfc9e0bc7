// The rows of one running batch on the fused engine.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "fused/compute.hpp"
#include "fused/model.hpp"
#include "fused/team.hpp"
#include "fused/tuner.hpp"
#include "fused/workspace.hpp"

namespace txport::core::fused {

// What an engine's states and memories share; it lives as long as any of them.
struct Shared {
  Team team;  // before the model, which is packed on it
  Model model;
  SpecialTokens tokens;
  Limits limits;
  Workspaces workspaces;
  ThreadTuner step_tuner, encode_tuner;  // how many threads are best

  Shared(const std::filesystem::path& directory, const Manifest& manifest, std::size_t threads, std::size_t team_size)
      : team(team_size),
        model(directory, manifest, team),
        tokens(manifest.tokens),
        limits(manifest.limits()),
        step_tuner(threads),
        encode_tuner(threads) {}
};

// Cross-attention's keys and values of each sentence, ready to use: rows share them.
struct FusedMemory : Memory {
  struct Sentence {
    std::size_t length;
    std::shared_ptr<std::byte> cross;
  };
  std::vector<Sentence> sentences;
};

class FusedState : public DecoderState {
 public:
  FusedState(std::shared_ptr<Shared> shared, std::size_t rows, std::int64_t source, std::int64_t target, bool logits);

  std::size_t rows() const override { return rows_.size(); }
  std::int64_t source() const override { return source_; }
  std::int64_t target() const override { return target_; }
  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override;
  void step(std::int64_t count) override;
  StepOutput read() override;
  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override;
  std::vector<float> logits(std::size_t row) override;
  double log_probability(std::size_t row, std::int64_t token) override;
  std::unique_ptr<DecoderState> moved(const std::vector<std::size_t>& rows, std::int64_t target) override;

 private:
  const std::shared_ptr<Shared> shared_;
  const std::int64_t source_;
  const std::int64_t target_;
  std::vector<Row> rows_;
  std::optional<Block> logits_;  // [rows, padded vocabulary]
  std::deque<StepOutput> unread_;

  const float* logits_of(std::size_t row) const;
  void copy_cache(const Row& row, const FusedState& next, std::byte* to) const;
};

}  // namespace txport::core::fused
