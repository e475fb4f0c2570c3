/* Two kernels in one call: whole waves to one, what is left to another. `gpu_polymerize.regions` is its mirror. */
#include "gpu_select.h"
#include "integers.h"

#define FIRST_KERNELS 2
#define PLACES 4
#define GAIN 0.95f
#define MOST_TILES INT64_C(2147483647)

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

/* What a kernel would take without residues and a partial wave; negative where all its blocks run at once. */
static float ideal_of(const search *s, int32_t row, float total) {
  tiling t = tiling_of(s, row);
  int64_t tiles = t.tall * t.wide;
  if (tiles <= t.slots || tiles > MOST_TILES) return -1.f;
  float computed = (float)quotient_up(tiles, t.slots) * (float)t.slots * (float)t.tile_m * (float)t.tile_n;
  return total * ((float)s->shape->m * (float)s->shape->n / computed);
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
  float totals[VX_GPU_MOST], splits[VX_GPU_MOST];
  search s = {vx_gpu_group_of(shape), shape};
  *regions = (vx_gpu_regions){.count = 1};
  vx_gpu_best(shape, workspace, totals, splits, &regions->plans[0]);
  if (!may_cut || shape->batch != 1 || regions->plans[0].kernel < 0) return;
  float wanted = GAIN * regions->plans[0].seconds, ideals[FIRST_KERNELS];
  int32_t rows[FIRST_KERNELS], found = 0;
  for (int32_t i = 0; i < s.group->count; i++) {
    float ideal = ideal_of(&s, i, totals[i]);
    if (ideal < 0.f) continue;
    int32_t place = found < FIRST_KERNELS ? found++ : FIRST_KERNELS;
    for (; place > 0 && ideal < ideals[place - 1]; place--)
      if (place < FIRST_KERNELS) ideals[place] = ideals[place - 1], rows[place] = rows[place - 1];
    if (place < FIRST_KERNELS) ideals[place] = ideal, rows[place] = i;
  }
  if (!found || !(ideals[0] + vx_gpu_launch < wanted)) return;
  cut best = {.estimate = wanted};
  for (int32_t i = 0; i < found; i++) try_kernel(&s, rows[i], totals[rows[i]], ideals[0], &best);
  if (!best.at) return;
  int64_t length = best.along_n ? shape->n : shape->m;
  vx_gpu_shape one = part(shape, best.along_n, 0, best.at), other = part(shape, best.along_n, best.at, length);
  vx_gpu_plan rest;
  float seconds[VX_GPU_LANES], parts[VX_GPU_LANES];
  int32_t lane = best.row % VX_GPU_LANES;
  vx_gpu_price(&one, workspace, s.group, best.row / VX_GPU_LANES, 1, seconds, parts);
  if (!(seconds[lane] + best.left < wanted)) return;
  vx_gpu_choose(&other, workspace, &rest);
  if (!(seconds[lane] + rest.seconds < wanted)) return;
  regions->count = 2;
  regions->along_n = best.along_n;
  regions->at = (int32_t)best.at;
  regions->plans[0] = vx_gpu_planned(&one, s.group, best.row, parts[lane], seconds[lane]);
  regions->plans[1] = rest;
}
