// What chain.cu needs of a GPU, on a CPU: the 256 threads of a block are fibers, and blocks run one after the other.
// Between barriers, warps run one after the other, in an order of the seed's. Shared memory is allocated part by part,
// and is NaN at first.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using std::min;
using u32 = unsigned;
struct alignas(16) u4 {
  u32 x, y, z, w;
};
struct alignas(16) f4 {
  float x, y, z, w;
};
struct alignas(8) f2 {
  float x, y;
};
struct Dimension {
  int x;
};

#define DEVICE inline
#define KERNEL static
#define UNROLL
#define constexpr_size const
#define MAX_ROW_TILES 2
#ifndef EMULATED_CHUNKS
#define EMULATED_CHUNKS 2
#endif
#define HELD_CHUNKS(inputs) EMULATED_CHUNKS
#define SHARED_MEMORY(name, bytes) Shared name(bytes)

static int ROWS, D_MODEL, HEADS, HEAD_DIM, FFN, VOCABULARY, CACHE, PRE_NORM, GATED, ROTARY, HALF_CACHES, NORM,
    ACTIVATION;
static float EPSILON;

static Dimension threadIdx, blockIdx, gridDim;

constexpr int BLOCK = 256;
// Ends the process with a message: the kernel is wrong.
#define FAIL(...) (std::fprintf(stderr, "emulator: " __VA_ARGS__), std::fputc('\n', stderr), std::abort())

// A meeting of threads. They leave it when all have arrived.
struct Collective {
  int arrived = 0, generation = 0;
};

extern "C" void switch_fiber(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl switch_fiber
.type switch_fiber, @function
switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size switch_fiber, .-switch_fiber
)");
#else
#error "the emulator's fibers are written for x86-64"
#endif

class Fibers {
 public:
  using Body = void (*)(const void*);

  Fibers() : stacks_(static_cast<size_t>(BLOCK) * STACK) {}

  // Runs `body` in 256 threads, in an order of the seed's.
  void run(Body body, const void* arguments, unsigned seed) {
    body_ = body;
    arguments_ = arguments;
    all_ = {};
    for (Collective& warp : warps_) warp = {};
    for (int thread = 0; thread < BLOCK; thread++) start(thread);
    left_ = BLOCK;
    switches_ = 0;
    while (left_ > 0) {
      const int before = switches_;
      for (int i = 0; i < BLOCK / 32; i++) {
        const int warp = (i * (2 * static_cast<int>(seed % 4) + 1) + static_cast<int>(seed / 4 % 8)) % (BLOCK / 32);
        run_warp(warp * 32, static_cast<int>(seed / 32 % 32));
      }
      if (switches_ == before) FAIL("threads wait for each other in different places");
    }
    if (all_.arrived) FAIL("a thread waits at a barrier that others have left out");
  }

  // Waits until all threads of the block, or of the warp, have come; the last one calls `last` first.
  void block() {
    wait(all_, BLOCK, [] {});
  }
  template <class Last>
  void warp(Last last) {
    wait(warps_[threadIdx.x / 32], 32, last);
  }

 private:
  static constexpr size_t STACK = 1 << 16;

  // Runs the threads of a warp until all wait for other warps: a warp is as far ahead of the others as it can be.
  void run_warp(int first, int offset) {
    for (int before = -1; before != switches_;) {
      before = switches_;
      for (int i = 0; i < 32; i++) {
        const int thread = first + (i + offset) % 32;
        if (done_[thread] || (waits_[thread] && waits_[thread]->generation == generations_[thread])) continue;
        waits_[thread] = nullptr;
        threadIdx.x = thread;
        switches_++;
        switch_fiber(&scheduler_, stack_pointers_[thread]);
        left_ -= done_[thread];
      }
    }
  }

  template <class Last>
  void wait(Collective& collective, int threads, Last last) {
    if (++collective.arrived == threads) {
      last();
      collective.arrived = 0;
      collective.generation++;
      return;
    }
    const int thread = threadIdx.x;
    waits_[thread] = &collective;
    generations_[thread] = collective.generation;
    switch_fiber(&stack_pointers_[thread], scheduler_);
  }

  void start(int thread) {
    // The address that the first switch returns to, above six registers; the stack is aligned as after a call.
    void** top = reinterpret_cast<void**>(stacks_.data() + (thread + 1) * STACK - 64);
    top = reinterpret_cast<void**>(reinterpret_cast<size_t>(top) / 16 * 16) - 1;
    top[-1] = reinterpret_cast<void*>(&Fibers::enter);
    std::memset(top - 7, 0, 6 * sizeof(void*));
    stack_pointers_[thread] = top - 7;
    done_[thread] = false;
    waits_[thread] = nullptr;
  }

  static void enter();

  Body body_ = nullptr;
  const void* arguments_ = nullptr;
  void* scheduler_ = nullptr;
  void* ended_ = nullptr;
  std::vector<char> stacks_;
  void* stack_pointers_[BLOCK];
  bool done_[BLOCK];
  Collective all_, warps_[BLOCK / 32];
  Collective* waits_[BLOCK];
  int generations_[BLOCK];
  int left_ = 0, switches_ = 0;
};

