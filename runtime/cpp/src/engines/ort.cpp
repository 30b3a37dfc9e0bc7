// A state binds every buffer of its step once, caches and ids in = out: a step is then one call that allocates nothing
// of ours. Both sessions map the bundle's one weights file into memory.

#include "engines/ort.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <numeric>

#include "engines/host_memory.hpp"
#include "engines/mapped.hpp"
#include "engines/ort_cuda.hpp"
#include "engines/ort_session.hpp"
#include "engines/ort_start.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;
using Sizes = std::map<std::string, std::int64_t>;

// Added to the attention scores of padding: far below any score, yet finite in float16.
constexpr float kMasked = -30000.0F;
// Bytes that each buffer begins at a multiple of: a line of the processor's cache.
constexpr std::size_t kAligned = 64;

// The host memory of one tensor. Copies share it.
class Buffer {
 public:
  Buffer(const Tensor& tensor, const Sizes& sizes) : type_(type_of(tensor.dtype)) {
    std::size_t count = 1;
    for (const Size& size : tensor.shape) {
      const auto* number = std::get_if<std::int64_t>(&size);
      shape_.push_back(number != nullptr ? *number : sizes.at(std::get<std::string>(size)));
      const auto extent = static_cast<std::size_t>(shape_.back());
      if (extent != 0 && count > PTRDIFF_MAX / type_.bytes / extent) throw std::bad_alloc();
      count *= extent;
    }
    bytes_ = count * type_.bytes;
  }

  // Stand at `start` of a piece of memory, which lives as long as this.
  void place_in(const std::shared_ptr<std::byte>& piece, std::size_t start) { data_ = {piece, piece.get() + start}; }

  // The same memory as a tensor of its first rows.
  Buffer front(std::size_t rows) const {
    Buffer result = *this;
    result.bytes_ = rows * row_bytes();
    result.shape_[0] = static_cast<std::int64_t>(rows);
    return result;
  }

  // A view of the whole buffer for ONNX Runtime.
  Ort::Value value() const {
    static const Ort::MemoryInfo host = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
    return Ort::Value::CreateTensor(host, data_.get(), bytes_, shape_.data(), shape_.size(), type_.onnx);
  }

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t size(std::size_t axis) const { return shape_[axis]; }
  bool is_half() const { return type_.onnx == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16; }
  // Bytes of one entry of the first axis.
  std::size_t row_bytes() const { return bytes_ / static_cast<std::size_t>(shape_[0]); }
  std::size_t item_bytes() const { return type_.bytes; }

 private:
  Type type_;
  std::vector<std::int64_t> shape_;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte> data_;
};

using Buffers = std::map<std::string, Buffer>;

// Buffers by name, in one piece, and whether they hold zeros.
struct Allocated {
  Buffers buffers;
  bool zero = true;
};

Allocated allocate_buffers(const std::shared_ptr<HostMemory>& memory, const std::vector<Tensor>& tensors,
                           const Sizes& sizes) {
  Allocated result;
  try {
    std::size_t end = 0;
    std::map<std::string, std::size_t> starts;
    for (const Tensor& tensor : tensors) {
      const Buffer& buffer = result.buffers.emplace(tensor.name, Buffer(tensor, sizes)).first->second;
      starts[tensor.name] = end;
      if (buffer.bytes() > PTRDIFF_MAX - kAligned - end) throw std::bad_alloc();
      end += (buffer.bytes() + kAligned - 1) / kAligned * kAligned;
    }
    const SharedPiece piece = share_piece(memory, end);
    for (auto& [name, buffer] : result.buffers) buffer.place_in(piece.data, starts.at(name));
    result.zero = piece.zero;
  } catch (const std::bad_alloc&) {
    const auto length = std::max(sizes.at("source"), sizes.count("target") == 1 ? sizes.at("target") : 0);
    throw InputError("not enough memory for a batch of " + std::to_string(sizes.at("batch")) + " rows of " +
                     std::to_string(length) + " tokens: use a smaller batch");
  }
  return result;
}

// Whether a buffer is of self-attention: `[batch, heads, target, head_dim]`.
bool is_cache(const std::string& name) { return name.rfind("self_", 0) == 0; }
// Whether a buffer is of cross-attention: as the encoder gives it.
bool is_cross(const std::string& name) { return name.rfind("cross_", 0) == 0; }

// What the encoder gave: cross-attention keys, values and bias by name.
class OrtMemory : public Memory {
 public:
  explicit OrtMemory(Buffers buffers) : buffers(std::move(buffers)) {}
  Buffers buffers;
};

