/* Two kernels in one call: whole waves to one, what is left to another. `gpu_polymerize.regions` is its mirror. */
#include "gpu_select.h"
#include "integers.h"

#define PLACES 4
#define GAIN 0.95f

typedef struct {
  const vx_gpu_group *group;
  const vx_gpu_shape *shape;
} search;

/* How a kernel cuts C: tiles down and across, and blocks that the device holds at a time. */
typedef struct {
  int64_t tile_m, tile_n, tall, wide, slots;
} tiling;

static tiling tiling_of(const search *s, int32_t row) {
  const vx_gpu_tile *tile = &vx_gpu_tiles[vx_gpu_indices[s->group->indices + row]];
  return (tiling){tile->m, tile->n, quotient_up(s->shape->m, tile->m), quotient_up(s->shape->n, tile->n), tile->slots};
}

static vx_gpu_shape part(const vx_gpu_shape *whole, int32_t along_n, int64_t from, int64_t to) {
  vx_gpu_shape one = *whole;
  *(along_n ? &one.n : &one.m) = to - from;
  return one;
}

typedef struct {
  int32_t row, along_n;
  int64_t at;
  float left, estimate; /* seconds of the second region, were it without residues and partial waves, and so of both */
} cut;

/* The places where a kernel's region may end; the one of least estimate so far stays in `best`. */
static void try_kernel(const search *s, int32_t row, float total, float least, cut *best) {
  tiling t = tiling_of(s, row);
  int64_t waves = quotient_up(t.tall * t.wide, t.slots);
  int64_t whole = t.tall * t.wide / t.slots * t.slots;
  int64_t places[PLACES] = {whole / t.wide * t.tile_m, s->shape->m / t.tile_m * t.tile_m, whole / t.tall * t.tile_n,
                            s->shape->n / t.tile_n * t.tile_n};
  for (int32_t place = 0; place < PLACES; place++) {
    int32_t along_n = place >= PLACES / 2;
    int64_t at = places[place], length = along_n ? s->shape->n : s->shape->m;
    if (at <= 0 || at >= length || at % VX_GPU_STEP) continue;
    int64_t tiles = along_n ? t.tall * (at / t.tile_n) : at / t.tile_m * t.wide;
    float share = (float)quotient_up(tiles, t.slots) / (float)waves;
    float left = vx_gpu_launch + least * ((float)(length - at) / (float)length), estimate = total * share + left;
    if (estimate < best->estimate) *best = (cut){row, along_n, at, left, estimate};
  }
}

void vx_gpu_divide(const vx_gpu_shape *shape, int64_t workspace, int32_t may_cut, vx_gpu_regions *regions) {
  vx_gpu_prices prices;
  search s = {vx_gpu_group_of(shape), shape};
  *regions = (vx_gpu_regions){.count = 1};
  vx_gpu_best(shape, workspace, &prices, &regions->plans[0]);
  if (!may_cut || shape->batch != 1 || regions->plans[0].kernel < 0) return;
  float wanted = GAIN * regions->plans[0].seconds, least = VX_GPU_NEVER, next = VX_GPU_NEVER;
  int32_t row = -1, second = -1;
  for (int32_t i = 0; i < s.group->count; i++) {
    float ideal = prices.ideals[i];
    if (ideal < least) {
      next = least, second = row;
      least = ideal, row = i;
    } else if (ideal < next) {
      next = ideal, second = i;
    }
  }
  if (!(least + vx_gpu_launch < wanted)) return;
  cut best = {.estimate = wanted};
  try_kernel(&s, row, prices.totals[row], least, &best);
  if (second >= 0) try_kernel(&s, second, prices.totals[second], least, &best);
  if (!best.at) return;
  int64_t length = best.along_n ? shape->n : shape->m;
  vx_gpu_shape one = part(shape, best.along_n, 0, best.at), other = part(shape, best.along_n, best.at, length);
  vx_gpu_plan rest;
  int32_t lane = best.row % VX_GPU_LANES;
  vx_gpu_price(&one, workspace, s.group, best.row / VX_GPU_LANES, 1, &prices);
  float seconds = prices.totals[lane];
  if (!(seconds + best.left < wanted)) return;
  vx_gpu_choose(&other, workspace, &rest);
  if (!(seconds + rest.seconds < wanted)) return;
  regions->count = 2;
  regions->along_n = best.along_n;
  regions->at = (int32_t)best.at;
  regions->plans[0] = vx_gpu_planned(&one, s.group, best.row, prices.cuts[lane], seconds);
  regions->plans[1] = rest;
}
