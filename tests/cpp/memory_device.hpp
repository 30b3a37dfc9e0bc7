// A device in host memory, with a stream that runs as late as it may, and a model on it; every address is checked.
//
// The model is that of memory_engine.hpp: a hash of the source and of all that was fed. It finds the source in the
// cross-attention keys and what was fed in the caches, so that a byte in the wrong place changes all that follows.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "bundle/manifest.hpp"
#include "device/engine.hpp"
#include "errors.hpp"
#include "greedy.hpp"
#include "memory_engine.hpp"
#include "repository.hpp"

namespace memory {

// What is allocated on all streams, of a device with so many bytes.
class Heap {
 public:
  explicit Heap(std::size_t capacity = std::size_t{1} << 40) : capacity_(capacity) {}

  std::byte* allocate(std::size_t bytes) {
    if (bytes > free_bytes()) throw ResourceError("the device has no room");
    auto* address = static_cast<std::byte*>(std::malloc(bytes));
    std::memset(address, 0x7B, bytes);  // nothing is zero by itself
    const std::lock_guard lock(mutex_);
    blocks_[address] = bytes;
    return address;
  }
  void free(std::byte* address) {
    const std::lock_guard lock(mutex_);
    require(blocks_.erase(address) == 1, "freed what was not allocated");
    std::free(address);
  }
  void check(const std::byte* address, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto block = blocks_.upper_bound(const_cast<std::byte*>(address));
    require(block != blocks_.begin(), "an address of nothing");
    --block;
    require(address + bytes <= block->first + block->second, "beyond the end of a buffer");
  }
  std::size_t blocks() {
    const std::lock_guard lock(mutex_);
    return blocks_.size();
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
  const std::size_t capacity_;
  std::atomic<bool> failing_ = false;
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> blocks_;
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
  // `lazy` runs work when somebody waits for it; else at once, for a library that knows no such stream.
  explicit MemoryDevice(Heap& heap, bool lazy = true) : heap_(heap), lazy_(lazy) {}

  std::byte* allocate(std::size_t bytes) override { return heap_.allocate(bytes); }
  void free(std::byte* address) noexcept override {
    flush();
    heap_.free(address);
  }
  std::size_t free_memory() override { return heap_.free_bytes(); }
  void upload(std::byte* to, const void* from, std::size_t bytes) override {
    const auto* start = static_cast<const std::byte*>(from);
    enqueue([this, to, data = std::vector<std::byte>(start, start + bytes)] {
      heap_.check(to, data.size());
      std::memcpy(to, data.data(), data.size());
    });
  }
  void download(void* to, const std::byte* from, std::size_t bytes) override {
    synchronize();
    heap_.check(from, bytes);
    std::memcpy(to, from, bytes);
  }
  void copy(Buffer to, Buffer from, std::size_t bytes, std::size_t count) override {
    enqueue([=] {
      for (std::size_t i = 0; i < count; ++i) {
        heap_.check(to.start + i * to.stride, bytes);
        heap_.check(from.start + i * from.stride, bytes);
        std::memcpy(to.start + i * to.stride, from.start + i * from.stride, bytes);
      }
    });
  }
  void fill(std::byte* to, std::uint32_t pattern, std::size_t item_bytes, std::size_t count) override {
    enqueue([=] {
      heap_.check(to, item_bytes * count);
      for (std::size_t i = 0; i < count; ++i) std::memcpy(to + i * item_bytes, &pattern, item_bytes);
    });
  }
  void synchronize() override {
    if (heap_.fails()) {
      waiting_.clear();
      throw EngineError("CUDA failed in cuStreamSynchronize: an illegal address");
    }
    flush();
  }
  std::function<void()> capture(std::function<void()> work, std::string& /*fault*/) override {
    auto commands = std::make_shared<std::vector<std::function<void()>>>();
    capturing_ = commands.get();
    work();
    capturing_ = nullptr;
    return [this, commands] {
      for (const auto& command : *commands) enqueue(command);
    };
  }
  void* stream() const override { return nullptr; }

  void enqueue(std::function<void()> command) override {
    (capturing_ != nullptr ? *capturing_ : waiting_).push_back(std::move(command));
    if (!lazy_ && capturing_ == nullptr) flush();
  }

 private:
  Heap& heap_;
  const bool lazy_;
  std::vector<std::function<void()>> waiting_;
  std::vector<std::function<void()>>* capturing_ = nullptr;

  void flush() {
    require(capturing_ == nullptr, "waited while capturing");
    const auto commands = std::move(waiting_);
    waiting_.clear();
    for (const auto& command : commands) command();
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
  float& number(const std::string& name, std::int64_t index) const {
    return reinterpret_cast<float*>(tensors.at(name).address)[index];
  }
  std::uint8_t& flag(std::int64_t row) const {
    return reinterpret_cast<std::uint8_t*>(tensors.at("finished").address)[row];
  }

  const DeviceTensors& tensors;
  const StepSizes sizes;
};

// A key or value tells what it is of, by its head and its place in the head.
inline float told(std::int64_t id, std::int64_t head, std::int64_t item) {
  return static_cast<float>(id + 100 * head + 1000 * item);
}

// Writes `[rows, heads, tokens, head_dim]` without gaps, as its own sizes are.
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
          const std::int64_t id = view.id("input_ids", row * view.sizes.source + token);
          for (std::int64_t item = 0; item < width; ++item) {
            const std::int64_t index = ((row * heads + head) * view.sizes.source + token) * width + item;
            view.number(name, index) = bias ? (real ? 0.0F : -30000.0F) : told(id, head, item);
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
          const float value = view.number(name, ((row * heads + head) * length + token) * width + item);
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
    const bool finished = view.flag(row) != 0;
    for (const auto& [name, tensor] : view.tensors) {
      if (name.rfind("self_", 0) != 0) continue;
      for (std::int64_t head = 0; head < tensor.shape[1]; ++head) {
        for (std::int64_t item = 0; item < tensor.shape[3]; ++item) {
          const std::int64_t index = ((row * tensor.shape[1] + head) * target + position) * tensor.shape[3] + item;
          view.number(name, index) = told(view.id("token_ids", row), head, item);
        }
      }
    }
    if (finished) {
      view.set_id("token_ids", row, kTokens.pad);
      continue;
    }
    std::int64_t length = 0;
    while (length < view.sizes.source && view.number("cross_bias", row * view.sizes.source + length) == 0) ++length;
    const Ids source = told_ids(view, "cross_", row, length, view.sizes.source);
    for (std::int64_t token = length; token < view.sizes.source; ++token) {
      require(view.number("cross_bias", row * view.sizes.source + token) == -30000, "padding that is not masked");
    }
    const Ids fed = told_ids(view, "self_", row, position + 1, target);
    const std::vector<float> logits = logits_after(source, fed, eos_weight);
    for (std::size_t i = 0; i < kVocabulary; ++i) {
      view.number("logits", row * static_cast<std::int64_t>(kVocabulary) + static_cast<std::int64_t>(i)) = logits[i];
    }
    const std::int64_t token = best(logits);
    const bool ends = token == kTokens.eos || position + 1 >= view.id("target_limits", row);
    view.set_id("token_ids", row, token);
    view.flag(row) = ends ? 1 : 0;
    if (!ends) view.set_id("positions", row, position + 1);
  }
}

// An optional output that the runtime does not know: nothing may be bound to it.
inline constexpr const char* kUnknownOutput = "attention";

// Either graph, with buckets as tx-build makes them.
class MemoryProgram : public Program {
 public:
  MemoryProgram(bool step, float eos_weight, bool captured)
      : step_(step), eos_weight_(eos_weight), captured_(captured) {}