class OrtEngine : public Engine {
 public:
  OrtEngine(const Manifest& manifest, std::unique_ptr<StartingSessions> started)
      : limits_(manifest.limits()),
        tokens_(manifest.tokens),
        encoder_graph(*manifest.graph("encoder")),
        step_graph(started->step_graph),
        sessions(std::move(started)) {
    logits_ = *std::find_if(step_graph.outputs.begin(), step_graph.outputs.end(),
                            [](const Tensor& tensor) { return tensor.name == "logits"; });
  }

  const std::string& name() const override { return sessions->name; }
  const Limits& limits() const override { return limits_; }
  const SpecialTokens& tokens() const override { return tokens_; }
  std::int64_t poll() const override { return 1; }  // looking at the ids costs nothing here
  // The lowering "ort" reads only what a row has made. Longer caches cost it nothing but memory, and growth is saved if
  // there is room for answers as long as the sources.
  std::int64_t first_target(std::int64_t source) const override {
    std::int64_t target = kFirstTarget;
    while (step_graph.lowering == "ort" && target <= source) target *= 2;
    return target;
  }
  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override;
  std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                         bool logits) const override;
  // What a state has of its own: all rows finished, caches empty.
  Buffers allocate_own(std::size_t rows, std::int64_t source, std::int64_t target, bool logits) const;
  // Cross keys, values and bias; what they hold is not said.
  Buffers allocate_cross(std::size_t rows, std::int64_t source) const;

 private:
  Limits limits_;
  SpecialTokens tokens_;
  Tensor logits_;
  std::shared_ptr<HostMemory> memory_ = std::make_shared<HostMemory>();

 public:
  const Graph encoder_graph;
  const Graph step_graph;
  const std::unique_ptr<StartingSessions> sessions;
};

// The buffers of one running batch, in host memory.
class OrtState : public DecoderState {
 public:
  OrtState(const OrtEngine& engine, SharedSessions sessions, Buffers buffers, std::size_t rows, std::int64_t source,
           std::int64_t target)
      : engine_(engine), buffers_(std::move(buffers)), rows_(rows), source_(source), target_(target) {
    bind(std::move(sessions));
  }

  std::size_t rows() const override { return rows_; }
  std::int64_t source() const override { return source_; }
  std::int64_t target() const override { return target_; }

  // What earlier sentences left in a row is cleared: it is masked, but a NaN would come through the mask.
  void place(const std::vector<std::size_t>& rows, const Memory& memory, const std::vector<std::size_t>& memory_rows,
             const Ids& target_limits) override {
    if (std::exchange(placed_, true)) bind(engine_.sessions->for_state(rows_));
    const Buffers& encoded = dynamic_cast<const OrtMemory&>(memory).buffers;
    const bool take = rows == memory_rows && is_all(rows) && fits(encoded.at("cross_bias"));
    if (take) {
      take_over(encoded);
    } else if (buffers_.count("cross_bias") == 0) {
      take_over(engine_.allocate_cross(rows_, source_));
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t row = rows[i];
      if (!clean_) clear_row(row);
      if (!take) copy_row(encoded, memory_rows[i], row);
      token_ids()[row] = engine_.tokens().bos;
      positions()[row] = 0;
      finished()[row] = false;
      buffers_.at("target_limits").as<std::int64_t>()[row] = target_limits[i];
    }
  }

  void step(std::int64_t count) override {
    clean_ = false;
    for (std::int64_t i = 0; i < count; ++i) {
      run(sessions_->step, Ort::RunOptions{nullptr}, binding_);
      made_.insert(made_.end(), token_ids(), token_ids() + rows_);
    }
  }

  StepOutput read() override {
    StepOutput output{std::move(made_), std::vector<bool>(finished(), finished() + rows_)};
    made_.clear();
    return output;
  }

