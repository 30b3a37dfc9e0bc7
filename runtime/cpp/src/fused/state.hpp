// Data that an engine shares with its states, and the rows of one running batch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../engine.hpp"
#include "fused/compute.hpp"
#include "fused/model.hpp"
#include "fused/team.hpp"
#include "fused/tuner.hpp"
#include "fused/workspace.hpp"

namespace txport::core::fused {

// Data that the states and memories of an engine share. It lives as long as any of them.
struct Shared {
  Team team;  // constructed before the model, which it packs
  Model model;
  SpecialTokens tokens;
  Limits limits;
  Workspaces workspaces;
  ThreadTuner step_tuner, encode_tuner;
  BoundsTuner bounds_tuner;

  Shared(const ModelFile& file, std::size_t threads, std::size_t team_size)
      : team(team_size),
        model(file, team),
        tokens(file.tokens),
        limits(file.limits),
        step_tuner(threads),
        encode_tuner(threads) {}
};

// Return an engine with shared data. `precision`: name of the precision of the weights, for messages.
std::unique_ptr<Engine> make_engine(std::shared_ptr<Shared> shared, const std::string& precision);

// Keys and values of cross-attention of each sentence. Rows share them.
struct FusedMemory : Memory {
  struct Sentence {
    std::size_t length;
    std::shared_ptr<std::byte> cross;
  };
  std::vector<Sentence> sentences;
};

// Return the rows of a running batch; see Engine::allocate.
std::unique_ptr<DecoderState> allocate_rows(std::shared_ptr<Shared> shared, std::size_t rows, std::int64_t source,
                                            std::int64_t target, const Outputs& outputs);

}  // namespace txport::core::fused
