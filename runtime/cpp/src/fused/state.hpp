// The rows of one running batch on the fused engine.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "fused/compute.hpp"
#include "fused/model.hpp"
#include "fused/pace.hpp"
#include "fused/team.hpp"
#include "fused/workspace.hpp"

namespace txport::core::fused {

// What an engine's states and memories share; it lives as long as any of them.
struct Shared {
  Team team;  // before the model, which is packed on it
  Model model;
  SpecialTokens tokens;
  Limits limits;
  Workspaces workspaces;
  Pace step_pace, encode_pace;  // how many threads are best

  Shared(const std::filesystem::path& directory, const Manifest& manifest, std::size_t threads, std::size_t team_size);
};

// A workspace for one call.
class Borrowed {
 public:
  explicit Borrowed(Workspaces& owner) : owner_(owner), workspace_(owner.take()) {}
  ~Borrowed() { owner_.give_back(std::move(workspace_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Workspace& operator*() const { return *workspace_; }

 private:
  Workspaces& owner_;
  std::unique_ptr<Workspace> workspace_;
};

// Cross-attention's keys and values of each sentence, ready to use: rows share them.
class FusedMemory : public Memory {
 public:
  struct Sentence {
    std::size_t length;
    std::shared_ptr<std::byte> cross;
  };
  explicit FusedMemory(std::vector<Sentence> sentences) : sentences_(std::move(sentences)) {}
  const Sentence& sentence(std::size_t row) const { return sentences_.at(row); }

 private:
  std::vector<Sentence> sentences_;
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
  std::vector<std::shared_ptr<std::byte>> cross_;        // what each row's pointer refers to
  std::shared_ptr<Block> caches_;                        // of all rows, at rows_[i].self
  std::optional<Block> logits_;                          // [rows, padded vocabulary]
  std::deque<StepOutput> unread_;

  std::size_t cache_bytes() const;
  const float* logits_of(std::size_t row) const;
  void copy_cache(const FusedState& from, const Row& row, std::byte* to) const;
};

}  // namespace txport::core::fused
