// What chain.cu needs of a GPU, on a CPU: the 256 threads of a block are fibers, and blocks run one after the other.
// Between barriers, warps run one after the other, in an order of the seed's. Shared memory is NaN at first.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

using std::min;
using u32 = unsigned;
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct Dimension {
  int x;
};

#define DEVICE inline
#define KERNEL static
#define UNROLLED(i, count) for (int i = 0; i < (count); i++)
#define constexpr_size const
#define MAX_ROW_TILES 2
#ifndef EMULATED_CHUNKS
#define EMULATED_CHUNKS 2
#endif
#define HELD_CHUNKS(inputs) EMULATED_CHUNKS
#define SHARED_ARRAY(type, name, count) type* const name = shared_array<type>(__LINE__, count)
// Ends the process with a message: the kernel is wrong.
#define FAIL(...) (std::fprintf(stderr, "emulator: " __VA_ARGS__), std::fputc('\n', stderr), std::abort())

static int ROWS, D_MODEL, HEADS, HEAD_DIM, FFN, VOCABULARY, CACHE, PRE_NORM, GATED, HALF_CACHES, NORM, ACTIVATION;
static float EPSILON;

static Dimension threadIdx, blockIdx, gridDim;
constexpr int BLOCK = 256;

// Shared memory of the running block, by lines of chain.cu: AddressSanitizer sees the end of each array.
static std::map<int, std::vector<unsigned char>> shared_arrays;

template <class T>
T* shared_array(int line, int count) {
  std::vector<unsigned char>& bytes = shared_arrays[line];
  if (bytes.empty()) bytes.assign(count * sizeof(T), 0xff);
  return reinterpret_cast<T*>(bytes.data());
}

// A meeting of threads. They leave it when all have arrived.
struct Meeting {
  int arrived, generation;
};

struct Fiber {
  void* stack_pointer;
  const Meeting* meeting;  // where it waits for the end of a generation, or null
  int generation;
  bool done;
};

constexpr size_t STACK = 1 << 16;
alignas(16) static char stacks[BLOCK][STACK];
static Fiber threads[BLOCK];
static Meeting block_meeting, warp_meetings[BLOCK / 32];
static void (*body)(const void*);
static const void* body_arguments;
static void *scheduler, *ended;

// Saves the registers that a function preserves, and continues on another stack.
extern "C" void switch_fiber(void** from, void* to);
asm(R"(
.text
switch_fiber:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

static void run_fiber() {
  body(body_arguments);
  threads[threadIdx.x].done = true;
  switch_fiber(&ended, scheduler);  // for the last time
}

static void start_fiber(int thread) {
  // The address that the first switch returns to, above six registers; the stack is aligned as after a call.
  void** top = reinterpret_cast<void**>(stacks[thread] + STACK) - 1;
  top[-1] = reinterpret_cast<void*>(&run_fiber);
  threads[thread] = {top - 7, nullptr, 0, false};
}

// Runs the threads of a warp until all wait for other warps: a warp is as far ahead of the others as it can be.
static bool run_warp(int first, int offset) {
  bool any = false;
  for (bool again = true; again; any |= again) {
    again = false;
    for (int i = 0; i < 32; i++) {
      const int thread = first + (i + offset) % 32;
      Fiber& fiber = threads[thread];
      if (fiber.done || (fiber.meeting && fiber.meeting->generation == fiber.generation)) continue;
      fiber.meeting = nullptr;
      threadIdx.x = thread;
      switch_fiber(&scheduler, fiber.stack_pointer);
      again = true;
    }
  }
  return any;
}

// Runs the kernel in `body` by 256 threads, in an order of the seed's.
static void run_block(unsigned seed) {
  shared_arrays.clear();
  block_meeting = {};
  for (Meeting& warp : warp_meetings) warp = {};
  for (int thread = 0; thread < BLOCK; thread++) start_fiber(thread);
  for (bool again = true; again;) {
    again = false;
    for (unsigned i = 0; i < BLOCK / 32; i++) {
      const unsigned warp = (i * (2 * (seed % 4) + 1) + seed / 4) % (BLOCK / 32);
      again |= run_warp(static_cast<int>(warp) * 32, static_cast<int>(seed / 32 % 32));
    }
  }
  for (const Fiber& fiber : threads) {
    if (!fiber.done) FAIL("a thread waits at a barrier to which others do not come");
  }
}

// Waits until the threads of a block, or of a warp, have come. The last one calls `last` first.
template <class Last>
void meet(Meeting& meeting, int count, Last last) {
  if (++meeting.arrived == count) {
    last();
    meeting.arrived = 0;
    meeting.generation++;
    return;
  }
  Fiber& fiber = threads[threadIdx.x];
  fiber.meeting = &meeting;
  fiber.generation = meeting.generation;
  switch_fiber(&fiber.stack_pointer, scheduler);
}

template <class Last>
void meet_warp(Last last) {
  meet(warp_meetings[threadIdx.x / 32], 32, last);
}

DEVICE u32 pack(float a, float b) { return _cvtss_sh(a, 0) | static_cast<u32>(_cvtss_sh(b, 0)) << 16; }
DEVICE float low(u32 v) { return _cvtsh_ss(static_cast<unsigned short>(v)); }
DEVICE float high(u32 v) { return low(v >> 16); }
DEVICE uint4 read_weights(const uint4* from) {
  if (reinterpret_cast<size_t>(from) % 16) FAIL("a read of 16 bytes is not aligned");
  return *from;
}
DEVICE void wait_for_inputs() {}
DEVICE void block_barrier() {
  meet(block_meeting, BLOCK, [] {});
}
DEVICE void warp_barrier() {}

// The value of the lane whose number differs in the bits of `mask`.
template <class T>
DEVICE T shuffle(T value, int mask) {
  static T values[BLOCK], results[BLOCK];
  const int first = threadIdx.x / 32 * 32;
  values[threadIdx.x] = value;
  meet_warp([=] {
    for (int i = 0; i < 32; i++) results[first + i] = values[first + (i ^ mask)];
  });
  return results[threadIdx.x];
}

// c += a b by the fragments of the PTX manual, "Matrix Fragments for mma.m16n8k16".
static u32 lane_words[BLOCK][6];
static float lane_sums[BLOCK][4];

static float fragment(int lane, int word, int half) { return low(lane_words[lane][word] >> 16 * half); }

static void multiply_fragments(int first) {
  float a[16][16], b[16][8];
  for (int k = 0; k < 16; k++) {
    for (int i = 0; i < 16; i++) a[i][k] = fragment(first + i % 8 * 4 + k % 8 / 2, i / 8 + k / 8 * 2, k % 2);
    for (int j = 0; j < 8; j++) b[k][j] = fragment(first + j * 4 + k % 8 / 2, 4 + k / 8, k % 2);
  }
  for (int i = 0; i < 16; i++) {
    for (int j = 0; j < 8; j++) {
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += a[i][k] * b[k][j];
      lane_sums[first + i % 8 * 4 + j / 2][i / 8 * 2 + j % 2] = sum;
    }
  }
}

DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const u32 words[6] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(lane_words[threadIdx.x], words, sizeof(words));
  const int first = threadIdx.x / 32 * 32;
  meet_warp([=] { multiply_fragments(first); });
  for (int i = 0; i < 4; i++) c[i] += lane_sums[threadIdx.x][i];
}
