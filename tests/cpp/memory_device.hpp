// A device in host memory, with a stream that runs as late as it may, and a model on it; every address is checked.
//
// The model is that of memory_engine.hpp: a hash of the source and of all that was fed. It finds the source in the
// cross-attention keys and what was fed in the caches, so that a byte in the wrong place changes all that follows.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "bundle/interface.hpp"
#include "bundle/manifest.hpp"
#include "device/engine.hpp"
#include "errors.hpp"
#include "memory_engine.hpp"
#include "repository.hpp"
#include "search/decoding.hpp"

namespace memory {

// What is allocated of a device with so many bytes, and page-locked memory of the host.
class Heap {
 public:
  explicit Heap(std::size_t capacity = std::size_t{1} << 40) : capacity_(capacity) {}

  std::byte* allocate(std::size_t bytes) {
    if (bytes > free_bytes()) throw ResourceError("the device has no room");
    return add(blocks_, bytes);
  }
  std::byte* allocate_host(std::size_t bytes) { return add(pinned_, bytes); }
  void free(std::byte* address) {
    const std::lock_guard lock(mutex_);
    require(blocks_.erase(address) + pinned_.erase(address) == 1, "freed what was not allocated");
    std::free(address);
  }
  void check(const std::byte* address, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    require(within(blocks_, address, bytes), "not within one buffer");
  }
  bool is_pinned(const void* address, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return within(pinned_, static_cast<const std::byte*>(address), bytes);
  }
  std::size_t blocks() {
    const std::lock_guard lock(mutex_);
    return blocks_.size() + pinned_.size();
  }
  std::size_t free_bytes() {
    const std::lock_guard lock(mutex_);
    std::size_t used = 0;
    for (const auto& block : blocks_) used += block.second;
    return capacity_ - used;
  }

  // Let the device fail once, the next time that somebody waits for it.
  void fail() { failing_ = true; }
  bool fails() { return failing_.exchange(false); }

 private:
  using Blocks = std::map<std::byte*, std::size_t>;

  const std::size_t capacity_;
  std::atomic<bool> failing_ = false;
  std::mutex mutex_;
  Blocks blocks_;
  Blocks pinned_;

  std::byte* add(Blocks& blocks, std::size_t bytes) {
    auto* address = static_cast<std::byte*>(std::malloc(bytes));
    std::memset(address, 0x7B, bytes);  // nothing is zero by itself
    const std::lock_guard lock(mutex_);
    blocks[address] = bytes;
    return address;
  }
  static bool within(const Blocks& blocks, const std::byte* address, std::size_t bytes) {
    auto block = blocks.upper_bound(const_cast<std::byte*>(address));
    if (block == blocks.begin()) return false;
    --block;
    return address + bytes <= block->first + block->second;
  }
};

// A stream that also takes work of the host, for a model that computes there.
class HostStream {
 public:
  HostStream() = default;
  virtual ~HostStream() = default;
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  virtual void enqueue(std::function<void()> command) = 0;
};

class MemoryDevice : public Device, public HostStream {
 public:
  // `lazy` runs work when somebody waits for it, and only as much as must be; else at once, for a library that knows no
  // such stream.
  explicit MemoryDevice(Heap& heap, bool lazy = true) : heap_(heap), lazy_(lazy) {}

  std::atomic<std::size_t> copies = 0;  // within the device
  std::size_t enqueued() const { return enqueued_; }

