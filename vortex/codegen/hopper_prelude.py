"""The device functions that only sm_90a has: transaction barriers, tensor copies, asynchronous products of a warpgroup.

A kernel's text carries those it calls, each behind a guard, so that any set of kernels makes one translation unit
behind `cuda_prelude.PRELUDE`.
"""

from __future__ import annotations

MACHINE = r"""
struct __align__(64) CUtensorMap { unsigned long long words[16]; };

#define blocks_in_grid() ((int)gridDim.x)
/* One of so many stages, another one for most blocks: the upper part of a product by the golden ratio. */
VORTEX_DEVICE int spread(int block, int stages) {
  return (int)(((unsigned long long)((unsigned)block * 0x9E3779B1u) * (unsigned)stages) >> 32);
}
/* As `row_of_block` and `column_of_block`. Where there is one row or column of tiles nothing is divided: that delays
   the first load. */
VORTEX_DEVICE int row_of_tile(int tile, int tall, int wide, int raster) {
  if (wide == 1 || tall == 1) return wide == 1 ? tile : 0;
  if (tall <= raster) return (int)((unsigned)tile % (unsigned)tall);
  unsigned in_band = raster * wide, band = tile / in_band, height = min(raster, tall - (int)band * raster);
  return band * raster + (tile - band * in_band) % height;
}
VORTEX_DEVICE int column_of_tile(int tile, int tall, int wide, int raster) {
  if (wide == 1 || tall == 1) return wide == 1 ? 0 : tile;
  if (tall <= raster) return (int)((unsigned)tile / (unsigned)tall);
  unsigned in_band = raster * wide, band = tile / in_band, height = min(raster, tall - (int)band * raster);
  return (tile - band * in_band) / height;
}
VORTEX_DEVICE unsigned shared_at(int offset) { return shared_address(shared_memory) + offset; }
/* Told to be the same in all lanes, so that branches on it are not thought to diverge. */
VORTEX_DEVICE int warp_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
/* One lane of a warp whose lanes are all here: what it asks for, it asks once. */
VORTEX_DEVICE bool elected() {
  unsigned is_one;
  asm volatile("{\n .reg .pred one;\n elect.sync _|one, 0xffffffff;\n selp.u32 %0, 1, 0, one;\n}" : "=r"(is_one));
  return is_one;
}
VORTEX_DEVICE void mbarrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}
/* Barriers that one thread set up are there for all threads of the block, and for copies that arrive at them. */
VORTEX_DEVICE void mbarriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
}
VORTEX_DEVICE void mbarrier_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
VORTEX_DEVICE void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
VORTEX_DEVICE void mbarrier_wait(unsigned barrier, int parity) {
  asm volatile(
      "{\n .reg .pred done;\nAGAIN:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @done bra DONE;\n bra AGAIN;\nDONE:\n}"
      :: "r"(barrier), "r"(parity) : "memory");
}
VORTEX_DEVICE void prefetch_map(unsigned long long map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}
/* Barriers that one thread of each block set up are there for all blocks of the cluster, and for their copies. */
VORTEX_DEVICE void mbarriers_ready_in_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed;\n barrier.cluster.wait.acquire;" ::: "memory");
}
/* At the barrier that another block of the cluster has at the same place. It tells that products have read a stage, and
   those have ended: with .release.cluster ptxas puts a fence of the whole device, a microsecond, before it. */
VORTEX_DEVICE void mbarrier_arrive_at(unsigned barrier, int block) {
  asm volatile(
      "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n"
      " mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
      :: "r"(barrier), "r"(block) : "memory");
}
template <int N> VORTEX_DEVICE void mbarrier_arrive_in_all(unsigned barrier) {
  #pragma unroll
  for (int block = 0; block < N; ++block) mbarrier_arrive_at(barrier, block);
}
/* A box of a matrix into shared memory, its contiguous extent first; zeros where the matrix has ended. */
VORTEX_DEVICE void tensor_copy(unsigned to, unsigned long long map, int along, int across, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      :: "r"(to), "l"(map), "r"(along), "r"(across), "r"(barrier) : "memory");
}
/* The same to one place in each block of the cluster that `blocks` has a bit for, and to a barrier of its own. */
VORTEX_DEVICE void tensor_copy_to_all(unsigned to, unsigned long long map, int along, int across, unsigned barrier,
                                      int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;"
      :: "r"(to), "l"(map), "r"(along), "r"(across), "r"(barrier), "h"((unsigned short)blocks) : "memory");
}
template <int N> VORTEX_DEVICE void registers_fewer() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> VORTEX_DEVICE void registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }

/* A matrix in shared memory for wgmma: rows of 128 bytes under the 128-byte swizzle, eight rows 1024 bytes. */
VORTEX_DEVICE unsigned long long matrix(int offset, int leading, int stride) {
  return (unsigned long long)((shared_at(offset) & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16
         | (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
VORTEX_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
VORTEX_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> VORTEX_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
/* The wait does not name the registers that products have written: here they are, so that no read moves before it. */
template <int N> VORTEX_DEVICE void settled(float* sums) {
  #pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums[i]) :: "memory");
}

/* Two neighbours of a row of C, or with `partial` of the float32 workspace [splits, rows, columns]. */
VORTEX_DEVICE void store_pair_f32(float* c, bool, int split, int rows, int row, int ld, int column, float x, float y) {
  *(float2*)(c + (((long long)split * rows + row) * ld + column)) = make_float2(x, y);
}
#define VORTEX_STORE_PAIR(kind) \
  VORTEX_DEVICE void store_pair_##kind(float* c, bool partial, int split, int rows, int row, int ld, int column, \
                                       float x, float y) { \
    if (partial) store_pair_f32(c, true, split, rows, row, ld, column, x, y); \
    else *(unsigned*)((unsigned short*)c + ((long long)row * ld + column)) = pack_##kind(x, y); \
  }
VORTEX_STORE_PAIR(f16)
VORTEX_STORE_PAIR(bf16)

/* Rows of 64 halves of C on their way through shared memory, 16-byte chunks exchanged as the swizzle does. */
VORTEX_DEVICE unsigned char* staged(int offset, int row, int column) {
  return shared_memory + offset + row * 128 + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2;
}
VORTEX_DEVICE void stage_f16(int offset, int row, int column, float x, float y) {
  *(unsigned*)staged(offset, row, column) = pack_f16(x, y);
}
VORTEX_DEVICE void stage_bf16(int offset, int row, int column, float x, float y) {
  *(unsigned*)staged(offset, row, column) = pack_bf16(x, y);
}
VORTEX_DEVICE void store_staged(float* c, int row, int ld, int column, int offset, int from_row, int from_column) {
  *(uint4*)((unsigned short*)c + ((long long)row * ld + column)) = *(const uint4*)staged(offset, from_row, from_column);
}
"""


