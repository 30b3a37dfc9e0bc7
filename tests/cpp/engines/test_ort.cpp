// The state on ONNX Runtime: rows that move go on as before, in large buffers too, and in memory that was used before.

#include <doctest/doctest.h>

#include <numeric>

#include "engines/ort.hpp"
#include "moved_rows.hpp"
#include "repository.hpp"

using namespace txport::core;

namespace {

constexpr std::int64_t kSource = 5;
constexpr std::int64_t kTarget = 72;

using Rows = std::vector<std::size_t>;

std::unique_ptr<Engine> open(const std::string& lowering) {
  return open_ort(kToyBundle, Manifest::load(kToyBundle), {"ort", "cpu", {lowering}, "", {}, nullptr}, {1}, nullptr);
}

Rows all(std::size_t count) {
  Rows rows(count);
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return rows;
}

// Sentence `row` of any number: 1 to kSource ids.
std::int64_t source_length(std::size_t row) { return 1 + static_cast<std::int64_t>(row) % kSource; }

void place(const Engine& engine, DecoderState& state, std::size_t rows) {
  Ids ids;
  Ids lengths;
  for (std::size_t row = 0; row < rows; ++row) {
    lengths.push_back(row == 0 ? kSource : source_length(row));
    for (std::int64_t t = 0; t < kSource; ++t) {
      ids.push_back(t < lengths.back() ? 4 + (static_cast<std::int64_t>(row) * 31 + t * 17) % 90 : engine.tokens().pad);
    }
  }
  state.place(all(rows), *engine.encode(ids, lengths), all(rows), Ids(rows, kTarget));
}

// What each row makes in `count` steps, one step after the other.
Ids made(DecoderState& state, std::int64_t count) {
  state.step(count);
  return state.read().token_ids;
}

// The tokens of these rows in the second half of twice `count` steps, of a batch in which nothing moved.
Ids expected(const Engine& engine, std::size_t rows, std::int64_t count, const Rows& kept) {
  const auto state = engine.allocate(rows, kSource, kTarget, {});
  place(engine, *state, rows);
  made(*state, count);
  const Ids all_made = made(*state, count);
  Ids found;
  for (std::int64_t step = 0; step < count; ++step) {
    for (const std::size_t row : kept) found.push_back(all_made[static_cast<std::size_t>(step) * rows + row]);
  }
  return found;
}

}  // namespace

TEST_CASE("rows that move go on as before") {
  for (const char* lowering : {"ort", "scatter"}) {
    const auto engine = open(lowering);
    for (const Rows& kept : {Rows{0, 1, 2}, Rows{2, 0}, Rows{0, 2}, Rows{1}, Rows{1, 2, 0}, Rows{0, 0, 2}, Rows{1, 1},
                             Rows{2, 0, 1, 0, 2}}) {
      for (const std::int64_t first : {3L, 7L, 20L}) {
        for (const std::int64_t target : {6L, 7L, 20L, kTarget}) {
          auto state = engine->allocate(3, kSource, first, {});
          place(*engine, *state, 3);
          made(*state, 3);
          state = state->resized(kept, target);
          CHECK(state->rows() == kept.size());
          CHECK(state->target() == target);
          CHECK(made(*state, 3) == expected(*engine, 3, 3, kept));
        }
      }
    }
  }
}

TEST_CASE("rows that repeat go on as if each were alone, on ONNX Runtime") {
  for (const char* lowering : {"ort", "scatter", "tensorscatter"}) {
    const auto engine = open(lowering);
    for (std::uint32_t seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      memory::check_moved_rows(*engine, seed, 4, 95);
    }
  }
}

TEST_CASE("first caches have room for answers as long as the sources, where longer ones cost no time") {
  const auto fused = open("ort");
  CHECK(fused->first_target(31) == 32);
  CHECK(fused->first_target(32) == 64);
  CHECK(fused->first_target(200) == 256);
  CHECK(open("scatter")->first_target(200) == 32);
}

TEST_CASE("large buffers, and memory that an earlier batch has left") {
  constexpr std::size_t kRows = 16384;  // 19 MB of caches
  for (const char* lowering : {"ort", "scatter"}) {
    const auto engine = open(lowering);
    const Ids whole = expected(*engine, kRows, 4, all(kRows));
    CHECK(expected(*engine, kRows, 4, all(kRows)) == whole);
    auto state = engine->allocate(kRows, kSource, kTarget / 2, {});
    place(*engine, *state, kRows);
    made(*state, 4);
    Rows kept;  // from behind into the gaps of those in front
    for (std::size_t row = 0; row < kRows / 2; ++row) kept.push_back(row % 3 == 0 ? row : row + kRows / 2);
    state = state->resized(kept, kTarget);
    CHECK(made(*state, 4) == expected(*engine, kRows, 4, kept));
  }
}