  void activate() override {}
  std::byte* allocate(std::size_t bytes) override {
    require(capturing_ == nullptr, "allocated while capturing");
    return heap_.allocate(bytes);
  }
  void free(std::byte* address) noexcept override {
    flush(enqueued_);
    heap_.free(address);
  }
  std::size_t free_memory() override { return heap_.free_bytes(); }
  std::byte* allocate_host(std::size_t bytes) override { return heap_.allocate_host(bytes); }
  void free_host(std::byte* address) noexcept override { free(address); }
  void upload(std::byte* to, const void* from, std::size_t bytes) override {
    const auto* start = static_cast<const std::byte*>(from);
    const bool pinned = heap_.is_pinned(from, bytes);  // read when the stream gets there
    enqueue([this, to, start, bytes, pinned, data = std::vector<std::byte>(start, start + bytes)] {
      heap_.check(to, bytes);
      require(!pinned || std::equal(data.begin(), data.end(), start), "page-locked memory changed under an upload");
      std::memcpy(to, data.data(), bytes);
    });
  }
  void download(void* to, const std::byte* from, std::size_t bytes) override {
    enqueue([=] {
      heap_.check(from, bytes);
      std::memcpy(to, from, bytes);
    });
  }
  void copy(Buffer to, Buffer from, std::size_t width, std::size_t rows, std::size_t planes) override {
    require(rows == 1 || (width <= to.row && width <= from.row), "rows that lie over each other");
    require(planes == 1 || (to.plane % to.row == 0 && from.plane % from.row == 0), "planes that are not of rows");
    ++copies;
    enqueue([=] {
      for (std::size_t plane = 0; plane < planes; ++plane) {
        for (std::size_t row = 0; row < rows; ++row) {
          std::byte* target = to.start + plane * to.plane + row * to.row;
          const std::byte* source = from.start + plane * from.plane + row * from.row;
          heap_.check(target, width);
          heap_.check(source, width);
          std::memmove(target, source, width);
        }
      }
    });
  }
  void fill(Buffer to, unsigned char value, std::size_t width, std::size_t rows) override {
    enqueue([=] {
      for (std::size_t row = 0; row < rows; ++row) {
        heap_.check(to.start + row * to.row, width);
        std::memset(to.start + row * to.row, value, width);
      }
    });
  }
  void synchronize() override {
    fail_if_told();
    flush(enqueued_);
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<MemoryEvent>(*this); }
  std::function<void()> capture(std::function<void()> work, std::string& /*fault*/) override {
    auto commands = std::make_shared<std::vector<std::function<void()>>>();
    const std::unique_ptr<void, std::function<void(void*)>> ends(this, [this](void*) {
      capturing_ = nullptr;
      capturer_ = std::thread::id();
    });
    capturing_ = commands.get();
    capturer_ = std::this_thread::get_id();
    work();
    return [this, commands] {
      for (const auto& command : *commands) enqueue(command);
    };
  }
  void* stream() const override { return nullptr; }

  void enqueue(std::function<void()> command) override {
    if (capturing_ != nullptr) return capturing_->push_back(std::move(command));
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(command));
    ++enqueued_;
    if (!lazy_) flush(enqueued_);
  }

 private:
  class MemoryEvent : public Event {
   public:
    explicit MemoryEvent(MemoryDevice& device) : device_(device) {}
    void record() override { place_ = device_.enqueued_; }
    void synchronize() override {
      device_.fail_if_told();
      device_.flush(place_);
    }

   private:
    MemoryDevice& device_;
    std::size_t place_ = 0;
  };

  Heap& heap_;
  const bool lazy_;
  std::recursive_mutex mutex_;
  std::deque<std::function<void()>> waiting_;
  std::atomic<std::size_t> enqueued_ = 0;  // commands so far
  std::vector<std::function<void()>>* capturing_ = nullptr;
  std::atomic<std::thread::id> capturer_{};  // others may wait for what was enqueued before

  // Run the first `place` of all commands.
  void flush(std::size_t place) {
    const std::lock_guard lock(mutex_);
    require(capturer_.load() != std::this_thread::get_id(), "waited while capturing");
    while (enqueued_ - waiting_.size() < place) {
      const auto command = std::move(waiting_.front());
      waiting_.pop_front();
      command();
    }
  }

  void fail_if_told() {
    if (!heap_.fails()) return;
    const std::lock_guard lock(mutex_);
    waiting_.clear();
    throw EngineError("CUDA failed in cuStreamSynchronize: an illegal address");
  }
};

// How both programs read and write the tensors of one batch.
class View {
 public:
  View(const DeviceTensors& tensors, StepSizes sizes) : tensors(tensors), sizes(sizes) {}

