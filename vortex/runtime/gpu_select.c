/* The run-time choice on GPUs: the compiled cost model over every kernel, then the least. `gpu_selector.GpuSelector` is its mirror. */
#include "gpu_select.h"

#define MOST_ROOM (1 << 20)

static int32_t alignment_class(int32_t bytes) { return bytes % 16 == 0 ? 0 : bytes % 8 == 0 ? 1 : bytes % 4 == 0 ? 2 : 3; }

/* `kernel` is -1 where no kernel takes operands of this layout and alignment. Extents are at least 1. */
void vx_gpu_choose(const vx_gpu_shape *shape, int64_t workspace, vx_gpu_plan *plan) {
  float totals[VX_GPU_MOST], cuts[VX_GPU_MOST];
  const vx_gpu_group *group = &vx_gpu_groups[(!!shape->transpose_a * 2 + !!shape->transpose_b) * 4 + alignment_class(shape->alignment)];
  *plan = (vx_gpu_plan){-1, 1, (int32_t)shape->k, 1, 0};
  if (!group->count) return;
  int64_t room = workspace / 4 / shape->m / shape->n / shape->batch;
  room = room < 1 ? 1 : room > MOST_ROOM ? MOST_ROOM : room;
  vx_gpu_pricing *price = __builtin_cpu_supports("avx2") ? vortex_gpu_costs_avx2 : vortex_gpu_costs;
  price(vx_gpu_figures + group->figures, totals, cuts, (group->count + VX_GPU_LANES - 1) / VX_GPU_LANES, (float)shape->m, (float)shape->n,
        (float)shape->k, (float)room, (float)shape->batch);
  int32_t best = 0;
  for (int32_t i = 1; i < group->count; i++)
    if (totals[i] < totals[best]) best = i;
  int32_t kernel = vx_gpu_indices[group->indices + best];
  int64_t depth = vx_gpu_depths[kernel], stages = (shape->k + depth - 1) / depth, splits = (int64_t)cuts[best];
  int64_t chunk = (stages + splits - 1) / splits * depth, parts = (shape->k + chunk - 1) / chunk;
  plan->kernel = kernel;
  plan->splits = (int32_t)parts;
  plan->chunk = (int32_t)(parts > 1 ? chunk : shape->k);
  plan->raster = vx_gpu_rasters[kernel];
  plan->seconds = totals[best];
}
