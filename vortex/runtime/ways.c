/* Some strategies on grids and regions of their own, priced as many at a time as a vector has lanes. */
#include "select.h"

#define BLOCK (VX_FIELDS * VX_LANES)

static void put(float *own, int64_t lane, const vx_way *way) {
  float *at = own + lane / VX_LANES * BLOCK + lane % VX_LANES;
  at[0] = way->grid_m;
  at[VX_LANES] = way->grid_n;
  at[2 * VX_LANES] = way->splits;
  at[3 * VX_LANES] = way->workers;
  at[4 * VX_LANES] = way->m;
  at[5 * VX_LANES] = way->n;
  at[6 * VX_LANES] = way->others;
}

static void costs(const vx_question *q, vx_ways *of, int64_t count, const int32_t *order, const float *own, float *totals) {
  of(q->from->columns, vx_slopes, totals, (int32_t)((count + VX_LANES - 1) / VX_LANES), order, own, (float)vx_depth(q->call->k),
     (float)q->call->transpose_a, q->plain, q->transposed, (float)q->call->packed, q->spacing_a, q->spacing_b, q->drift_a, q->drift_b,
     (float)q->batch, q->items_a, q->items_b);
}

vx_way vx_whole(const vx_question *q, int64_t grid_m, int64_t grid_n, int64_t splits, int64_t threads) {
  int64_t tasks = q->batch * grid_m * grid_n * splits, workers = tasks < threads ? tasks : threads;
  return (vx_way){(float)grid_m, (float)grid_n, (float)splits, (float)workers, (float)q->call->m, (float)q->call->n, 0.0f};
}

void vx_price_all(const vx_question *q, float *totals) {
  _Alignas(64) int32_t order[VX_PRICED];
  _Alignas(64) float own[VX_BLOCKS * BLOCK], dots[VX_LANES];
  vx_way whole = vx_whole(q, 1, 1, 1, 1);
  for (int32_t s = 0; s < VX_PRICED; s++) {
    order[s] = s;
    put(own, s, &whole);
  }
  costs(q, vortex_outer_ways, VX_PRICED, order, own, totals);
  dots[0] = VX_NEVER;
  if (vx_dot_serves(q->call)) costs(q, vortex_dot_ways, 1, order, own, dots);
  for (int64_t s = 0; s < q->from->count; s++)
    if (vx_listed(q, s)->dot) totals[s] = dots[0];
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
  const float *own = p->own + group->first / VX_LANES * BLOCK + group->first % VX_LANES;
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
  for (int64_t lane = p->lanes; lane % VX_LANES; lane++) { /* nobody looks */
    p->order[lane] = p->order[0];
    put(p->own, lane, &any);
  }
  costs(p->q, vx_listed(p->q, p->order[0])->dot ? vortex_dot_ways : vortex_outer_ways, p->lanes, p->order, p->own, totals);
  for (int64_t g = 0; g < p->groups; g++) settle(p, &p->waiting[g], totals + p->waiting[g].first);
  p->groups = p->lanes = 0;
}

void vx_price(vx_pricing *p, const vx_some *some, vx_way way, vx_answer *to, float *by_strategy) {
  if (p->lanes + some->count > VX_ROOM) vx_settle(p);
  p->waiting[p->groups++] = (vx_waiting){p->lanes, some->count, to, by_strategy};
  for (int64_t i = 0; i < some->count; i++) {
    p->order[p->lanes] = some->strategies[i];
    put(p->own, p->lanes++, &way);
  }
}