  std::int64_t id(const std::string& name, std::int64_t index) const {
    const DeviceTensor& tensor = tensors.at(name);
    std::int64_t wide = 0;
    std::int32_t narrow = 0;
    const std::byte* from = tensor.address + static_cast<std::size_t>(index) * tensor.item_bytes;
    if (tensor.dtype == "int64") return std::memcpy(&wide, from, 8), wide;
    return std::memcpy(&narrow, from, 4), narrow;
  }
  void set_id(const std::string& name, std::int64_t index, std::int64_t value) const {
    const DeviceTensor& tensor = tensors.at(name);
    const auto narrow = static_cast<std::int32_t>(value);
    std::byte* to = tensor.address + static_cast<std::size_t>(index) * tensor.item_bytes;
    std::memcpy(to, tensor.dtype == "int64" ? static_cast<const void*>(&value) : &narrow, tensor.item_bytes);
  }
  // Of keys, values and ids to copy alike.
  float told_number(const std::string& name, std::int64_t index) const {
    return name == kCrossIds ? static_cast<float>(id(name, index)) : number(name, index);
  }
  void tell(const std::string& name, std::int64_t index, float value) const {
    if (name == kCrossIds) {
      set_id(name, index, static_cast<std::int64_t>(value));
    } else {
      number(name, index) = value;
    }
  }
  float& number(const std::string& name, std::int64_t index) const {
    return reinterpret_cast<float*>(tensors.at(name).address)[index];
  }
  std::uint8_t& flag(const std::string& name, std::int64_t row) const {
    return reinterpret_cast<std::uint8_t*>(tensors.at(name).address)[row];
  }

  const DeviceTensors& tensors;
  const StepSizes sizes;
};

// A key or value tells what it is of, by its head and its place in the head.
inline float told(std::int64_t id, std::int64_t head, std::int64_t item) {
  return static_cast<float>(id + 100 * head + 1000 * item);
}

// The id that an encoder reads: itself, or a vector each of whose numbers is this id.
inline std::int64_t source_id(const View& view, std::int64_t index) {
  const auto features = view.tensors.find(kFeatures);
  if (features == view.tensors.end()) return view.id(kInputIds, index);
  const std::int64_t size = features->second.shape[2];
  const float first = view.number(kFeatures, index * size);
  for (std::int64_t i = 1; i < size; ++i) {
    require(view.number(kFeatures, index * size + i) == first, "numbers of a vector that disagree");
  }
  return static_cast<std::int64_t>(first);
}

inline void run_encoder(const View& view) {
  for (const auto& [name, tensor] : view.tensors) {
    if (name.rfind("cross_", 0) != 0) continue;
    const bool bias = name == "cross_bias";
    const std::int64_t heads = tensor.shape[1];
    const std::int64_t width = bias ? 1 : tensor.shape[3];
    for (std::int64_t row = 0; row < view.sizes.batch; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t token = 0; token < view.sizes.source; ++token) {
          const bool real = token < view.id("source_lengths", row);
          const std::int64_t id = source_id(view, row * view.sizes.source + token);
          for (std::int64_t item = 0; item < width; ++item) {
            const std::int64_t index = ((row * heads + head) * view.sizes.source + token) * width + item;
            view.tell(name, index, bias ? (real ? 0.0F : kMasked) : told(id, head, item));
          }
        }
      }
    }
  }
}

// The ids that every head of every key and value of one row tells of: `tokens` of them. Behind them caches are zero,
// and keys of the encoder at most those of its padding.
inline Ids told_ids(const View& view, const std::string& start, std::int64_t row, std::int64_t tokens,
                    std::int64_t length) {
  Ids ids;
  for (const auto& [name, tensor] : view.tensors) {
    if (name.rfind(start, 0) != 0 || name == "cross_bias") continue;
    const std::int64_t heads = tensor.shape[1];
    const std::int64_t width = tensor.shape[3];
    Ids found;
    for (std::int64_t token = 0; token < length; ++token) {
      for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t item = 0; item < width; ++item) {
          const float value = view.told_number(name, ((row * heads + head) * length + token) * width + item);
          if (token >= tokens) {
            require(value == 0 || (start == "cross_" && value < 1e6F), "what is beyond the tokens was not cleared");
            continue;
          }
          const auto id = static_cast<std::int64_t>(value - told(0, head, item));
          if (head + item == 0) found.push_back(id);
          require(found.back() == id, "heads that tell of different tokens");
        }
      }
    }
    require(ids.empty() || ids == found, "keys and values that tell of different tokens");
    ids = found;
  }
  return ids;
}