static Fibers fibers;

void Fibers::enter() {
  fibers.body_(fibers.arguments_);
  fibers.done_[threadIdx.x] = true;
  switch_fiber(&fibers.ended_, fibers.scheduler_);  // for the last time
}

// Shared memory of the running block: each part is an allocation, so that AddressSanitizer sees the ends of each.
static std::vector<std::vector<u4>> shared_parts;

struct Shared {
  explicit Shared(int bytes) : left(bytes) {}
  template <class T>
  T* take(int count) {
    const size_t bytes = count * sizeof(T);
    left -= static_cast<int>(bytes);
    if (left < 0) FAIL("a kernel takes more shared memory than it has");
    if (bytes % 16) FAIL("a part of shared memory is not a multiple of 16 bytes");
    if (part == shared_parts.size()) shared_parts.emplace_back(bytes / 16, u4{~0u, ~0u, ~0u, ~0u});
    return reinterpret_cast<T*>(shared_parts[part++].data());
  }
  int left;
  size_t part = 0;
};

template <class T>
static const T& aligned(const T* at) {
  if (reinterpret_cast<size_t>(at) % alignof(T)) FAIL("a read of %zu bytes is not aligned", sizeof(T));
  return *at;
}

static u32 half_bits(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  unsigned short bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

static float half_value(u32 bits) {
  static const std::vector<float> values = [] {
    std::vector<float> table(1 << 16);
    for (u32 i = 0; i < table.size(); i++) {
      const unsigned short narrow = static_cast<unsigned short>(i);
      _Float16 half;
      std::memcpy(&half, &narrow, 2);
      table[i] = static_cast<float>(half);
    }
    return table;
  }();
  return values[bits & 0xffff];
}

DEVICE u32 pack(float a, float b) { return half_bits(a) | half_bits(b) << 16; }
DEVICE float low(u32 v) { return half_value(v); }
DEVICE float high(u32 v) { return half_value(v >> 16); }
DEVICE u4 read_weights(const u4* from) { return aligned(from); }
DEVICE float half_at(const void* from, long long index) {
  return half_value(static_cast<const unsigned short*>(from)[index]);
}
DEVICE void write_cache(void* to, long long index, float value) {
  if (HALF_CACHES) {
    static_cast<unsigned short*>(to)[index] = static_cast<unsigned short>(half_bits(value));
  } else {
    static_cast<float*>(to)[index] = value;
  }
}
DEVICE void begin_dependents() {}
DEVICE void wait_for_inputs() {}
DEVICE void block_barrier() { fibers.block(); }
DEVICE void warp_barrier() {}

// Inputs and results of the lanes of each warp.
static float lane_values[BLOCK];
static int lane_ids[BLOCK];
static u32 lane_words[BLOCK][6];

DEVICE float lanes_sum(float x, int lanes) {
  float* values = lane_values + threadIdx.x / 32 * 32;
  values[threadIdx.x % 32] = x;
  fibers.warp([=] {
    for (int first = 0; first < 32; first += lanes) {
      float sum = 0;
      for (int i = 0; i < lanes; i++) sum += values[first + i];
      for (int i = 0; i < lanes; i++) values[first + i] = sum;
    }
  });
  return values[threadIdx.x % 32];
}
DEVICE float warp_sum(float x) { return lanes_sum(x, 32); }

template <class Best>
DEVICE Best warp_best(Best best) {
  const int first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
  lane_values[first + lane] = best.value;
  lane_ids[first + lane] = best.id;
  fibers.warp([=] {
    Best all{lane_values[first], lane_ids[first]};
    for (int i = 1; i < 32; i++) all = larger(all, Best{lane_values[first + i], lane_ids[first + i]});
    for (int i = 0; i < 32; i++) {
      lane_values[first + i] = all.value;
      lane_ids[first + i] = all.id;
    }
  });
  return {lane_values[first + lane], lane_ids[first + lane]};
}

// c += a b by the fragments of the PTX manual, "Matrix Fragments for mma.m16n8k16".
static float lane_sums[BLOCK][4];

static void multiply_fragments(int first) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; lane++) {
    const int group = lane / 4, pair = lane % 4 * 2;
    const u32* words = lane_words[first + lane];
    for (int i = 0; i < 4; i++) {
      for (int j = 0; j < 2; j++) a[group + i % 2 * 8][pair + j + i / 2 * 8] = half_value(words[i] >> 16 * j);
    }
    for (int i = 0; i < 2; i++) {
      for (int j = 0; j < 2; j++) b[pair + j + i * 8][group] = half_value(words[4 + i] >> 16 * j);
    }
  }
  for (int lane = 0; lane < 32; lane++) {
    for (int i = 0; i < 4; i++) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
      lane_sums[first + lane][i] = sum;
    }
  }
}

DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const u32 words[6] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(lane_words[threadIdx.x], words, sizeof(words));
  const int first = threadIdx.x / 32 * 32;
  fibers.warp([=] { multiply_fragments(first); });
  for (int i = 0; i < 4; i++) c[i] += lane_sums[threadIdx.x][i];
}
