#include "engines/ort_beams.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "bundle/interface.hpp"

namespace txport::core {

namespace {

// Number of positions by which caches grow. A step reads whole caches, so longer caches cost time. Copying a cache to a
// longer one costs as much as reading it once.
constexpr std::int64_t kWindow = 16;

Sizes sizes_of(const BeamSizes& sizes, std::int64_t window) {
  const auto batch = static_cast<std::int64_t>(sizes.batch);
  const auto beams = static_cast<std::int64_t>(sizes.beams);
  return {{"batch", batch},         {"beam", beams},          {"rows", batch * beams},
          {"source", sizes.source}, {"target", sizes.target}, {"slots", window * beams}};
}

// Return the tensors of a new state, in which all rows are finished.
HostTensors fresh(const OrtSteps& steps, const BeamSizes& sizes, std::int64_t window) {
  const Sizes all = sizes_of(sizes, window);
  HostTensors tensors = steps.buffers.inputs(all);
  for (const char* name : {"lengths", "target_limits"}) {
    tensors.emplace(name, HostTensor({name, "int64", {"batch"}, false}, all));
  }
  const HostTensor finished({"finished", "bool", {"batch", "beam"}, false}, all);
  std::fill_n(finished.as<bool>(), sizes.batch * sizes.beams, true);
  tensors.emplace("finished", finished);
  std::fill_n(tensors.at("target_limits").as<std::int64_t>(), sizes.batch, 1);
  return tensors;
}

// Return the number of candidates that the graph computes per row.
std::size_t max_top(const Graph& graph) {
  const auto found = std::find_if(graph.outputs.begin(), graph.outputs.end(),
                                  [](const Tensor& tensor) { return tensor.name == kTopIds; });
  return static_cast<std::size_t>(std::get<std::int64_t>(found->shape[1]));
}

}  // namespace

OrtBeams::OrtBeams(const OrtSteps& steps, const BeamSizes& sizes, const Outputs& outputs)
    : OrtBeams(steps, fresh(steps, sizes, kWindow), sizes,
               outputs.logits || outputs.top > max_top(steps.buffers.step())) {}

OrtBeams::OrtBeams(const OrtSteps& steps, HostTensors tensors, const BeamSizes& sizes, bool logits)
    : OrtState(steps, std::move(tensors), sizes.batch, sizes.source, sizes.target, sizes.beams),
      logits_(logits),
      window_(this->tensors().at(kAncestors).size(2) / static_cast<std::int64_t>(sizes.beams)) {
  std::vector<std::string> names{kTopIds, kTopLogits, kNormaliser};
  if (logits) names.emplace_back(kLogits);
  outputs_ = steps.buffers.outputs(sizes_of(sizes, window_), names);
  auto* numbers = this->tensors().at("rows").as<std::int64_t>();
  std::iota(numbers, numbers + rows(), std::int64_t{0});
  bind_all();
}

void OrtBeams::bind_all() {
  if (const auto slots = tensors().find(kSlotPositions); slots != tensors().end()) {
    for (std::int64_t i = 0; i < slots->second.size(0); ++i) {
      slots->second.as<std::int64_t>()[i] = i / static_cast<std::int64_t>(beams());
    }
  }
  bind();
  for (const auto& [name, tensor] : outputs_) binding().BindOutput(name.c_str(), tensor.value());
}

// A sentence starts in the first of its rows. The others are finished until `reorder`.
void OrtBeams::place(const std::vector<std::size_t>& rows, const Memory& memory,
                     const std::vector<std::size_t>& memory_rows, const Ids& target_limits) {
  std::vector<std::size_t> sentences;
  for (const std::size_t row : rows) sentences.push_back(row / beams());
  OrtState::place(sentences, memory, memory_rows, target_limits);
  for (const std::size_t sentence : sentences) {
    std::fill_n(finished() + sentence * beams() + 1, beams() - 1, true);
  }
}

void OrtBeams::step(std::int64_t count) {
  begin_step();
  for (std::int64_t i = 0; i < count; ++i) {
    prepare();
    run(steps().session, Ort::RunOptions{nullptr}, binding());
    advance();
  }
}

// Return whether a sentence has unfinished rows.
bool OrtBeams::is_active(std::size_t sentence) const {
  const bool* const flags = finished() + sentence * beams();
  return std::find(flags, flags + beams(), false) != flags + beams();
}

// Return the ancestor flags [window, beams] of one hypothesis: the cache slots that it continues.
bool* OrtBeams::ancestors(std::size_t sentence, std::size_t beam) const {
  const HostTensor& tensor = tensors().at(kAncestors);
  return tensor.as<bool>() + (sentence * beams() + beam) * static_cast<std::size_t>(tensor.size(2));
}

// Set the cache slots of the next tokens. Positions of finished sentences stay within the cache; unused values are
// written there.
void OrtBeams::prepare() {
  for (std::size_t sentence = 0; sentence < batch(); ++sentence) {
    if (is_active(sentence) && positions()[sentence] >= window_) lengthen();
  }
  for (std::size_t sentence = 0; sentence < batch(); ++sentence) {
    const std::int64_t position = std::min(positions()[sentence], std::min(window_, target()) - 1);
    const auto first = static_cast<std::size_t>(position) * beams();
    tensors().at("first_slots").as<std::int64_t>()[sentence] = static_cast<std::int64_t>(first);
    std::fill_n(tensors().at("positions").as<std::int64_t>() + sentence * beams(), beams(), position);
    for (std::size_t beam = 0; beam < beams(); ++beam) ancestors(sentence, beam)[first + beam] = true;
  }
}

// Lengthen the caches by one window.
void OrtBeams::lengthen() {
  window_ += kWindow;
  const HostTensors longer = steps().buffers.inputs(sizes_of({batch(), beams(), source(), target()}, window_));
  for (auto& [name, tensor] : tensors()) {
    if (!is_cache(name) && name != kSlotPositions) continue;
    const HostTensor& next = longer.at(name);
    for (std::size_t row = 0; is_cache(name) && row < batch(); ++row) {
      next.copy_tokens(row, tensor, row, tensor.size(2));
    }
    tensor = next;
  }
  bind_all();
}

// Set the best token of each row and whether it ends the row. The graphs of ordinary steps do this themselves.
void OrtBeams::advance() {
  const auto* best = outputs_.at(kTopIds).as<std::int64_t>();
  const auto candidates = static_cast<std::size_t>(outputs_.at(kTopIds).size(1));
  for (std::size_t sentence = 0; sentence < batch(); ++sentence) {
    positions()[sentence] += is_active(sentence) ? 1 : 0;
    const bool full = positions()[sentence] >= target_limits()[sentence];
    for (std::size_t row = sentence * beams(); row < (sentence + 1) * beams(); ++row) {
      const std::int64_t token = finished()[row] ? steps().tokens.pad : best[row * candidates];
      token_ids()[row] = token;
      finished()[row] = finished()[row] || full || token == steps().tokens.eos;
      generated().push_back(token);
    }
  }
}

void OrtBeams::override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                               const std::vector<bool>& finished) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    this->token_ids()[rows[i]] = token_ids[i];
    this->finished()[rows[i]] = finished[i];
  }
}