inline void run_step(const View& view, float eos_weight) {
  const std::int64_t target = view.sizes.target;
  for (std::int64_t row = 0; row < view.sizes.batch; ++row) {
    const std::int64_t position = view.id("positions", row);
    require(position < target, "a step past the cache");
    if (view.tensors.count("cache_positions") == 1) {
      require(view.id("cache_positions", target - 1) == target - 1, "positions of the cache");
    }
    const bool finished = view.flag("finished", row) != 0;
    const std::int64_t fed_id = view.id("token_ids", row);
    const std::int64_t limit = view.id("target_limits", row);
    for (const auto& [name, tensor] : view.tensors) {
      if (name.rfind("self_", 0) != 0) continue;
      for (std::int64_t head = 0; head < tensor.shape[1]; ++head) {
        for (std::int64_t item = 0; item < tensor.shape[3]; ++item) {
          const std::int64_t index = ((row * tensor.shape[1] + head) * target + position) * tensor.shape[3] + item;
          view.number(name, index) = told(fed_id, head, item);
        }
      }
    }
    const auto advance = [&, row = row](std::int64_t token, bool ends) {
      view.set_id("next_token_ids", row, token);
      view.flag("next_finished", row) = ends ? 1 : 0;
      view.set_id("next_positions", row, ends ? position : position + 1);
    };
    if (finished) {
      advance(kTokens.pad, true);
      continue;
    }
    std::int64_t length = 0;
    while (length < view.sizes.source && view.number("cross_bias", row * view.sizes.source + length) == 0) ++length;
    const Ids source = told_ids(view, "cross_", row, length, view.sizes.source);
    for (std::int64_t token = length; token < view.sizes.source; ++token) {
      require(view.number("cross_bias", row * view.sizes.source + token) == kMasked, "padding that is not masked");
    }
    const Ids fed = told_ids(view, "self_", row, position + 1, target);
    const std::vector<float> logits = logits_after(source, fed, eos_weight);
    for (std::size_t i = 0; i < kVocabulary; ++i) {
      view.number("logits", row * static_cast<std::int64_t>(kVocabulary) + static_cast<std::int64_t>(i)) = logits[i];
    }
    const std::int64_t token = best(logits);
    advance(token, token == kTokens.eos || position + 1 >= limit);
  }
}

// A step for each hypothesis, which continues those slots of its sentence that are its ancestors. What a place that has
// no sentence makes is not looked at.
inline void run_beams(const View& view, float eos_weight) {
  const std::int64_t source = view.sizes.source;
  const std::int64_t target = view.sizes.target;
  const std::int64_t beams = view.sizes.beams;
  const std::int64_t slots = target * beams;
  const auto candidates = view.tensors.at(kTopIds).shape[1];
  require(view.id(kSlotPositions, slots - 1) == target - 1, "positions of the slots");
  const auto caches = [&](const auto& work) {
    for (const auto& [name, tensor] : view.tensors) {
      if (is_cache(name) && name != kAncestors) work(name, tensor.shape[1], tensor.shape[3]);
    }
  };
  for (std::int64_t row = 0; row < view.sizes.batch * beams; ++row) {
    const std::int64_t sentence = row / beams;
    const std::int64_t position = view.id("positions", row);
    require(view.id("rows", row) == row, "numbers of the rows");
    require(position < target && view.id("first_slots", sentence) == position * beams, "a step past the cache");
    caches([&, row = row](const std::string& name, std::int64_t heads, std::int64_t width) {
      for (std::int64_t i = 0; i < heads * width; ++i) {
        const std::int64_t slot = (sentence * heads + i / width) * slots + position * beams + row % beams;
        view.number(name, slot * width + i % width) = told(view.id("token_ids", row), i / width, i % width);
      }
    });
  }
  for (std::int64_t row = 0; row < view.sizes.batch * beams; ++row) {
    const std::int64_t sentence = row / beams;
    std::int64_t length = 0;
    while (length < source && view.number(kCrossBias, sentence * source + length) == 0) ++length;
    if (length == 0) continue;
    Ids fed;
    bool beyond = false;  // what an earlier batch has left where none was placed since
    caches([&, row = row](const std::string& name, std::int64_t heads, std::int64_t width) {
      Ids found;
      for (std::int64_t slot = 0; slot < slots; ++slot) {
        const bool seen = view.flag(kAncestors, row * slots + slot) != 0;
        const std::int64_t at = slot / beams;
        require(!seen || at == static_cast<std::int64_t>(found.size()), "not one ancestor at each position");
        for (std::int64_t i = 0; i < heads * width; ++i) {
          const float value = view.number(name, ((sentence * heads + i / width) * slots + slot) * width + i % width);
          const auto id = static_cast<std::int64_t>(value - told(0, i / width, i % width));
          if (seen && i == 0) found.push_back(id);
          require(!seen || found.back() == id, "heads that tell of different tokens");
          beyond = beyond || (at > view.id("positions", row) && value != 0);
        }
      }
      require(static_cast<std::int64_t>(found.size()) == view.id("positions", row) + 1, "a position without ancestor");
      require(fed.empty() || fed == found, "keys and values that tell of different tokens");
      fed = found;
    });
    if (beyond) continue;
    const std::vector<float> logits = logits_after(told_ids(view, "cross_", sentence, length, source), fed, eos_weight);
    const Ids best = best_ids(logits, static_cast<std::size_t>(candidates));
    for (std::int64_t i = 0; i < candidates; ++i) {
      const std::int64_t id = best[static_cast<std::size_t>(i)];
      view.set_id(kTopIds, row * candidates + i, id);
      view.number(kTopLogits, row * candidates + i) = logits[static_cast<std::size_t>(id)];
    }
    const auto words = static_cast<std::int64_t>(kVocabulary);
    for (std::int64_t i = 0; i < words; ++i) {
      view.number(kLogits, row * words + i) = logits[static_cast<std::size_t>(i)];
    }
    view.number(kNormaliser, row) = static_cast<float>(log_sum_exp(logits));
  }
}