  static constexpr std::int64_t kSource = 48;
  mutable std::atomic<int> bound = 0;

  StepSizes bucket(const StepSizes& asked) const override {
    const std::int64_t source = source_bucket(asked.source, kSource);
    const std::int64_t batch = asked.batch <= 1 ? 1 : asked.batch <= 4 ? 4 : 8;
    require(asked.batch <= 8 && asked.source <= kSource && asked.target <= 128, "beyond the limits");
    return {batch, source, !step_ ? 0 : asked.target <= 64 ? 64 : 128};
  }
  std::unique_ptr<BoundProgram> bind(Device& device, const DeviceTensors& tensors,
                                     const StepSizes& bucket) const override {
    ++bound;
    require(tensors.count(kUnknownOutput) == 0, "an unknown output was bound");
    for (const auto& [name, tensor] : tensors) {
      const auto next = tensors.find("next_" + name);
      require(next == tensors.end() || next->second.address == tensor.address, "an alias at two addresses");
    }
    return std::make_unique<Bound>(*this, device, tensors, bucket);
  }
  bool can_be_captured() const override { return captured_; }

 private:
  class Bound : public BoundProgram {
   public:
    Bound(const MemoryProgram& program, Device& device, DeviceTensors tensors, StepSizes bucket)
        : program_(program),
          device_(dynamic_cast<HostStream&>(device)),
          tensors_(std::move(tensors)),
          bucket_(bucket) {}

    void run(const StepSizes& sizes) override {
      require(sizes.batch <= bucket_.batch && sizes.source <= bucket_.source, "beyond the buffers");
      require(!program_.step_ || sizes == bucket_, "a step runs on all of its rows");
      device_.enqueue([this, sizes] {
        const View view(tensors_, sizes);
        program_.step_ ? run_step(view, program_.eos_weight_) : run_encoder(view);
      });
    }

   private:
    const MemoryProgram& program_;
    HostStream& device_;
    const DeviceTensors tensors_;
    const StepSizes bucket_;
  };

  const bool step_;
  const float eos_weight_;
  const bool captured_;
};

// The toy bundle's graphs with the small vocabulary of the model in memory, and an output more.
inline Manifest small_manifest() {
  Manifest manifest = Manifest::load(kToyBundle);
  manifest.tokens = kTokens;
  for (Graph& graph : manifest.graphs) {
    graph.outputs.push_back({kUnknownOutput, "float32", {std::string("batch"), std::string("source")}, true});
    for (Tensor& tensor : graph.outputs) {
      if (tensor.name == "logits") tensor.shape = {std::string("batch"), static_cast<std::int64_t>(kVocabulary)};
    }
  }
  return manifest;
}

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
  const std::vector<Request> asked = requests(count, seed);
  for (const std::int64_t rows : {1, 3, 8}) {
    const SearchOptions options{rows, kBatchTokens, scores};
    const auto first = decode_all(expected, asked, options);
    const auto second = decode_all(engine, asked, options);
    REQUIRE(first.size() == second.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      CHECK(first[i].ids == second[i].ids);
      CHECK(first[i].scores == second[i].scores);
    }
  }
}

}  // namespace memory