  void override_tokens(const std::vector<std::size_t>& rows, const Ids& token_ids,
                       const std::vector<bool>& finished) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t row = rows[i];
      if (this->finished()[row] && !finished[i]) ++positions()[row];
      this->token_ids()[row] = token_ids[i];
      this->finished()[row] = finished[i];
    }
  }

  std::vector<float> logits(std::size_t row) override {
    const Buffer& buffer = buffers_.at("logits");
    const auto size = static_cast<std::size_t>(buffer.size(1));
    if (!buffer.is_half()) {
      const float* start = buffer.as<float>() + row * size;
      return {start, start + size};
    }
    std::vector<float> result(size);
    const auto* start = buffer.as<Ort::Float16_t>() + row * size;
    std::transform(start, start + size, result.begin(), [](Ort::Float16_t value) { return value.ToFloat(); });
    return result;
  }

  std::unique_ptr<DecoderState> moved(const std::vector<std::size_t>& rows, std::int64_t target) override {
    std::unique_ptr<OrtState> next = narrowed(rows);
    return target == target_ ? std::move(next) : next->with_caches(target);
  }

 private:
  const OrtEngine& engine_;
  Buffers buffers_;
  std::size_t rows_;
  std::int64_t source_;
  std::int64_t target_;
  SharedSessions sessions_;
  Ort::IoBinding binding_{nullptr};
  bool placed_ = false;  // a sentence was placed: those that come later are not the first
  bool clean_ = true;    // nothing was written into the caches yet
  Ids made_;

  void bind(SharedSessions sessions) {
    if (sessions == sessions_) return;
    sessions_ = std::move(sessions);
    binding_ = Ort::IoBinding(const_cast<Ort::Session&>(sessions_->step));
    for (const Tensor& tensor : engine_.step_graph.inputs) {
      const auto found = buffers_.find(tensor.name);
      if (found != buffers_.end()) binding_.BindInput(tensor.name.c_str(), found->second.value());
    }
    for (const auto& [input, output] : engine_.step_graph.aliases) {
      binding_.BindOutput(output.c_str(), buffers_.at(input).value());
    }
    if (has_logits()) binding_.BindOutput("logits", buffers_.at("logits").value());
  }

  // A state that goes on with this one's rows.
  std::unique_ptr<OrtState> next(Buffers buffers, std::size_t rows, std::int64_t target) const {
    auto made = std::make_unique<OrtState>(engine_, sessions_, std::move(buffers), rows, source_, target);
    made->placed_ = placed_;
    made->clean_ = clean_;
    return made;
  }

  bool has_logits() const { return buffers_.count("logits") == 1; }
  std::int64_t* token_ids() const { return buffers_.at("token_ids").as<std::int64_t>(); }
  std::int64_t* positions() const { return buffers_.at("positions").as<std::int64_t>(); }
  bool* finished() const { return buffers_.at("finished").as<bool>(); }

  // Whether these are all rows, in order.
  bool is_all(const std::vector<std::size_t>& rows) const {
    std::vector<std::size_t> all(rows_);
    std::iota(all.begin(), all.end(), std::size_t{0});
    return rows == all;
  }

  // The front of the same buffers, with these rows: no memory has to be had and cleared.
  std::unique_ptr<OrtState> narrowed(const std::vector<std::size_t>& rows) const {
    bool from_behind = true;  // then none that is still to be copied is written over
    for (std::size_t i = 0; i < rows.size(); ++i) from_behind = from_behind && rows[i] >= i;
    if (from_behind) {
      for (std::size_t i = 0; i < rows.size(); ++i) copy_row_to(rows[i], i);
    } else {
      reorder(rows);
    }
    Buffers front;
    for (const auto& [name, buffer] : buffers_) {
      front.emplace(name, name == "cache_positions" ? buffer : buffer.front(rows.size()));
    }
    return next(std::move(front), rows.size(), target_);
  }

  // Also over what an earlier sentence left behind the end of the one that comes: see `place`.
  void copy_row_to(std::size_t row, std::size_t to) const {
    if (row == to) return;
    const std::int64_t used = std::min(std::max(positions()[row], positions()[to]) + 1, target_);
    for (const auto& [name, buffer] : buffers_) {
      if (is_cache(name)) {
        copy_tokens(buffer, row, buffer, to, used);
      } else if (name != "cache_positions" && name != "logits") {
        const std::size_t bytes = buffer.row_bytes();
        std::memcpy(buffer.data() + to * bytes, buffer.data() + row * bytes, bytes);
      }
    }
  }

  void reorder(const std::vector<std::size_t>& rows) const {
    for (const auto& [name, buffer] : buffers_) {
      if (name == "cache_positions" || name == "logits") continue;
      const std::vector<std::byte> before(buffer.data(), buffer.data() + buffer.bytes());
      const std::size_t bytes = buffer.row_bytes();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(buffer.data() + i * bytes, before.data() + rows[i] * bytes, bytes);
      }
    }
  }

  // All rows, with caches of another length.
  std::unique_ptr<DecoderState> with_caches(std::int64_t target) const {
    auto made = next(engine_.allocate_own(rows_, source_, target, has_logits()), rows_, target);
    OrtState& other = *made;
    other.take_over(buffers_);
    for (const auto& [name, buffer] : buffers_) {
      const Buffer& to = other.buffers_.at(name);
      if (is_cache(name)) {
        for (std::size_t row = 0; row < rows_; ++row) {
          copy_tokens(buffer, row, to, row, std::min({positions()[row] + 1, target_, target}));
        }
      } else if (!is_cross(name) && name != "cache_positions" && name != "logits") {
        std::memcpy(to.data(), buffer.data(), buffer.bytes());
      }
    }
    return made;
  }

  // Whether encoder output, by its bias `[batch, 1, 1, source]`, has the shapes of this state's own buffers.
  bool fits(const Buffer& bias) const {
    return bias.size(0) == static_cast<std::int64_t>(rows_) && bias.size(3) == source_;
  }

  // Use the encoder's output itself, or another state's share of it.
  void take_over(const Buffers& others) {
    for (const auto& [name, buffer] : others) {
      if (!is_cross(name)) continue;
      buffers_.insert_or_assign(name, buffer);
      binding_.BindInput(name.c_str(), buffer.value());
    }
  }

  void clear_row(std::size_t row) const {
    for (const auto& [name, buffer] : buffers_) {
      if (is_cache(name)) clear(buffer, row, positions()[row] + 1);
    }
  }

  void copy_row(const Buffers& encoded, std::size_t from_row, std::size_t row) const {
    for (const auto& [name, buffer] : buffers_) {
      if (name == "cross_bias") {
        copy_bias(encoded.at(name), from_row, buffer, row);
      } else if (is_cross(name)) {
        copy_source(encoded.at(name), from_row, buffer, row);
      }
    }
  }

  // The first tokens of each head of one row; buffers are [batch, heads, tokens, head_dim].
  static void clear(const Buffer& buffer, std::size_t row, std::int64_t tokens) {
    const auto heads = static_cast<std::size_t>(buffer.size(1));
    const std::size_t token_bytes = static_cast<std::size_t>(buffer.size(3)) * buffer.item_bytes();
    const std::size_t head_bytes = static_cast<std::size_t>(buffer.size(2)) * token_bytes;
    for (std::size_t head = 0; head < heads; ++head) {
      std::memset(buffer.data() + (row * heads + head) * head_bytes, 0, static_cast<std::size_t>(tokens) * token_bytes);
    }
  }

  static void copy_tokens(const Buffer& from, std::size_t from_row, const Buffer& to, std::size_t to_row,
                          std::int64_t tokens) {
    const auto heads = static_cast<std::size_t>(from.size(1));
    const std::size_t token_bytes = static_cast<std::size_t>(from.size(3)) * from.item_bytes();
    const std::size_t from_bytes = static_cast<std::size_t>(from.size(2)) * token_bytes;
    const std::size_t to_bytes = static_cast<std::size_t>(to.size(2)) * token_bytes;
    for (std::size_t head = 0; head < heads; ++head) {
      std::memcpy(to.data() + (to_row * heads + head) * to_bytes, from.data() + (from_row * heads + head) * from_bytes,
                  static_cast<std::size_t>(tokens) * token_bytes);
    }
  }

  // One row of the encoder's keys or values; the rest of the row is zeroed.
  static void copy_source(const Buffer& from, std::size_t from_row, const Buffer& to, std::size_t to_row) {
    std::memset(to.data() + to_row * to.row_bytes(), 0, to.row_bytes());
    copy_tokens(from, from_row, to, to_row, from.size(2));
  }

  // One row of the encoder's bias `[batch, 1, 1, source]`; the rest of the row is masked.
  static void copy_bias(const Buffer& from, std::size_t from_row, const Buffer& to, std::size_t to_row) {
    std::byte* row = to.data() + to_row * to.row_bytes();
    std::memcpy(row, from.data() + from_row * from.row_bytes(), from.row_bytes());
    const Ort::Float16_t half(kMasked);
    for (std::size_t i = from.row_bytes(); i < to.row_bytes(); i += to.item_bytes()) {
      std::memcpy(row + i, to.is_half() ? static_cast<const void*>(&half) : &kMasked, to.item_bytes());
    }
  }
};

