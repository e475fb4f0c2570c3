/* The run-time choice on GPUs: the compiled cost model over every kernel, then the least. `gpu_selector.GpuSelector` is its mirror. */
#include "gpu_select.h"
#include "integers.h"

#define MOST_ROOM (1 << 20)

static int32_t alignment_class(int32_t bytes) { return bytes % 16 == 0 ? 0 : 4 - __builtin_ctz((unsigned)bytes); }

const vx_gpu_group *vx_gpu_group_of(const vx_gpu_shape *shape) {
  return &vx_gpu_groups[(!!shape->transpose_a * 2 + !!shape->transpose_b) * VX_GPU_ALIGNMENTS + alignment_class(shape->alignment)];
}

void vx_gpu_price(const vx_gpu_shape *shape, int64_t workspace, const vx_gpu_group *group, int32_t first, int32_t blocks,
                  vx_gpu_prices *prices) {
  int64_t room = workspace / 4 / shape->m / shape->n / shape->batch;
  room = room < 1 ? 1 : room > MOST_ROOM ? MOST_ROOM : room;
  int is_wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  vx_gpu_pricing *price = is_wide ? vortex_gpu_costs_avx512 : __builtin_cpu_supports("avx2") ? vortex_gpu_costs_avx2 : vortex_gpu_costs;
  price(vx_gpu_figures + group->figures + first * vx_gpu_fields * VX_GPU_LANES, prices->totals, prices->cuts, prices->ideals, blocks,
        (float)shape->m, (float)shape->n, (float)shape->k, (float)room, (float)shape->batch, shape->seen);
}

vx_gpu_plan vx_gpu_planned(const vx_gpu_shape *shape, const vx_gpu_group *group, int32_t row, float cut, float seconds) {
  int32_t kernel = vx_gpu_indices[group->indices + row];
  int64_t depth = vx_gpu_tiles[kernel].k, stages = quotient_up(shape->k, depth), splits = (int64_t)cut;
  int64_t chunk = quotient_up(stages, splits) * depth, parts = quotient_up(shape->k, chunk);
  return (vx_gpu_plan){kernel, (int32_t)parts, (int32_t)(parts > 1 ? chunk : shape->k), vx_gpu_tiles[kernel].raster, seconds};
}

void vx_gpu_best(const vx_gpu_shape *shape, int64_t workspace, vx_gpu_prices *prices, vx_gpu_plan *plan) {
  const vx_gpu_group *group = vx_gpu_group_of(shape);
  *plan = (vx_gpu_plan){-1, 1, (int32_t)shape->k, 1, 0};
  if (!group->count) return;
  vx_gpu_price(shape, workspace, group, 0, (group->count + VX_GPU_LANES - 1) / VX_GPU_LANES, prices);
  float least = prices->totals[0];
  int32_t best = 0;
  for (int32_t i = 1; i < group->count; i++) /* seldom so: a jump, where a chain of moves would wait for each comparison */
    if (__builtin_expect(prices->totals[i] < least, 0)) least = prices->totals[i], best = i;
  *plan = vx_gpu_planned(shape, group, best, prices->cuts[best], least);
}

/* `kernel` is -1 where no kernel takes operands of this layout and alignment. Extents are at least 1. */
void vx_gpu_choose(const vx_gpu_shape *shape, int64_t workspace, vx_gpu_plan *plan) {
  vx_gpu_prices prices;
  vx_gpu_best(shape, workspace, &prices, plan);
}
