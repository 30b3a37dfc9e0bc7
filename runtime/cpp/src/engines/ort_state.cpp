#include "engines/ort_state.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "bundle/interface.hpp"

namespace txport::core {

namespace {

// Return whether a tensor has batch entries.
bool has_entries(const std::string& name) { return name != kCachePositions && name != kSlotPositions; }
// Return whether the entries of a tensor move with their rows.
bool moves(const std::string& name) { return has_entries(name) && name != kLogits && name != "rows"; }

// Copy one row of the encoder's keys or values. The rest of the target row becomes zero.
void copy_source(const HostTensor& to, std::size_t to_row, const HostTensor& from, std::size_t from_row) {
  std::memset(to.data() + to_row * to.row_bytes(), 0, to.row_bytes());
  to.copy_tokens(to_row, from, from_row, from.size(2));
}

// Copy one row of the encoder's bias `[batch, 1, 1, source]`. The rest of the target row is masked.
void copy_bias(const HostTensor& to, std::size_t to_row, const HostTensor& from, std::size_t from_row) {
  std::byte* row = to.data() + to_row * to.row_bytes();
  std::memcpy(row, from.data() + from_row * from.row_bytes(), from.row_bytes());
  for (std::size_t i = from.row_bytes(); i < to.row_bytes(); i += to.item_bytes()) {
    std::memcpy(row + i, to.is_half() ? static_cast<const void*>(&kMaskedHalf) : &kMasked, to.item_bytes());
  }
}

// Copy a row or, if `tokens` is positive, the first tokens of a row of a cache.
void copy_part(const HostTensor& to, std::size_t to_row, const HostTensor& from, std::size_t from_row,
               std::int64_t tokens) {
  if (tokens > 0) {
    to.copy_tokens(to_row, from, from_row, tokens);
  } else {
    to.copy_row(to_row, from, from_row);
  }
}

// Copy row `rows[i]` of a tensor to each row i of `changed`. If a row could be overwritten before it is copied, all
// rows are first copied to a buffer.
void move_rows(const HostTensor& tensor, const std::vector<std::size_t>& changed, const std::vector<std::size_t>& rows,
               std::int64_t tokens) {
  const bool is_forward = std::all_of(changed.begin(), changed.end(), [&](std::size_t i) { return rows[i] > i; });
  const HostTensor buffer = is_forward ? tensor : tensor.like(changed.size());
  for (std::size_t k = 0; k < changed.size(); ++k) {
    copy_part(buffer, is_forward ? changed[k] : k, tensor, rows[changed[k]], tokens);
  }
  for (std::size_t k = 0; !is_forward && k < changed.size(); ++k) copy_part(tensor, changed[k], buffer, k, tokens);
}

}  // namespace

OrtState::OrtState(const OrtSteps& steps, HostTensors tensors, std::size_t batch, std::int64_t source,
                   std::int64_t target, std::size_t beams)
    : steps_(steps),
      tensors_(std::move(tensors)),
      batch_(batch),
      beams_(beams),
      source_(source),
      target_(target),
      binding_(steps.session),
      sentences_(batch) {
  bind();
}

// Bind all tensors except those of cross-attention, which are added when the first sentences are placed.
void OrtState::bind() {
  const Graph& graph = steps_.buffers.step();
  for (const Tensor& tensor : graph.inputs) {
    const auto found = tensors_.find(tensor.name);
    if (found != tensors_.end()) binding_.BindInput(tensor.name.c_str(), found->second.value());
  }
  for (const auto& [input, output] : graph.aliases) binding_.BindOutput(output.c_str(), tensors_.at(input).value());
  if (tensors_.count(kLogits) == 1) binding_.BindOutput(kLogits, tensors_.at(kLogits).value());
}

// The values of earlier sentences in a row are cleared. They are masked, but a NaN would propagate through the mask.
void OrtState::place(const std::vector<std::size_t>& rows, const Memory& memory,
                     const std::vector<std::size_t>& memory_rows, const Ids& target_limits) {
  const HostTensors& encoded = dynamic_cast<const OrtMemory&>(memory).tensors();
  const bool reuses_memory = rows == memory_rows && is_all(rows) && fits(encoded.at(kCrossBias));
  if (reuses_memory) {
    use_cross(encoded);
  } else if (tensors_.count(kCrossBias) == 0) {
    use_cross(steps_.buffers.cross(batch_, source_));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t row = rows[i];
    if (!caches_are_zero_) clear_row(row);
    if (!reuses_memory) copy_memory_row(encoded, memory_rows[i], row);
    token_ids()[row * beams_] = steps_.tokens.bos;
    positions()[row] = 0;
    finished()[row * beams_] = false;
    this->target_limits()[row] = target_limits[i];
    sentences_[row] = ++placed_;
  }
}

void OrtState::step(std::int64_t count) {
  caches_are_zero_ = false;
  for (std::int64_t i = 0; i < count; ++i) {
    run(steps_.session, Ort::RunOptions{nullptr}, binding_);
    generated_.insert(generated_.end(), token_ids(), token_ids() + rows());
  }
}

StepOutput OrtState::read() {
  StepOutput output{std::move(generated_), std::vector<bool>(finished(), finished() + rows())};
  generated_.clear();
  return output;
}

void OrtState::override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                               const std::vector<bool>& finished) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t row = rows[i];
    positions()[row] += (this->finished()[row] ? 1 : 0) - (finished[i] ? 1 : 0);
    this->token_ids()[row] = token_ids[i];
    this->finished()[row] = finished[i];
  }
}