std::shared_ptr<const Memory> OrtEngine::encode(const Ids& input_ids, const Ids& source_lengths) const {
  const auto batch = static_cast<std::int64_t>(source_lengths.size());
  const Sizes sizes{{"batch", batch}, {"source", static_cast<std::int64_t>(input_ids.size()) / batch}};
  const Buffers inputs = allocate_buffers(memory_, encoder_graph.inputs, sizes).buffers;
  auto memory = std::make_shared<OrtMemory>(allocate_buffers(memory_, encoder_graph.outputs, sizes).buffers);
  std::copy(input_ids.begin(), input_ids.end(), inputs.at("input_ids").as<std::int64_t>());
  std::copy(source_lengths.begin(), source_lengths.end(), inputs.at("source_lengths").as<std::int64_t>());
  const SharedSessions open = sessions->for_sources(source_lengths.size());
  Ort::IoBinding binding(const_cast<Ort::Session&>(open->encoder));
  for (const auto& [name, buffer] : inputs) binding.BindInput(name.c_str(), buffer.value());
  for (const auto& [name, buffer] : memory->buffers) binding.BindOutput(name.c_str(), buffer.value());
  run(open->encoder, Ort::RunOptions{nullptr}, binding);
  return memory;
}

std::unique_ptr<DecoderState> OrtEngine::allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                                  bool logits) const {
  Buffers buffers = allocate_own(rows, source, target, logits);
  return std::make_unique<OrtState>(*this, sessions->for_state(rows), std::move(buffers), rows, source, target);
}

