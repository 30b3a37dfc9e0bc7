// Batches of finished translations, and what a bundle without the optional graphs says. What the graphs give is
// compared with Python's runtime in tests/cpp/test_attention_cpp.py.

#include <doctest/doctest.h>

#include "bundle/interface.hpp"
#include "engines/teacher_forcing.hpp"
#include "errors.hpp"
#include "repository.hpp"

using namespace txport::core;

namespace {

using Batches = std::vector<std::vector<std::size_t>>;

std::size_t products(std::size_t source, std::size_t target) { return source * target; }

}  // namespace

TEST_CASE("batches of finished translations begin with the longest") {
  const std::vector<std::size_t> sources{3, 1, 2, 9, 2};
  const std::vector<std::size_t> targets{2, 5, 2, 1, 5};
  CHECK(batches_of(sources, targets, 8, products) == Batches{{4, 1, 0, 2, 3}});
  CHECK(batches_of(sources, targets, 2, products) == Batches{{4, 1}, {0, 2}, {3}});
  CHECK(batches_of({}, {}, 2, products).empty());
}

TEST_CASE("batches of finished translations have no more numbers than a run may") {
  constexpr std::size_t kMost = std::size_t{1} << 24;
  const std::vector<std::size_t> sources{1, 1, 1, 4};
  const std::vector<std::size_t> targets{4, 4, 4, 1};
  // Two rows of 4 target tokens fit; a source of 4 tokens makes the whole batch four times as large.
  const auto numbers = [](std::size_t source, std::size_t target) { return source * target * kMost / 8; };
  CHECK(batches_of(sources, targets, 8, numbers) == Batches{{0, 1}, {2}, {3}});
  const auto huge = [](std::size_t, std::size_t) { return 2 * kMost; };
  CHECK(batches_of(sources, targets, 8, huge) == Batches{{0}, {1}, {2}, {3}});
}

TEST_CASE("a bundle without the optional graphs says how to get them") {
  const Manifest manifest = Manifest::load(kToyBundle);
  CHECK(fault_of<BundleError>([&] { check_has(kToyBundle, manifest, kDecoder); }) ==
        kToyBundle.string() +
            " has no graph of the role 'decoder', which alignments, attention, replace_unknowns and the scores of "
            "given translations "
            "need: export it again with tx-export --with-attention");
  CHECK(fault_of<BundleError>([&] { check_has(kToyBundle, manifest, kEncoderAttention); }) ==
        kToyBundle.string() +
            " has no graph of the role 'encoder_attention', which embeddings and the encoder's attention need: export "
            "it again with tx-export --with-attention");
}
