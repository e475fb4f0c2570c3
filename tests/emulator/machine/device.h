// What an emitted kernel sees in place of the GPU: built-in variables, built-in functions, and one function for each
// PTX instruction that the translator meets.
#pragma once
#include <type_traits>
#include <utility>

#include "types.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) alignas(bytes)

namespace emulator {

struct Index {
  unsigned x, y, z;
};
struct Place {  // where a thread stands
  Index thread, block, block_extent, grid_extent;
};
const Place& place();
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

struct alignas(64) TensorMap {  // two dimensions, innermost first; as large as CUtensorMap
  const char* base;
  int64_t extent[2];
  int64_t row_bytes;
  int32_t box[2];
  int32_t element_bytes, swizzle_bytes;
  char reserved[128 - 56];
};
static_assert(sizeof(TensorMap) == 128);

enum class Format { f16, bf16, tf32 };

// Shared memory. Addresses are those of the shared window, as PTX has them.
unsigned shared_address(const void* pointer);
char* static_shared(unsigned offset, unsigned bytes);
char* dynamic_shared();
void shared_store(unsigned address, const void* from, unsigned bytes);
void shared_load(void* to, unsigned address, unsigned bytes);
void global_store(void* to, const void* from, unsigned bytes);
void global_load(void* to, const void* from, unsigned bytes);

// Barriers and what a warp does together.
void block_barrier();
void named_barrier(unsigned id, unsigned threads, bool wait);
void warp_barrier(unsigned mask);
unsigned active_mask();
bool elected(unsigned mask);
uint32_t shuffle(unsigned mask, uint32_t value, char kind, int operand, int width);
void load_matrices(unsigned address, bool transposed, int count, unsigned* to);
void mma(int depth, Format format, float* d, const unsigned* a, const unsigned* b, const float* c);
void mma_s8(int* d, const unsigned* a, const unsigned* b, const int* c);

// cp.async: groups belong to the thread.
void copy_async(unsigned to, const void* from, unsigned bytes, unsigned from_bytes);
void copy_commit();
void copy_wait(unsigned pending);

// sm_90: blocks that run together. Addresses of another one's shared memory have its number, and one more, in their top
// bits.
unsigned in_block(unsigned address, unsigned rank);
void cluster_arrive();
void cluster_wait();

// Transaction barriers, tensor maps, asynchronous matrix products.
void mbarrier_init(unsigned address, unsigned count);
void mbarrier_arrive(unsigned address, unsigned count);
void mbarrier_expect(unsigned address, unsigned bytes, bool arrive);
bool mbarrier_try_wait(unsigned address, unsigned parity);
// `blocks` has a bit for each block of the cluster that the copy goes to, 0 for the own one alone.
void tensor_load(unsigned to, const void* map, int c0, int c1, unsigned barrier, unsigned blocks);
void wgmma(int columns, Format format, float** d, uint64_t a, uint64_t b, bool accumulate, bool a_transposed,
           bool b_transposed);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(unsigned pending);
void warpgroup_registers(int count, bool more);

inline uint32_t raw(uint32_t v) { return v; }
inline uint32_t raw(int v) { return static_cast<uint32_t>(v); }
inline uint32_t raw(float v) { return bits<uint32_t>(v); }

template <class T> T shuffle_any(unsigned mask, T value, char kind, int operand, int width) {
  uint32_t word = 0;
  static_assert(sizeof(T) <= 4, "shuffles of 64-bit values are not emulated");
  std::memcpy(&word, &value, sizeof value);
  word = shuffle(mask, word, kind, operand, width);
  std::memcpy(&value, &word, sizeof value);
  return value;
}

template <Format format> float from_16(uint16_t raw) {
  if constexpr (format == Format::f16) return bits<__half>(raw);
  return bits<__nv_bfloat16>(raw);
}
template <Format format> uint16_t to_16(float value) {
  if constexpr (format == Format::f16) return __half(value).raw;
  return __nv_bfloat16(value).raw;
}
inline uint32_t to_tf32(float value) {  // cvt.rna: to nearest, ties away from zero
  const uint32_t wide = bits<uint32_t>(value);
  return value != value ? 0x7fffffff : (wide + 0x1000) & 0xffffe000;
}

struct Launch {
  Index grid, block;
  unsigned static_bytes, dynamic_bytes, dynamic_alignment, timing, seed, traced, cluster;
};
int run_grid(const Launch& launch, void (*body)(void*), void* context);

template <class... P, std::size_t... I>
int launch_indexed(void (*kernel)(P...), const Launch& launch, void** arguments, std::index_sequence<I...>) {
  struct Context {
    void (*kernel)(P...);
    void** arguments;
  } context{kernel, arguments};
  return run_grid(
      launch, [](void* c) { auto& call = *static_cast<Context*>(c);
                            call.kernel(*static_cast<std::remove_cv_t<P>*>(call.arguments[I])...); },
      &context);
}
template <class... P> int launch_kernel(void (*kernel)(P...), const Launch& launch, void** arguments) {
  return launch_indexed(kernel, launch, arguments, std::index_sequence_for<P...>{});
}
}  // namespace emulator

inline unsigned __cvta_generic_to_shared(const void* pointer) { return emulator::shared_address(pointer); }
inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::warp_barrier(mask); }
inline unsigned __activemask() { return emulator::active_mask(); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned to = 0;
  for (int i = 0; i < 4; i++) to |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return to;
}
template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return emulator::shuffle_any(mask, value, 'i', lane, width);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32) {
  return emulator::shuffle_any(mask, value, 'x', flip, width);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, int by, int width = 32) {
  return emulator::shuffle_any(mask, value, 'd', by, width);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, int by, int width = 32) {
  return emulator::shuffle_any(mask, value, 'u', by, width);
}
template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> void __stcs(T* to, T value) { *to = value; }
template <class T> void __stcg(T* to, T value) { *to = value; }
inline void __threadfence() {}
inline void __threadfence_block() {}