def guarded(name: str, text: str) -> str:
    return f"#ifndef VORTEX_{name}\n#define VORTEX_{name}\n{text.strip()}\n#endif\n"


def wgmma_name(columns: int, kind: str, major: tuple[bool, bool]) -> str:
    return f"wgmma_{columns}_{kind}_{'t' if major[0] else 'n'}{'t' if major[1] else 'n'}"


def wgmma(columns: int, kind: str, major: tuple[bool, bool]) -> str:
    """D (+)= A B for 64 rows of A; `major` says which of A and B runs along rows or columns instead of along k."""
    count, depth = columns // 2, 8 if kind == "tf32" else 16
    registers = ", ".join(f"%{i}" for i in range(count))
    bound = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    majors = "" if kind == "tf32" else f", {int(major[0])}, {int(major[1])}"
    return f"""
VORTEX_DEVICE void {wgmma_name(columns, kind, major)}(float* d, unsigned long long a, unsigned long long b, int add) {{
  asm volatile(
      "{{\\n .reg .pred add;\\n setp.ne.b32 add, %{count + 2}, 0;\\n"
      " wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{kind}.{kind} {{{registers}}}, %{count}, %{count + 1}, "
      "add, 1, 1{majors};\\n}}"
      : {bound} : "l"(a), "l"(b), "r"(add) : "memory");
}}
"""


def functions(columns: int, kind: str, major: tuple[bool, bool]) -> str:
    """What a kernel of these products calls, beyond PRELUDE."""
    name = wgmma_name(columns, kind, major)
    return guarded("HOPPER", MACHINE) + guarded(name.upper(), wgmma(columns, kind, major))