Buffers OrtEngine::allocate_own(std::size_t rows, std::int64_t source, std::int64_t target, bool logits) const {
  const Sizes sizes{{"batch", static_cast<std::int64_t>(rows)}, {"source", source}, {"target", target}};
  std::vector<Tensor> tensors;  // those of cross-attention come with the first sentences
  for (const Tensor& tensor : step_graph.inputs) {
    if (!is_cross(tensor.name)) tensors.push_back(tensor);
  }
  if (logits) tensors.push_back(logits_);
  Allocated allocated = allocate_buffers(memory_, tensors, sizes);
  const Buffers& buffers = allocated.buffers;
  for (const auto& [name, buffer] : buffers) {
    if (!allocated.zero) std::memset(buffer.data(), 0, buffer.bytes());
  }
  std::fill_n(buffers.at("finished").as<bool>(), rows, true);
  std::fill_n(buffers.at("target_limits").as<std::int64_t>(), rows, 1);
  if (const auto found = buffers.find("cache_positions"); found != buffers.end()) {
    for (std::int64_t i = 0; i < target; ++i) found->second.as<std::int64_t>()[i] = i;
  }
  return std::move(allocated.buffers);
}

Buffers OrtEngine::allocate_cross(std::size_t rows, std::int64_t source) const {
  std::vector<Tensor> tensors;
  for (const Tensor& tensor : step_graph.inputs) {
    if (is_cross(tensor.name)) tensors.push_back(tensor);
  }
  return allocate_buffers(memory_, tensors, {{"batch", static_cast<std::int64_t>(rows)}, {"source", source}}).buffers;
}

std::unique_ptr<StartingSessions> start_sessions(const fs::path& directory, const Manifest& manifest,
                                                 const Choice& choice, const CpuShare& share,
                                                 const std::function<void(const std::string&)>& warn) {
  // Products of other weights are slow, or widen them first, unless they are packed.
  if (share.many || manifest.precision.weights != "float32") {
    return std::make_unique<StartingSessions>(open_sessions(directory, manifest, choice, share.threads, nullptr));
  }
  OrtSessions mapped = open_sessions(directory, manifest, choice, share.threads, nullptr, Weights::mapped);
  Choice same = choice;
  same.lowerings = {mapped.step_graph.lowering};
  const auto open = [directory, manifest, same, share] {
    release(directory / kWeightsName);  // what the first sentence has read of it
    return open_sessions(directory, manifest, same, share.threads, nullptr);
  };
  return std::make_unique<StartingSessions>(std::move(mapped), open, warn);
}

}  // namespace

std::unique_ptr<Engine> open_ort(const fs::path& directory, const Manifest& manifest, const Choice& choice,
                                 const CpuShare& share, const std::function<void(const std::string&)>& warn) {
#ifdef TXPORT_WITH_CUDA
  if (choice.device == "cuda") return open_ort_cuda(directory, manifest, choice, warn);
#else
  if (choice.device == "cuda") {
    throw InputError("this build of txport has no CUDA: configure it with -DTXPORT_WITH_CUDA=ON, or use device cpu");
  }
#endif
  return std::make_unique<OrtEngine>(manifest, start_sessions(directory, manifest, choice, share, warn));
}

}  // namespace txport::core