std::vector<float> OrtState::logits(std::size_t row) {
  const HostTensor& tensor = all_logits();
  const auto size = static_cast<std::size_t>(tensor.size(1));
  if (!tensor.is_half()) {
    const float* start = tensor.as<float>() + row * size;
    return {start, start + size};
  }
  std::vector<float> result(size);
  const auto* start = tensor.as<Ort::Float16_t>() + row * size;
  std::transform(start, start + size, result.begin(), [](Ort::Float16_t value) { return value.ToFloat(); });
  return result;
}

void OrtState::reorder(const std::vector<std::size_t>& rows) { gather(rows); }

std::unique_ptr<DecoderState> OrtState::resized(const std::vector<std::size_t>& rows, std::int64_t target) {
  if (rows.size() > batch_) return widened(rows, target);
  std::unique_ptr<OrtState> next = narrowed(rows);
  return target == target_ ? std::move(next) : next->with_caches(target);
}

// Create a state that continues the rows of this one.
std::unique_ptr<OrtState> OrtState::next(HostTensors tensors, std::size_t batch, std::int64_t target) const {
  auto created = with_tensors(std::move(tensors), batch, target);
  created->caches_are_zero_ = caches_are_zero_;
  created->placed_ = placed_;
  return created;
}

std::unique_ptr<OrtState> OrtState::with_tensors(HostTensors tensors, std::size_t batch, std::int64_t target) const {
  return std::make_unique<OrtState>(steps_, std::move(tensors), batch, source_, target);
}

HostTensors OrtState::allocated(std::size_t batch, std::int64_t target) const {
  return steps_.buffers.state(batch, source_, target, tensors_.count(kLogits) == 1);
}

// Return whether these are all entries, in order.
bool OrtState::is_all(const std::vector<std::size_t>& entries) const {
  std::vector<std::size_t> all(batch_);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return entries == all;
}

// Return how many cache slots an entry has used.
std::int64_t OrtState::used(std::size_t row) const {
  return (positions()[row] + 1) * static_cast<std::int64_t>(beams_);
}

// Return whether encoder output has the shapes of this state's tensors, according to its bias `[batch, 1, 1, source]`.
bool OrtState::fits(const HostTensor& bias) const {
  return bias.size(0) == static_cast<std::int64_t>(batch_) && bias.size(3) == source_;
}