// Numbers of a vector of a model that reads vectors.
inline constexpr std::int64_t kFeatureSize = 3;

// The same requests to a model that reads vectors, whose numbers are the ids.
inline std::vector<Request> reading_vectors(std::vector<Request> requests) {
  for (Request& request : requests) {
    FloatMatrix vectors{request.source_ids.size(), static_cast<std::size_t>(kFeatureSize), {}};
    for (const std::int64_t id : request.source_ids) {
      vectors.values.insert(vectors.values.end(), vectors.columns, static_cast<float>(id));
    }
    request.vectors = std::make_shared<const FloatMatrix>(std::move(vectors));
    request.source_ids.clear();
  }
  return requests;
}

// An optional output that the runtime does not know: nothing may be bound to it.
inline constexpr const char* kUnknownOutput = "attention";

// The toy bundle's graphs with the small vocabulary of the model in memory, and an output more.
inline Manifest small_manifest(bool copies = false, bool features = false) {
  Manifest manifest = Manifest::load(kToyBundle);
  manifest.model.copies = copies;
  if (features) {
    manifest.model.feature_size = kFeatureSize;
    for (Graph& graph : manifest.graphs) {
      if (graph.role == kEncoder) graph.inputs = interface_of(kEncoder, manifest.model, "float32").inputs;
    }
  }
  manifest.tokens = kTokens;
  manifest.model.target_vocabulary = kVocabulary;
  const Interface beams = interface_of(kBeams, manifest.model, "float32");
  manifest.graphs.push_back(
      {kBeams, kBeams, "standard", true, "beams.onnx", {}, beams.inputs, beams.outputs, beams.aliases});
  for (Graph& graph : manifest.graphs) {
    std::vector<Tensor>& with_ids = graph.role == kEncoder ? graph.outputs : graph.inputs;
    const std::vector<Size> shape{"batch", std::int64_t{1}, "source", std::int64_t{1}};
    if (copies) with_ids.push_back({kCrossIds, "int64", shape, false});
    graph.outputs.push_back({kUnknownOutput, "float32", {std::string("batch"), std::string("source")}, true});
    for (Tensor& tensor : graph.outputs) {
      // Fewer candidates than words, so that a search may ask for more.
      if (tensor.name == kTopIds || tensor.name == kTopLogits) tensor.shape = {"rows", std::int64_t{8}};
      if (tensor.name == "logits" && graph.role == kStep)
        tensor.shape = {std::string("batch"), static_cast<std::int64_t>(kVocabulary)};
    }
  }
  return manifest;
}

// Its graphs, with buckets as tx-build makes them.
class MemoryProgram : public Program {
 public:
  // A program that does not run in order computes each step twice, and reads again what it has written.
  MemoryProgram(HostStream& device, float eos_weight, bool captured, bool in_order = true)
      : device_(device), eos_weight_(eos_weight), captured_(captured), in_order_(in_order) {}

