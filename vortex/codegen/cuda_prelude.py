"""The device functions that every kernel calls: all inline assembly is here, so that a kernel's own text is plain C++.

MACHINE holds what only a GPU can do; PORTABLE is ordinary C++ on top of it. No CUDA header is included: NVRTC needs
nothing but itself, and parses a translation unit in milliseconds.
"""

MACHINE = r"""
#define VORTEX_DEVICE __device__ __forceinline__

struct half {
  unsigned short bits;
  VORTEX_DEVICE operator float() const { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits)); return f; }
};
struct nv_bfloat16 {
  unsigned short bits;
  VORTEX_DEVICE operator float() const { return __uint_as_float((unsigned)bits << 16); }
};
VORTEX_DEVICE unsigned pack_f16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 /* the packed form is of sm_80 */
  unsigned short l, h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(l) : "f"(low));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(high));
  return l | (unsigned)h << 16;
#else
  unsigned d; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low)); return d;
#endif
}
VORTEX_DEVICE unsigned pack_bf16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  unsigned l = __float_as_uint(low), h = __float_as_uint(high);
  l = low != low ? 0x7fff : (l + 0x7fff + (l >> 16 & 1)) >> 16;
  h = high != high ? 0x7fff : (h + 0x7fff + (h >> 16 & 1)) >> 16;
  return l | h << 16;
#else
  unsigned d; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low)); return d;
#endif
}
VORTEX_DEVICE float round_tf32(float x) {
  unsigned d; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(x)); return __uint_as_float(d);
}
VORTEX_DEVICE unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

/* Past the operand (`inside` false) nothing is read and zeros are written. */
VORTEX_DEVICE void cp_async_16(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(shared_address(shared)), "l"(global), "r"(inside ? 16 : 0) : "memory");
}
VORTEX_DEVICE void cp_async_8(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :: "r"(shared_address(shared)), "l"(global), "r"(inside ? 8 : 0) : "memory");
}
VORTEX_DEVICE void cp_async_4(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(shared_address(shared)), "l"(global), "r"(inside ? 4 : 0) : "memory");
}
VORTEX_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> VORTEX_DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

VORTEX_DEVICE void ldmatrix(void* registers, const void* row) {
  unsigned* r = (unsigned*)registers;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
VORTEX_DEVICE void ldmatrix_trans(void* registers, const void* row) {
  unsigned* r = (unsigned*)registers;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
VORTEX_DEVICE void mma_m16n8_f16(float* c, const unsigned* a, const unsigned* b) {
  asm(
  "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* sm_75 has half of it: the first two registers of A and the first of B are the first half of k. */
VORTEX_DEVICE void mma_m16n8k8_f16(float* c, const unsigned* a, const unsigned* b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
VORTEX_DEVICE void mma_m16n8_bf16(float* c, const unsigned* a, const unsigned* b) {
  asm(
  "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
VORTEX_DEVICE void mma_m16n8_tf32(float* c, const unsigned* a, const unsigned* b) {
  asm(
  "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
VORTEX_DEVICE void mma_m16n8_s8(int* c0, int* c1, int* c2, int* c3, const unsigned* a, const unsigned* b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(*c0), "+r"(*c1), "+r"(*c2), "+r"(*c3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
VORTEX_DEVICE unsigned even_bytes(unsigned low, unsigned high) { return __byte_perm(low, high, 0x6420); }
VORTEX_DEVICE unsigned odd_bytes(unsigned low, unsigned high) { return __byte_perm(low, high, 0x7531); }
VORTEX_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
VORTEX_DEVICE int shuffle_xor(int value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
extern __shared__ __align__(1024) unsigned char shared_memory[];
"""