// Use the buffers of the encoder output or of another state without copying.
void OrtState::use_cross(const HostTensors& others) {
  for (const auto& [name, tensor] : others) {
    if (!is_cross(name)) continue;
    tensors_.insert_or_assign(name, tensor);
    binding_.BindInput(name.c_str(), tensor.value());
  }
}

void OrtState::clear_row(std::size_t row) const {
  for (const auto& [name, tensor] : tensors_) {
    if (is_cache(name)) tensor.clear_tokens(row, std::min(used(row), tensor.size(2)));
  }
}

void OrtState::copy_memory_row(const HostTensors& encoded, std::size_t from_row, std::size_t row) const {
  for (const auto& [name, tensor] : tensors_) {
    if (name == kCrossBias) {
      copy_bias(tensor, row, encoded.at(name), from_row);
    } else if (is_cross(name)) {
      copy_source(tensor, row, encoded.at(name), from_row);
    }
  }
}

std::unique_ptr<OrtState> OrtState::narrowed(const std::vector<std::size_t>& entries) {
  gather(entries);
  HostTensors front;
  for (const auto& [name, tensor] : tensors_) {
    front.emplace(name, has_entries(name) ? tensor.front(entries.size()) : tensor);
  }
  auto created = next(std::move(front), entries.size(), target_);
  std::copy_n(sentences_.begin(), entries.size(), created->sentences_.begin());
  return created;
}

std::unique_ptr<OrtState> OrtState::widened(const std::vector<std::size_t>& entries, std::int64_t target) const {
  auto created = next(allocated(entries.size(), target), entries.size(), target);
  if (tensors_.count(kCrossBias) == 1) created->use_cross(steps_.buffers.cross(entries.size(), source_));
  for (std::size_t row = 0; row < entries.size(); ++row) created->copy_state_row(*this, entries[row], row);
  return created;
}

// Return a state with all rows and caches of another length.
std::unique_ptr<OrtState> OrtState::with_caches(std::int64_t target) const {
  auto created = next(allocated(batch_, target), batch_, target);
  created->use_cross(tensors_);
  for (std::size_t row = 0; row < batch_; ++row) created->copy_state_row(*this, row, row);
  return created;
}

// Copy these rows to the first rows of the same buffers. Values of an earlier sentence after the end of the copied one
// are also overwritten; see `place`. Cross-attention is not copied if a row keeps its sentence.
void OrtState::gather(const std::vector<std::size_t>& rows) {
  std::int64_t longest = 0;
  std::vector<std::size_t> changed;
  std::vector<std::size_t> moved;
  Ids sentences;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sentences.push_back(sentences_[rows[i]]);
    if (rows[i] == i) continue;
    changed.push_back(i);
    if (sentences[i] != sentences_[i]) moved.push_back(i);
    longest = std::max({longest, used(i), used(rows[i])});
  }
  for (const auto& [name, tensor] : tensors_) {
    if (!moves(name)) continue;
    move_rows(tensor, is_cross(name) ? moved : changed, rows, is_cache(name) ? std::min(longest, tensor.size(2)) : 0);
  }
  std::copy(sentences.begin(), sentences.end(), sentences_.begin());
}

// Copy a row to new buffers, whose caches are zero and may have another length. Tensors of cross-attention may be
// shared.
void OrtState::copy_state_row(const OrtState& from, std::size_t from_row, std::size_t row) {
  sentences_[row] = from.sentences_[from_row];
  for (const auto& [name, tensor] : tensors_) {
    const HostTensor& other = from.tensors_.at(name);
    if (is_cache(name)) {
      tensor.copy_tokens(row, other, from_row, std::min({from.used(from_row), other.size(2), tensor.size(2)}));
    } else if (moves(name) && tensor.data() != other.data()) {
      tensor.copy_row(row, other, from_row);
    }
  }
}

}  // namespace txport::core
