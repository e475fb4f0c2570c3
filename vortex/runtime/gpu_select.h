/* What the generated code of a GPU selector and gpu_select.c agree on. */
#ifndef VORTEX_GPU_SELECT_H
#define VORTEX_GPU_SELECT_H

#include "gpu_door.h"

#define VX_GPU_MOST 512 /* kernels of one group: a multiple of the lanes */
#define VX_GPU_LANES 8

/* The kernels that serve one layout and alignment: their figures, their indices, how many. */
typedef struct {
  int32_t figures, indices, count;
} vx_gpu_group;

/* Generated with the library. Groups by [transpose_a][transpose_b][alignment 16, 8, 4, 2]. */
extern const float vx_gpu_figures[];
extern const int32_t vx_gpu_indices[], vx_gpu_depths[], vx_gpu_rasters[];
extern const vx_gpu_group vx_gpu_groups[16];

/* Compiled from the cost model: predicted seconds of the best cut of the reduction, and that cut, kernel by kernel. */
typedef void vx_gpu_pricing(const float *columns, float *totals, float *cuts, int32_t blocks, float m, float n, float k, float room,
                            float batch);
vx_gpu_pricing vortex_gpu_costs, vortex_gpu_costs_avx2;

#endif
