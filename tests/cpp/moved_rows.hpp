// Rows that are taken more than once, fewer times than once, and into other sizes: each goes on as if it were alone.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "engine.hpp"

namespace memory {

using namespace txport::core;

// What a row has made or was made to say.
struct History {
  Ids source;
  Ids ids;
};

// Decode a history alone: what the model says is replaced by what the history has, and the token after it is returned.
inline std::int64_t token_after(const Engine& engine, const History& history, std::int64_t limit) {
  const auto width = static_cast<std::int64_t>(history.source.size());
  const auto state = engine.allocate(1, width, limit, {});
  state->place({0}, *engine.encode(history.source, {width}), {0}, {limit});
  for (std::size_t i = 0;; ++i) {
    state->step(1);
    const StepOutput output = state->read();
    if (i == history.ids.size()) return output.token_ids[0];
    if (output.token_ids[0] != history.ids[i]) state->override_tokens({0}, {history.ids[i]}, {false});
  }
}

// Step, move rows at random (with repetitions, to fewer or more of them, to longer caches), force copies apart, refill
// some, and compare every token with what its history gives alone. Ids from `first` to `last` are ordinary tokens.
inline void check_moved_rows(const Engine& engine, std::uint32_t seed, std::int64_t first, std::int64_t last) {
  std::mt19937 random(seed);
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  constexpr std::int64_t kLimit = 64;
  constexpr std::int64_t kWidth = 5;
  const std::int64_t most = std::min<std::int64_t>(engine.limits().batch, 8);
  std::vector<History> rows(static_cast<std::size_t>(number(1, most)));
  Ids padded;
  Ids lengths;
  std::vector<std::size_t> all;
  for (History& row : rows) {
    lengths.push_back(all.empty() ? kWidth : number(1, kWidth));
    for (std::int64_t i = 0; i < lengths.back(); ++i) row.source.push_back(number(first, last));
    padded.insert(padded.end(), row.source.begin(), row.source.end());
    padded.resize(padded.size() + static_cast<std::size_t>(kWidth - lengths.back()), engine.tokens().pad);
    all.push_back(all.size());
  }
  std::int64_t target = number(3, 10);
  auto state = engine.allocate(rows.size(), kWidth, target, {});
  state->place(all, *engine.encode(padded, lengths), all, Ids(rows.size(), kLimit));
  for (int turn = 0; turn < 8; ++turn) {
    const std::int64_t steps = number(0, 3) == 0 ? number(1, 16) : number(1, 2);
    std::size_t longest = 0;
    for (const History& row : rows) longest = std::max(longest, row.ids.size());
    if (static_cast<std::int64_t>(longest) + steps > kLimit) return;
    target = std::max(target, static_cast<std::int64_t>(longest) + steps + number(0, 9));
    std::vector<std::size_t> taken(static_cast<std::size_t>(number(1, most)));
    for (std::size_t& row : taken)
      row = static_cast<std::size_t>(number(0, static_cast<std::int64_t>(rows.size()) - 1));
    if (number(0, 1) == 1 && state->target() >= target) {
      taken.resize(rows.size(), 0);
      state->reorder(taken);
    } else {
      state = state->resized(taken, target);
    }
    REQUIRE(state->rows() == taken.size());
    CHECK(state->target() >= target);
    target = state->target();
    std::vector<History> next;
    for (const std::size_t row : taken) next.push_back(rows[row]);
    rows = std::move(next);
    for (std::int64_t step = 0; step < steps; ++step) {
      state->step(1);
      const StepOutput output = state->read();
      std::vector<std::size_t> forced;
      Ids tokens;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        CAPTURE(row);
        CHECK(output.token_ids[row] == token_after(engine, rows[row], kLimit));
        // Copies of one row part here. No row may end, so that all of them go on.
        forced.push_back(row);
        tokens.push_back(number(first, last));
        rows[row].ids.push_back(tokens.back());
      }
      std::vector<bool> ended(rows.size(), false);
      const auto any = static_cast<std::size_t>(number(0, 3 * static_cast<std::int64_t>(rows.size())));
      if (any < rows.size()) ended[any] = true;
      state->override_tokens(forced, tokens, ended);
      if (any < rows.size()) {  // another sentence in its place
        rows[any] = {{number(first, last), number(first, last)}, {}};
        state->place({any}, *engine.encode(rows[any].source, {2}), {0}, {kLimit});
      }
    }
  }
}

}  // namespace memory