Top OrtBeams::top(std::size_t k) {
  const auto candidates = static_cast<std::size_t>(outputs_.at(kTopIds).size(1));
  if (k > candidates) return OrtState::top(k);
  const auto* ids = outputs_.at(kTopIds).as<std::int64_t>();
  const auto* logits = outputs_.at(kTopLogits).as<float>();
  const auto* normaliser = outputs_.at(kNormaliser).as<float>();
  Top result;
  for (std::size_t first = 0; first < rows() * candidates; first += candidates) {
    result.token_ids.insert(result.token_ids.end(), ids + first, ids + first + k);
    result.logits.insert(result.logits.end(), logits + first, logits + first + k);
  }
  result.normaliser.assign(normaliser, normaliser + rows());
  return result;
}

void OrtBeams::reorder(const std::vector<std::size_t>& rows) {
  const auto slots = static_cast<std::size_t>(tensors().at(kAncestors).size(2));
  std::vector<unsigned char> flags(beams() * slots);
  for (std::size_t first = 0; first < rows.size(); first += beams()) {
    Ids ids;
    std::vector<bool> finished_sentences;
    for (std::size_t beam = 0; beam < beams(); ++beam) {
      const std::size_t row = rows[first + beam];
      assert(row / beams() == first / beams());
      ids.push_back(token_ids()[row]);
      finished_sentences.push_back(finished()[row]);
      std::copy_n(ancestors(first / beams(), row % beams()), slots, flags.data() + beam * slots);
    }
    std::copy(ids.begin(), ids.end(), token_ids() + first);
    std::copy(finished_sentences.begin(), finished_sentences.end(), finished() + first);
    std::transform(flags.begin(), flags.end(), ancestors(first / beams(), 0),
                   [](unsigned char flag) { return flag != 0; });
  }
}

std::unique_ptr<DecoderState> OrtBeams::resized(const std::vector<std::size_t>& rows, std::int64_t target) {
  std::vector<std::size_t> sentences;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    assert(rows[i] % beams() == i % beams());
    if (i % beams() == 0) sentences.push_back(rows[i] / beams());
  }
  if (sentences.size() > batch()) return widened(sentences, target);
  set_target(target);  // caches grow as needed
  return narrowed(sentences);
}

std::unique_ptr<OrtState> OrtBeams::with_tensors(HostTensors tensors, std::size_t batch, std::int64_t target) const {
  const BeamSizes sizes{batch, beams(), source(), target};
  return std::unique_ptr<OrtState>(new OrtBeams(steps(), std::move(tensors), sizes, logits_));
}

HostTensors OrtBeams::allocated(std::size_t batch, std::int64_t target) const {
  return fresh(steps(), {batch, beams(), source(), target}, window_);
}

}  // namespace txport::core
