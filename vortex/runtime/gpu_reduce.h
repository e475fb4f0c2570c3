/* What the selector of a GPU's library of reductions, its door and Python (gpu_reduction_door.py, by ctypes) agree on. */
#ifndef VORTEX_GPU_REDUCE_H
#define VORTEX_GPU_REDUCE_H

#include "gpu_place.h"

#include <stdint.h>

#define VX_REDUCE_ABI 4
#define VX_REDUCE_MOST 64 /* tiles of a library: the room that selecting takes on the stack */
#define VX_REDUCE_MOST_RANK 64 /* axes of an operand: a bit each */
#define VX_REDUCE_RUNS (VX_REDUCE_MOST_RANK / 2)

/* An operand whose axes between are reduced; its cost is that of a contiguous one. Extents are at least 1. */
typedef struct {
  int64_t outer, depth, inner;
} vx_gpu_view;

/* One kernel over x[outer, depth, inner]: a result for each of `chunks` pieces of the depth. */
typedef struct {
  int64_t outer, depth, inner, chunk, chunks, blocks;
  int64_t tile;
} vx_gpu_sweep;

/* The sweeps over one view; none where no grid is large enough. */
typedef struct {
  int64_t count;
  double seconds;
  vx_gpu_sweep sweeps[2];
} vx_gpu_reduce_plan;

/* A sweep as a caller gives it: what else it is follows from what it reads. A chunk of the whole depth or more cuts nothing. */
typedef struct {
  int64_t tile, chunk;
} vx_gpu_given_sweep;

/* The sweeps of a call in their order. */
typedef struct {
  const vx_gpu_given_sweep *sweeps;
  int64_t count;
} vx_gpu_given;

/* Which axes a call reduces: a bit for each that is counted from the front, or from the back; how many there are, -1 for all. */
typedef struct {
  uint64_t front, back;
  int32_t count;
} vx_gpu_axes;

/* A run of neighbours among the reduced axes, over what the runs behind it have left. */
typedef struct {
  vx_gpu_view view;
  vx_gpu_reduce_plan plan;
} vx_gpu_run;

/* All runs of a call, the last axes first. All sweeps but the last write to the workspace: `need` bytes of it. */
typedef struct {
  int64_t count, need;
  vx_gpu_run runs[VX_REDUCE_RUNS];
} vx_gpu_reduction;

/* A kernel on the device. */
typedef struct {
  void *function;
  uint32_t block[3], shared_bytes;
} vx_gpu_reduce_kernel;

typedef struct {
  vx_gpu_place place;
  const vx_gpu_reduce_kernel *kernels; /* of each tile the one of narrow accesses, then of wide ones */
  int32_t is_mean, needs_one;          /* whether results are divided by how many they are of; whether of nothing there is none */
  int64_t workspace_bytes;             /* that results of chunks may take */
} vx_gpu_reduce_setup;

/* Generated with the library: gpu_reduction.ReduceBlock, extents as powers of two, and what of the cost no view changes. */
typedef struct {
  int32_t is_columns, rows, along, across; /* log2 of threads */
  int32_t warps;
  int64_t slots;      /* blocks that the device holds */
  double edge, share; /* seconds of a block's begin and end, alone and among those of its SM */
} vx_gpu_reduce_tile;

/* gpu_reduction.ReduceRates. */
typedef struct {
  double sms, launch, dram_byte, l2_byte, port_byte, l2_bytes, dram_latency, l2_latency, cycle, start, slot, leak;
} vx_gpu_reduce_rates;

extern const vx_gpu_reduce_tile vx_gpu_reduce_tiles[];
extern const int32_t vx_gpu_reduce_count;
extern const vx_gpu_reduce_rates vx_gpu_reduce_figures;

/* The cheapest plan; results of chunks may take `room` bytes. */
void vx_gpu_reduce_choose(const vx_gpu_view *view, int64_t room, int32_t is_warm, vx_gpu_reduce_plan *plan);

/* The plan that begins a list of given sweeps, which are then behind it in the list; 0 where they are none for this view. */
int vx_gpu_reduce_take(const vx_gpu_view *view, vx_gpu_given *given, vx_gpu_reduce_plan *plan);

#endif
