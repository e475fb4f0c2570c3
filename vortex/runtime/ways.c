/* Some strategies on grids and regions of their own, priced as many at a time as a vector has lanes. */
#include "select.h"

#include <string.h>

#define BLOCK (VX_FIELDS * VX_LANES)

static void store_four(float *at, float value) {
  const float four[4] = {value, value, value, value};
  memcpy(at, four, sizeof four);
}

/* So many lanes of a block from one on. */
static void put(float *own, int64_t lane, int64_t count, const vx_way *way) {
  const float values[VX_FIELDS] = {way->grid_m, way->grid_n, way->splits, way->workers, way->m, way->n, way->others};
  for (int64_t f = 0; f < VX_FIELDS; f++) {
    float *row = own + f * VX_LANES + lane;
    if (count < 4)
      for (int64_t i = 0; i < count; i++) row[i] = values[f];
    for (int64_t i = 0; i + 4 < count; i += 4) store_four(row + i, values[f]);
    if (count >= 4) store_four(row + count - 4, values[f]);
  }
}

static void costs(const vx_question *q, vx_ways *of, int64_t count, const int32_t *order, const float *own, float *totals) {
  of(q->from->columns, vx_slopes, totals, (int32_t)((count + VX_LANES - 1) / VX_LANES), order, own, (float)vx_depth(q->call->k),
     (float)q->call->transpose_a, q->spacing_a, q->spacing_b, q->drift_a, q->drift_b, (float)q->batch, q->items_a, q->items_b);
}

vx_way vx_whole(const vx_question *q, int64_t grid_m, int64_t grid_n, int64_t splits, int64_t threads) {
  int64_t tasks = q->batch * grid_m * grid_n * splits, workers = tasks < threads ? tasks : threads;
  return (vx_way){(float)grid_m, (float)grid_n, (float)splits, (float)workers, (float)q->call->m, (float)q->call->n, 0.0f};
}

void vx_price_all(const vx_question *q, float *totals) {
  _Alignas(64) int32_t order[VX_PRICED];
  _Alignas(64) float own[VX_BLOCKS * BLOCK], dots[VX_LANES];
  vx_way whole = vx_whole(q, 1, 1, 1, 1);
  for (int32_t s = 0; s < VX_PRICED; s++) order[s] = s;
  for (int64_t block = 0; block < VX_BLOCKS; block++) put(own + block * BLOCK, 0, VX_LANES, &whole);
  costs(q, q->from->outer, VX_PRICED, order, own, totals);
  dots[0] = VX_NEVER;
  if (vx_dot_serves(q->call)) costs(q, q->from->dot, 1, order, own, dots);
  if (q->from->dots >= 0) totals[q->from->dots] = dots[0];
}

/* Of the lanes of a group the first that takes least. */
static void settle(const vx_pricing *p, const vx_waiting *group, const float *totals) {
  const int32_t *order = p->order + group->first;
  int64_t best = -1;
  float least = group->to->seconds;
  for (int64_t i = 0; i < group->count; i++)
    if (totals[i] < least) least = totals[best = i];
  for (int64_t i = 0; group->by_strategy && i < group->count; i++) {
    float *seconds = &group->by_strategy[order[i]];
    *seconds = totals[i] < *seconds ? totals[i] : *seconds;
  }
  if (best < 0) return;
  const float *own = p->own + group->first;
  vx_plan plan = {order[best], (int64_t)own[0], (int64_t)own[VX_LANES], (int64_t)own[2 * VX_LANES], (int64_t)own[3 * VX_LANES]};
  *group->to = (vx_answer){plan, least};
}

void vx_begin(vx_pricing *p, const vx_question *q) {
  p->q = q;
  p->groups = p->lanes = 0;
}

void vx_settle(vx_pricing *p) {
  _Alignas(64) float totals[VX_ROOM];
  if (!p->lanes) return;
  const vx_way any = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 0.0f};
  for (int64_t lane = p->lanes; lane < VX_LANES; lane++) p->order[lane] = p->order[0]; /* nobody looks */
  put(p->own, p->lanes, VX_LANES - p->lanes, &any);
  costs(p->q, p->order[0] == p->q->from->dots ? p->q->from->dot : p->q->from->outer, p->lanes, p->order, p->own, totals);
  for (int64_t g = 0; g < p->groups; g++) settle(p, &p->waiting[g], totals + p->waiting[g].first);
  p->groups = p->lanes = 0;
}

void vx_price(vx_pricing *p, const vx_some *some, vx_way way, vx_answer *to, float *by_strategy) {
  if (p->lanes + some->count > VX_ROOM) vx_settle(p);
  p->waiting[p->groups++] = (vx_waiting){p->lanes, some->count, to, by_strategy};
  for (int64_t i = 0; i < some->count; i++) p->order[p->lanes + i] = some->strategies[i];
  put(p->own, p->lanes, some->count, &way);
  p->lanes += some->count;
}
