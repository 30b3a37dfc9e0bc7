// What chain.cu needs of a GPU, in PTX, without a header: half precision, mma, weights, warps.
typedef unsigned u32;

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ __launch_bounds__(256, 1)
#define UNROLLED(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#define constexpr_size constexpr
#define MAX_ROW_TILES ROW_TILES
// Chunks of a product's inputs that a warp holds in registers. With more of them, 32 rows spill.
#define MOST_CHUNKS (ROWS > 16 ? 4 : 8)
#define HELD_CHUNKS(inputs) (((inputs) + 255) / 256 < MOST_CHUNKS ? ((inputs) + 255) / 256 : MOST_CHUNKS)
#define SHARED_ARRAY(type, name, count) __shared__ alignas(16) type name[count]

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
#if __CUDA_ARCH__ >= 800
#define PACK "cvt.rn.f16x2.f32 %0,%2,%1;"
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
#else  // two products of 8 inputs
#define PACK "{.reg .b16 l,h; cvt.rn.f16.f32 l,%1; cvt.rn.f16.f32 h,%2; mov.b32 %0,{l,h};}"
#define MMA_K8 "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},"
#define MMA MMA_K8 "{%4,%5},{%8},{%0,%1,%2,%3}; " MMA_K8 "{%6,%7},{%9},{%0,%1,%2,%3};"
#endif
DEVICE u32 pack(float a, float b) {
  u32 r;
  asm(PACK : "=r"(r) : "f"(a), "f"(b));
  return r;
}
// c += a b of m16n8k16, see "Matrix Fragments for mma.m16n8k16" in the PTX manual.
DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(MMA
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE uint4 read_weights(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
// With programmatic launches, the next kernel may begin, and the kernel before must have ended. Without: no effect.
DEVICE void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }
template <class T>
DEVICE T shuffle(T value, int mask) {
  return __shfl_xor_sync(~0u, value, mask);
}