  static constexpr std::int64_t kSource = 48;
  mutable std::atomic<int> bound = 0;
  mutable std::atomic<int> refused = 0;  // that many bindings find no memory
  bool has_beams = true;

  const Graph* beam_graph(std::int64_t /*beams*/) const override { return has_beams ? &beams_ : nullptr; }

  StepSizes bucket(const StepSizes& asked) const override {
    const std::int64_t batch = asked.batch <= 1 ? 1 : asked.batch <= 4 ? 4 : 8;
    require(asked.batch * asked.beams <= 8 && asked.source <= kSource && asked.target <= 128, "beyond the limits");
    return {batch, source_bucket(asked.source, kSource), asked.target <= 64 ? 64 : 128, asked.beams};
  }

  std::function<void()> bind(const DeviceTensors& tensors, const StepSizes& sizes) const override {
    if (refused > 0 && refused-- > 0) throw ResourceError("the library found no memory for a context");
    ++bound;
    check(tensors);
    for (const auto& [name, tensor] : tensors) {
      const auto next = tensors.find("next_" + name);
      const bool alias = next == tensors.end() || next->second.address == tensor.address;
      require(alias == (next == tensors.end() || in_order_ || is_cache(name)), "an alias at two addresses, or at one");
    }
    // Its steps must be done when it goes, as TensorRT wants it of a context.
    const auto alive = std::make_shared<bool>(true);
    const std::shared_ptr<void> binding(nullptr, [alive](void*) { *alive = false; });
    return [this, tensors, sizes, alive, binding] {
      device_.enqueue([this, tensors, sizes, alive] {
        require(*alive, "a step whose binding is gone");
        for (int i = 0; i < (in_order_ ? 1 : 2); ++i) {
          sizes.beams == 1 ? run_step(View(tensors, sizes), eos_weight_) : run_beams(View(tensors, sizes), eos_weight_);
        }
      });
    };
  }

  void encode(const DeviceTensors& tensors, const StepSizes& sizes) const override {
    check(tensors);
    device_.enqueue([tensors, sizes] { run_encoder(View(tensors, sizes)); });
  }

  bool can_be_captured() const override { return captured_; }
  bool runs_in_order() const override { return in_order_; }

 private:
  HostStream& device_;
  const float eos_weight_;
  const bool captured_;
  const bool in_order_;
  const Graph beams_ = *small_manifest().optional_graph(kBeams);

  static void check(const DeviceTensors& tensors) {
    require(tensors.count(kUnknownOutput) == 0, "an unknown output was bound");
    for (const auto& [name, tensor] : tensors) {
      require(tensor.address != nullptr && reinterpret_cast<std::uintptr_t>(tensor.address) % 16 == 0, "no address");
    }
  }
};

inline constexpr Limits kLimits{8, MemoryProgram::kSource, 128};

inline std::vector<Request> requests(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  std::vector<Request> made(count);
  for (Request& request : made) {
    for (std::int64_t left = number(1, number(1, 3) == 1 ? 48 : 12); left > 0; --left) {
      request.source_ids.push_back(number(3, kVocabulary - 1));
    }
    if (number(1, 2) == 1) request.max_length = number(1, 128);
    if (number(1, 5) == 1) request.min_length = number(1, 5);
    if (number(1, 5) == 1) request.prefix = Ids(static_cast<std::size_t>(number(1, 3)), 5);
    if (request.max_length) request.min_length = std::min(request.min_length, *request.max_length);
  }
  return made;
}

// The loop over an engine gives what it gives over one without a device.
inline void check_same(const Engine& engine, float eos_weight, std::size_t count, std::uint32_t seed, bool scores) {
  const MemoryEngine expected(kLimits, 1, eos_weight);
  std::vector<Request> asked = requests(count, seed);
  for (Request& request : asked) request.scores = scores;
  for (const std::int64_t rows : {1, 3, 8}) {
    const SearchOptions options{rows};
    const auto first = decode_all(expected, asked, options);
    const auto second = decode_all(engine, asked, options);
    REQUIRE(first.size() == second.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      CHECK(first[i].ids() == second[i].ids());
      CHECK(first[i].scores() == second[i].scores());
    }
  }
}

}  // namespace memory
