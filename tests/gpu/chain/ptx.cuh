// What chain.cu needs of a GPU, in PTX, without a header: half precision, mma, weights, warps.
typedef unsigned u32;
struct alignas(16) u4 {
  u32 x, y, z, w;
};
struct alignas(16) f4 {
  float x, y, z, w;
};
struct alignas(8) f2 {
  float x, y;
};

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ __launch_bounds__(256, 1)
#define UNROLL _Pragma("unroll")
#define constexpr_size constexpr
#define MAX_ROW_TILES (ROWS > 16 ? 2 : 1)
// Chunks of a product's inputs that a warp holds in registers. With more of them, 32 rows spill.
#define MOST_CHUNKS (ROWS > 16 ? 4 : 8)
#define HELD_CHUNKS(inputs) (((inputs) + 255) / 256 < MOST_CHUNKS ? ((inputs) + 255) / 256 : MOST_CHUNKS)
#define SHARED_MEMORY(name, bytes)                   \
  __shared__ alignas(16) unsigned char arena[bytes]; \
  Shared name = {arena}

// Takes parts of a kernel's shared memory. Sizes are multiples of 16 bytes.
struct Shared {
  unsigned char* at;
  template <class T>
  DEVICE T* take(int count) {
    T* taken = (T*)at;
    at += count * sizeof(T);
    return taken;
  }
};

DEVICE float low(u32 v) {
  float r;
  asm("{.reg .b16 l,h; mov.b32 {l,h},%1; cvt.f32.f16 %0,l;}" : "=f"(r) : "r"(v));
  return r;
}
DEVICE float high(u32 v) {
  float r;
  asm("{.reg .b16 l,h; mov.b32 {l,h},%1; cvt.f32.f16 %0,h;}" : "=f"(r) : "r"(v));
  return r;
}
// c += a b of m16n8k16, see "Matrix Fragments for mma.m16n8k16" in the PTX manual.
#if __CUDA_ARCH__ >= 800
DEVICE u32 pack(float a, float b) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(b), "f"(a));
  return r;
}
DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#else
DEVICE u32 pack(float a, float b) {
  u32 r;
  asm("{.reg .b16 l,h; cvt.rn.f16.f32 l,%1; cvt.rn.f16.f32 h,%2; mov.b32 %0,{l,h};}" : "=r"(r) : "f"(a), "f"(b));
  return r;
}
DEVICE void mma_k8(float (&c)[4], u32 a0, u32 a1, u32 b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(b));
}
DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  mma_k8(c, a0, a1, b0);
  mma_k8(c, a2, a3, b1);
}
#endif
DEVICE u4 read_weights(const u4* from) {
  u4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
DEVICE float half_at(const void* from, long long index) { return low(((const unsigned short*)from)[index]); }

DEVICE void write_cache(void* to, long long index, float value) {
  if (HALF_CACHES) {
    ((unsigned short*)to)[index] = (unsigned short)pack(value, 0);
  } else {
    ((float*)to)[index] = value;
  }
}

// Programmatic dependent launches: no effect unless the launch has the attribute.
DEVICE void begin_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE float lanes_sum(float x, int lanes) {
  UNROLL
  for (int mask = 1; mask < 32; mask *= 2)
    if (mask < lanes) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}
DEVICE float warp_sum(float x) { return lanes_sum(x, 32); }
template <class Best>
DEVICE Best warp_best(Best best) {
  UNROLL
  for (int mask = 1; mask < 32; mask *= 2)
    best = larger(best, Best{__shfl_xor_sync(~0u, best.value, mask), __shfl_xor_sync(~0u, best.id, mask)});
  return best;
}