PORTABLE = r"""
template <int Bytes> struct words;
template <> struct words<1> { typedef unsigned char type; };
template <> struct words<2> { typedef unsigned short type; };
template <> struct words<4> { typedef unsigned type; };
template <> struct words<8> { typedef uint2 type; };
template <> struct words<16> { typedef uint4 type; };

/* Element (row, column) of an operand; the offset is 64 bits wide. */
template <class T> VORTEX_DEVICE const T* at(const T* base, int row, int stride, int column) {
  return base + ((long long)row * stride + column);
}

VORTEX_DEVICE int word_at(const int* base, int row, int stride, int column) { return *at(base, row, stride, column); }

template <class T> VORTEX_DEVICE float value_at(const T* base, int row, int stride, int column) {
  return (float)*at(base, row, stride, column);
}

/* The synchronous copy: for vectors that cp.async does not know, and for one stage. */
template <int Bytes> VORTEX_DEVICE void copy(void* shared, const void* global, bool inside) {
  typedef typename words<Bytes>::type word;
  word value = {};
  if (inside) value = *(const word*)global;
  *(word*)shared = value;
}
VORTEX_DEVICE void copy_16(void* shared, const void* global, bool inside) { copy<16>(shared, global, inside); }
VORTEX_DEVICE void copy_8(void* shared, const void* global, bool inside) { copy<8>(shared, global, inside); }
VORTEX_DEVICE void copy_4(void* shared, const void* global, bool inside) { copy<4>(shared, global, inside); }
VORTEX_DEVICE void copy_2(void* shared, const void* global, bool inside) { copy<2>(shared, global, inside); }
VORTEX_DEVICE void copy_1(void* shared, const void* global, bool inside) { copy<1>(shared, global, inside); }

/* One access between shared memory and registers. */
template <int Bytes> VORTEX_DEVICE void move(void* to, const void* from) {
  typedef typename words<Bytes>::type word;
  *(word*)to = *(const word*)from;
}
VORTEX_DEVICE void move_16(void* to, const void* from) { move<16>(to, from); }
VORTEX_DEVICE void move_8(void* to, const void* from) { move<8>(to, from); }
VORTEX_DEVICE void move_4(void* to, const void* from) { move<4>(to, from); }
VORTEX_DEVICE void move_2(void* to, const void* from) { move<2>(to, from); }
VORTEX_DEVICE void move_1(void* to, const void* from) { move<1>(to, from); }

VORTEX_DEVICE void ldmatrix_f16(void* registers, const void* row) { ldmatrix(registers, row); }
VORTEX_DEVICE void ldmatrix_bf16(void* registers, const void* row) { ldmatrix(registers, row); }
VORTEX_DEVICE void ldmatrix_f16_trans(void* registers, const void* row) { ldmatrix_trans(registers, row); }
VORTEX_DEVICE void ldmatrix_bf16_trans(void* registers, const void* row) { ldmatrix_trans(registers, row); }
VORTEX_DEVICE void ldmatrix_tf32(void* registers, const void* row) {
  ldmatrix(registers, row);
  float* r = (float*)registers;
#pragma unroll
  for (int i = 0; i < 4; ++i) r[i] = round_tf32(r[i]);
}

VORTEX_DEVICE void ldmatrix_s8(void* registers, const void* row) { ldmatrix(registers, row); }
/* Pairs of bytes of two rows each, taken apart: a register then has four rows of k of one column. */
VORTEX_DEVICE void ldmatrix_s8_trans_a(void* registers, const void* row) {
  unsigned p[4], *r = (unsigned*)registers;
  ldmatrix_trans(p, row);
  r[0] = even_bytes(p[0], p[1]), r[1] = odd_bytes(p[0], p[1]);
  r[2] = even_bytes(p[2], p[3]), r[3] = odd_bytes(p[2], p[3]);
}
VORTEX_DEVICE void ldmatrix_s8_trans_b(void* registers, const void* row) {
  unsigned p[4], *r = (unsigned*)registers;
  ldmatrix_trans(p, row);
  r[0] = even_bytes(p[0], p[1]), r[1] = even_bytes(p[2], p[3]);
  r[2] = odd_bytes(p[0], p[1]), r[3] = odd_bytes(p[2], p[3]);
}

/* 16 x 16 of C: two instructions side by side share the fragment of A. */
VORTEX_DEVICE void mma_m16n16_f16(float* c, const void* a, const void* b) {
  mma_m16n8_f16(c, (const unsigned*)a, (const unsigned*)b);
  mma_m16n8_f16(c + 4, (const unsigned*)a, (const unsigned*)b + 2);
}
VORTEX_DEVICE void mma_m16n16_f16_k8(float* c, const void* a, const void* b) {
  const unsigned *left = (const unsigned*)a, *right = (const unsigned*)b;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    mma_m16n8k8_f16(c, left + 2 * half, right + half);
    mma_m16n8k8_f16(c + 4, left + 2 * half, right + 2 + half);
  }
}
VORTEX_DEVICE void mma_m16n16_bf16(float* c, const void* a, const void* b) {
  mma_m16n8_bf16(c, (const unsigned*)a, (const unsigned*)b);
  mma_m16n8_bf16(c + 4, (const unsigned*)a, (const unsigned*)b + 2);
}
VORTEX_DEVICE void mma_m16n16_tf32(float* c, const void* a, const void* b) {
  mma_m16n8_tf32(c, (const unsigned*)a, (const unsigned*)b);
  mma_m16n8_tf32(c + 4, (const unsigned*)a, (const unsigned*)b + 2);
}

VORTEX_DEVICE void mma_m16n16_s8(int* c, const void* a, const void* b) {
  mma_m16n8_s8(c, c + 1, c + 2, c + 3, (const unsigned*)a, (const unsigned*)b);
  mma_m16n8_s8(c + 4, c + 5, c + 6, c + 7, (const unsigned*)a, (const unsigned*)b + 2);
}
/* Even and odd columns of B: those of C lie side by side in a lane. */
VORTEX_DEVICE void mma_m16n16_s8_pairs(int* c, const void* a, const void* b) {
  mma_m16n8_s8(c, c + 2, c + 4, c + 6, (const unsigned*)a, (const unsigned*)b);
  mma_m16n8_s8(c + 1, c + 3, c + 5, c + 7, (const unsigned*)a, (const unsigned*)b + 2);
}

/* x, which the compiler cannot tell from another value: `count` is never negative. */
VORTEX_DEVICE float untied(float x, int count) {
  return __uint_as_float(__float_as_uint(x) ^ (unsigned)(count >> 31));
}

/* The sum over a warp, in every lane and in one order. */
template <class T> VORTEX_DEVICE T sum_of_lanes(T value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) value += shuffle_xor(value, mask);
  return value;
}

/* Block tiles are walked in bands of `raster` rows, column by column, so that blocks that run together share L2. */
VORTEX_DEVICE int row_of_block(int block, int tall, int wide, int raster) {
  int band = block / (raster * wide) * raster, height = min(raster, tall - band);
  return band + block % (raster * wide) % height;
}
VORTEX_DEVICE int column_of_block(int block, int tall, int wide, int raster) {
  int band = block / (raster * wide) * raster, height = min(raster, tall - band);
  return block % (raster * wide) / height;
}

/* C, or with `partial` the float32 workspace [splits, M, N] of which it is the sum. */
VORTEX_DEVICE long long result_at(int split, int rows, int row, int stride, int column) {
  return ((long long)split * rows + row) * stride + column;
}
VORTEX_DEVICE void store_f32_1(float* c, bool, int z, int m, int i, int ld, int j, const float* v) {
  c[result_at(z, m, i, ld, j)] = v[0];
}
VORTEX_DEVICE void store_f32_2(float* c, bool, int z, int m, int i, int ld, int j, const float* v) {
  *(float2*)(c + result_at(z, m, i, ld, j)) = make_float2(v[0], v[1]);
}
VORTEX_DEVICE void store_f32_4(float* c, bool, int z, int m, int i, int ld, int j, const float* v) {
  *(float4*)(c + result_at(z, m, i, ld, j)) = *(const float4*)v;
}
#define VORTEX_WORDS(width) \
  VORTEX_DEVICE void store_s32_##width(int* c, bool part, int z, int m, int i, int ld, int j, const int* v) { \
    store_f32_##width((float*)c, part, z, m, i, ld, j, (const float*)v); \
  }
VORTEX_WORDS(1)
VORTEX_WORDS(2)
VORTEX_WORDS(4)
#define VORTEX_STORES(kind) \
  VORTEX_DEVICE void store_##kind##_1(float* c, bool partial, int z, int m, int i, int ld, int j, const float* v) { \
    long long x = result_at(z, m, i, ld, j); \
    if (partial) c[x] = v[0]; else ((unsigned short*)c)[x] = (unsigned short)pack_##kind(v[0], 0.f); \
  } \
  VORTEX_DEVICE void store_##kind##_2(float* c, bool partial, int z, int m, int i, int ld, int j, const float* v) { \
    long long x = result_at(z, m, i, ld, j); \
    if (partial) *(float2*)(c + x) = make_float2(v[0], v[1]); \
    else *(unsigned*)((unsigned short*)c + x) = pack_##kind(v[0], v[1]); \
  } \
  VORTEX_DEVICE void store_##kind##_4(float* c, bool partial, int z, int m, int i, int ld, int j, const float* v) { \
    long long x = result_at(z, m, i, ld, j); \
    float4 w = *(const float4*)v; \
    if (partial) *(float4*)(c + x) = w; \
    else *(uint2*)((unsigned short*)c + x) = make_uint2(pack_##kind(w.x, w.y), pack_##kind(w.z, w.w)); \
  }
VORTEX_STORES(f16)
VORTEX_STORES(bf16)
"""

PRELUDE = MACHINE + PORTABLE
