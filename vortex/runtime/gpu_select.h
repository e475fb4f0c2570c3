/* What the generated code of a GPU selector and gpu_select.c agree on. */
#ifndef VORTEX_GPU_SELECT_H
#define VORTEX_GPU_SELECT_H

#include "gpu_door.h"

#define VX_GPU_MOST 512 /* kernels of one group: a multiple of the lanes */
#define VX_GPU_LANES 16
#define VX_GPU_ALIGNMENTS 5

/* The kernels that serve one layout and alignment: their figures, their indices, how many. */
typedef struct {
  int32_t figures, indices, count;
} vx_gpu_group;

/* What a block of a kernel computes, how many of them the device holds at a time, and in which order they run. */
typedef struct {
  int32_t m, n, k, slots, raster;
} vx_gpu_tile;

/* Generated with the library. Groups by [transpose_a][transpose_b][alignment 16, 8, 4, 2, 1]. */
extern const float vx_gpu_figures[], vx_gpu_launch; /* seconds of a kernel that does nothing */
extern const int32_t vx_gpu_indices[], vx_gpu_fields; /* figures of a kernel */
extern const vx_gpu_tile vx_gpu_tiles[];
extern const vx_gpu_group vx_gpu_groups[4 * VX_GPU_ALIGNMENTS];

/* Kernel by kernel: predicted seconds of the best cut of the reduction, that cut, and the seconds without residues and partial waves. */
typedef struct {
  float totals[VX_GPU_MOST], cuts[VX_GPU_MOST], ideals[VX_GPU_MOST];
} vx_gpu_prices;
#define VX_GPU_NEVER 1e30f /* of gpu_cost.py */

/* Compiled from the cost model. */
typedef void vx_gpu_pricing(const float *columns, float *totals, float *cuts, float *ideals, int32_t blocks, float m, float n, float k,
                            float room, float batch, float seen);
vx_gpu_pricing vortex_gpu_costs, vortex_gpu_costs_avx2, vortex_gpu_costs_avx512;

/* Of gpu_select.c: the kernels that serve a call; seconds of some blocks of VX_GPU_LANES of them; the plan of one; the best. */
const vx_gpu_group *vx_gpu_group_of(const vx_gpu_shape *shape);
void vx_gpu_price(const vx_gpu_shape *shape, int64_t workspace, const vx_gpu_group *group, int32_t first, int32_t blocks,
                  vx_gpu_prices *prices);
vx_gpu_plan vx_gpu_planned(const vx_gpu_shape *shape, const vx_gpu_group *group, int32_t row, float cut, float seconds);
void vx_gpu_best(const vx_gpu_shape *shape, int64_t workspace, vx_gpu_prices *prices, vx_gpu_plan *plan);

#endif
