#include "fused/engine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <utility>

#include "errors.hpp"
#include "fused/state.hpp"

namespace txport::core {

namespace {

using namespace fused;

// Number of steps of a call. A row that finishes costs no more time, but a new sentence takes its place only after the
// call.
constexpr std::int64_t kPoll = 16;
// Approximate number of tokens that are encoded together. Reading the weights then takes a small part of the time. With
// fewer than half of it, a thread of its own does not pay for a group.
constexpr std::size_t kGroupTokens = 96;
// If threads have fewer than kMinTokens tokens each, and a layer does not fit the cache of a core, threads divide heads
// and columns instead of tokens. Each then reads a part of the weights.
constexpr std::size_t kMinTokens = 12;
constexpr std::size_t kLargeLayer = std::size_t{1} << 20;  // bytes

// Sentences from `begin` to `end`, which are encoded together.
struct Group {
  std::size_t begin, end;
  std::size_t tokens;
  std::size_t positions;  // sum of the padded lengths
};

// Divide the sources into `count` groups with about the same number of tokens. `tokens`: the number of all tokens.
std::vector<Group> groups_of(const std::vector<Source>& sources, std::size_t tokens, std::size_t count) {
  std::vector<Group> groups;
  std::size_t last = 0;
  std::size_t before = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::size_t group_of_middle = (before + sources[i].length / 2) * count / tokens;
    if (i == 0 || group_of_middle != std::exchange(last, group_of_middle)) groups.push_back({i, i, 0, 0});
    before += sources[i].length;
    Group& group = groups.back();
    group.end = i + 1;
    group.tokens += sources[i].length;
    group.positions += fused::padded(sources[i].length);
  }
  return groups;
}

class FusedEngine : public Engine {
 public:
  FusedEngine(std::shared_ptr<Shared> shared, const std::string& precision)
      : shared_(std::move(shared)),
        name_(std::string("fused cpu (") + fused::instruction_set().name + ", " + precision + " weights)") {}

  const std::string& name() const override { return name_; }
  const Limits& limits() const override { return shared_->limits; }
  const SpecialTokens& tokens() const override { return shared_->tokens; }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(shared_->model.vocabulary); }
  std::int64_t poll() const override { return kPoll; }
  bool ragged() const override { return true; }
  bool recomputes_logits() const override { return true; }
  bool restricts() const override { return true; }
  // Only the used part of a cache is read: longer ones cost memory alone, and moves are saved.
  std::int64_t first_target(std::int64_t source) const override {
    std::int64_t target = kFirstTarget;
    while (target <= source) target *= 2;
    return target;
  }

  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    const std::size_t width = input_ids.size() / source_lengths.size();
    return encoded(source_lengths,
                   [&](Source& source, std::size_t row) { source.ids = input_ids.data() + row * width; });
  }

  std::shared_ptr<const Memory> encode_features(const std::vector<float>& features,
                                                const Ids& source_lengths) const override {
    const std::size_t width = features.size() / source_lengths.size();
    return encoded(source_lengths,
                   [&](Source& source, std::size_t row) { source.features = features.data() + row * width; });
  }

  std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                         const Outputs& outputs) const override {
    return fused::allocate_rows(shared_, rows, source, target, outputs);
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::string name_;

  // Encode sentences of these lengths. `fill` sets the ids or vectors of the source of a row.
  template <class Fill>
  std::shared_ptr<const Memory> encoded(const Ids& source_lengths, const Fill& fill) const {
    std::vector<Source> sources;
    const auto memory = std::make_shared<FusedMemory>();
    for (const std::int64_t each : source_lengths) {
      const auto length = static_cast<std::size_t>(each);
      const auto block = std::make_shared<fused::Block>(fused::cache_shape(shared_->model, length).bytes());
      sources.push_back({nullptr, nullptr, length, block->data()});
      fill(sources.back(), sources.size() - 1);
      memory->sentences.push_back({length, std::shared_ptr<std::byte>(block, block->data())});
    }
    encode_all(sources);
    return memory;
  }

  // Encode all sources. If there are enough groups, each thread encodes different groups; otherwise all threads encode
  // each group together.
  void encode_all(const std::vector<Source>& sources) const {
    const fused::Model& model = shared_->model;
    std::size_t work = 0;
    for (const Source& source : sources) work += source.length;
    const auto start = std::chrono::steady_clock::now();
    const auto workspace = shared_->workspaces.take();
    Team::Lease lease(shared_->team, shared_->encode_tuner.choose(work));
    const std::size_t threads = lease.size();
    const std::size_t rounds = std::max<std::size_t>(1, (work / threads + kGroupTokens / 2) / kGroupTokens);
    const std::size_t count = std::min(rounds * threads, work / (kGroupTokens / 2) + 1);
    const std::vector<Group> groups = groups_of(sources, work, count);
    WorkspaceSize size;
    size.threads = threads;
    size.data_parallel = groups.size() >= threads;
    std::size_t max_tokens = 1;
    for (const Group& group : groups) {
      max_tokens = std::max(max_tokens, group.tokens);
      size.positions = std::max(size.positions, group.positions);
    }
    const fused::CacheShape layer = fused::source_shape(model, size.positions);
    size.cache_bytes = 2 * layer.bytes();
    size.team_rows = max_tokens;
    const auto by_columns = [&](const Group& group) {
      return !size.data_parallel && model.layer_bytes >= kLargeLayer && group.tokens < kMinTokens * threads;
    };
    const bool shares = std::any_of(groups.begin(), groups.end(), by_columns);
    size.rows = fused::most_tokens(max_tokens, size.data_parallel || shares ? 1 : threads);
    workspace->reserve(model, size);
    std::atomic<std::size_t> next{0};
    lease.run([&](const Member& member) {
      const Member team = size.data_parallel ? Member{} : member;
      std::size_t turn = 0;
      const auto take = [&] { return size.data_parallel ? next.fetch_add(1) : turn++; };
      for (std::size_t i = take(); i < groups.size(); i = take()) {
        fused::EncodeJob job{model, *workspace};
        job.team = member.rank - team.rank;
        job.sources = sources.data() + groups[i].begin;
        job.count = groups[i].end - groups[i].begin;
        job.tokens = groups[i].tokens;
        job.cache_bytes = layer.bytes();
        job.by_columns = by_columns(groups[i]);
        fused::instruction_set().encode(job, team);
        team.wait();  // the next group overwrites the keys and values of this one
      }
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    shared_->encode_tuner.record(work, threads, time.count() / static_cast<double>(work));
  }
};

}  // namespace

std::unique_ptr<Engine> fused::make_engine(std::shared_ptr<Shared> shared, const std::string& precision) {
  return std::make_unique<FusedEngine>(std::move(shared), precision);
}

std::string fused_lacks() { return fused::instruction_set().name == nullptr ? "this processor has no AVX2" : ""; }

std::unique_ptr<Engine> open_fused(const ModelFile& file, const CpuShare& share) {
  if (const std::string why = fused_lacks(); !why.empty()) {
    throw EngineError("the fused engine cannot run " + file.weights.string() + ": " + why);
  }
  const int cores = usable_cores();
  const int threads = share.threads > 0 ? share.threads : cores;
  const int team = share.many && threads > 1 ? std::max(threads, cores) : threads;
  try {
    auto shared = std::make_shared<Shared>(file, static_cast<std::size_t>(threads), static_cast<std::size_t>(team));
    return fused::make_engine(std::move(shared), file.precision);
  } catch (const std::bad_alloc&) {
    throw ResourceError("there is not enough memory for the weights of " + file.weights.string() + ": free some");
  }
}

}  // namespace txport::core
