/* The run-time choice: the compiled cost model over every strategy and grid, then the least. `selector.Selector` is its mirror. */
#include "select.h"
#include "integers.h"
#include "streams.h"

#include <time.h>

/* Of selector.py, where they are explained. */
#define DEEP 16
#define MOST_PARTS (1 << 22)
#define NEAR 2.0f
#define WORTH 4.0f
#define SPLIT_GAIN 0.95f
#define SPLIT_LOSS 1.1f

static const vx_answer NOTHING = {{0, 1, 1, 1, 1}, 3e38f};

/* Seconds of every strategy on one grid. */
static void price(const vx_question *q, int64_t grid_m, int64_t grid_n, int64_t workers, float *totals) {
  const vx_call *call = q->call;
  vortex_costs(vx_columns, vx_slopes, totals, VX_BLOCKS, (float)call->m, (float)call->n, (float)vx_depth(call->k), (float)call->transpose_a,
               q->plain, q->transposed, (float)call->packed, q->spacing_a, q->spacing_b, q->drift_a, q->drift_b,
               (float)grid_m, (float)grid_n, 1.0f, (float)workers, (float)q->batch, q->items_a,
               q->items_b, q->others);
}

vx_answer vx_price(const vx_question *q, int64_t dot, int64_t grid_m, int64_t grid_n, int64_t workers) {
  float totals[VX_PRICED];
  vx_answer best = NOTHING;
  price(q, grid_m, grid_n, workers, totals);
  for (int64_t s = 0; s < vx_strategy_count; s++)
    if (totals[s] < best.seconds && vx_strategies[s].dot == dot) best = (vx_answer){{s, grid_m, grid_n, 1, workers}, totals[s]};
  return best;
}

/* Strategies that are worth a look on several threads, and the best of them on one. */
typedef struct {
  vx_answer alone;
  int64_t count;
  int32_t near[VX_PRICED + 1];
} candidates;

static void look(const vx_question *q, candidates *found) {
  float totals[VX_PRICED];
  vx_answer best = NOTHING;
  price(q, 1, 1, 1, totals);
  for (int64_t s = 0; s < vx_strategy_count; s++)
    if (totals[s] < best.seconds) best.seconds = totals[best.plan.strategy = s];
  float most = NEAR * best.seconds;
  int64_t dot = vx_strategies[best.plan.strategy].dot;
  found->alone = best;
  found->count = 0;
  for (int64_t s = 0; s < vx_strategy_count; s++) { /* no branch could be foretold */
    found->near[found->count] = (int32_t)s;
    found->count += (totals[s] <= most) & (vx_strategies[s].dot == dot);
  }
}

/* Strategies and grids that wait until they fill a vector of the cost, and the best plan of those before. */
typedef struct {
  const vx_question *q;
  vx_answer best;
  int64_t count;
  _Alignas(64) int32_t order[VX_PRICED];
  _Alignas(64) float grids[4 * VX_PRICED];
} pricing;

static void begin(pricing *p, const vx_question *q, const vx_answer *best) {
  p->q = q;
  p->best = *best;
  p->count = 0;
}

/* Seconds of those that wait. */
static void price_waiting(pricing *p, float *totals) {
  const vx_question *q = p->q;
  const vx_call *call = q->call;
  for (int64_t lane = p->count; lane < vx_lanes; lane++) { /* whatever: nobody looks */
    p->order[lane] = 0;
    for (int64_t field = 0; field < 4; field++) p->grids[field * vx_lanes + lane] = 1.0f;
  }
  vx_ways *costs = vx_strategies[p->order[0]].dot ? vortex_dot_ways : vortex_outer_ways; /* all are of one family */
  costs(vx_columns, vx_slopes, totals, 1, p->order, p->grids, (float)call->m, (float)call->n, (float)vx_depth(call->k),
        (float)call->transpose_a, q->plain, q->transposed, (float)call->packed, q->spacing_a, q->spacing_b, q->drift_a, q->drift_b,
        (float)q->batch, q->items_a, q->items_b, q->others);
}

/* Keep the first of some lanes that takes less than the best plan so far. */
static void keep(pricing *p, const float *totals, int64_t from, int64_t end) {
  int64_t best = -1;
  float least = p->best.seconds;
  for (int64_t lane = from; lane < end; lane++)
    if (totals[lane] < least) least = totals[best = lane];
  if (best < 0) return;
  const float *grid = p->grids + best;
  vx_plan plan = {p->order[best], (int64_t)grid[0], (int64_t)grid[vx_lanes], (int64_t)grid[2 * vx_lanes], (int64_t)grid[3 * vx_lanes]};
  p->best = (vx_answer){plan, least};
}

static void keep_waiting(pricing *p) {
  _Alignas(64) float totals[VX_PRICED];
  if (!p->count) return;
  price_waiting(p, totals);
  keep(p, totals, 0, p->count);
  p->count = 0;
}

static void add(pricing *p, int32_t strategy, int64_t grid_m, int64_t grid_n, int64_t splits, int64_t workers) {
  int64_t lane = p->count++;
  p->order[lane] = strategy;
  p->grids[lane] = (float)grid_m;
  p->grids[vx_lanes + lane] = (float)grid_n;
  p->grids[2 * vx_lanes + lane] = (float)splits;
  p->grids[3 * vx_lanes + lane] = (float)workers;
}

static void try_grid(pricing *p, const candidates *found, int64_t grid_m, int64_t grid_n, int64_t splits, int64_t threads) {
  int64_t tasks = p->q->batch * grid_m * grid_n * splits, workers = tasks < threads ? tasks : threads;
  for (int64_t i = 0; i < found->count; i++) {
    add(p, found->near[i], grid_m, grid_n, splits, workers);
    if (p->count == vx_lanes) keep_waiting(p);
  }
}

/* The grids after the first. */
static void try_more_grids(pricing *p, const candidates *found, int64_t splits, int64_t threads) {
  int64_t count = threads, columns = 0;
  while (next_grid(&count, &columns)) try_grid(p, found, count / columns, columns, splits, threads);
}

/* The best plan so far, none waiting any more. */
static vx_answer best_of(pricing *p) {
  keep_waiting(p);
  return p->best;
}

/* Whether k may be cut into parts at all. */
static int deep(const vx_question *q) {
  const vx_call *call = q->call;
  int64_t longer = call->m > call->n ? call->m : call->n;
  return q->batch == 1 && vx_cores > 1 && call->k / DEEP >= longer && (double)call->m * call->n * vx_cores <= MOST_PARTS;
}

/* How many; decided for all cores of the machine, so that a result has the same bits on any number of threads. */
static int64_t parts(const vx_question *q, const candidates *found) {
  if (!deep(q)) return 1;
  if (found->alone.seconds < WORTH * vx_least_parallel) return 1;
  pricing p;
  begin(&p, q, &found->alone);
  try_more_grids(&p, found, 1, vx_cores);
  float whole = best_of(&p).seconds;
  begin(&p, q, &NOTHING);
  for (int64_t splits = 2; splits <= vx_cores; splits++)
    for (int64_t columns = 1; vx_cores % splits == 0 && columns <= vx_cores / splits; columns++)
      if (vx_cores / splits % columns == 0) try_grid(&p, found, vx_cores / splits / columns, columns, splits, vx_cores);
  vx_answer split = best_of(&p);
  if (!(split.seconds < SPLIT_GAIN * whole)) return 1;
  begin(&p, q, &NOTHING);
  try_grid(&p, found, 1, 1, split.plan.splits, 1);
  return best_of(&p).seconds <= SPLIT_LOSS * found->alone.seconds ? split.plan.splits : 1;
}

static int64_t in_words(int64_t stride) {
  int64_t words = stride * VX_ITEM / 4;
  return words > 0 ? words : 1;
}

/* Bytes missing to a multiple of the span, or past one: `selector.drift`. */
static int64_t drift(int64_t bytes, int64_t span) { return smaller(bytes % span, span - bytes % span); }

vx_question vx_ask(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b) {
  return (vx_question){call,
                       batch,
                       (float)items_a,
                       (float)items_b,
                       !call->packed && !call->transpose_b,
                       !call->packed && call->transpose_b,
                       (float)greatest_divisor(in_words(call->lda) * 4, vx_l1_span),
                       (float)greatest_divisor(in_words(call->ldb) * 4, vx_l1_span),
                       (float)drift(in_words(call->lda) * 4, vx_l1_span),
                       (float)drift(in_words(call->ldb) * 4, vx_l1_span),
                       0.0f};
}

/* A packed B leaves few strategies. Where one vector has room for all of them, alone and on the grids of two threads, they are priced at once:
 * the same answer, or 0 for none. */
static int at_once(const vx_question *q, int64_t threads, vx_answer *alone, vx_answer *best) {
  _Alignas(64) float totals[VX_PRICED];
  int64_t few = vx_packed_count;
  if (!q->call->packed || few * 3 > vx_lanes || threads != 2 || q->batch > 1 || deep(q)) return 0;
  pricing p;
  begin(&p, q, &NOTHING);
  for (int64_t i = 0; i < few; i++) add(&p, vx_packed_strategies[i], 1, 1, 1, 1);
  for (int64_t i = 0; i < few; i++) add(&p, vx_packed_strategies[i], 2, 1, 1, 2);
  for (int64_t i = 0; i < few; i++) add(&p, vx_packed_strategies[i], 1, 2, 1, 2);
  price_waiting(&p, totals);
  keep(&p, totals, 0, few);
  *alone = p.best;
  if (alone->seconds > vx_least_parallel) {
    for (int64_t lane = few; lane < p.count; lane++)
      if (totals[lane % few] > NEAR * alone->seconds) totals[lane] = NOTHING.seconds;
    keep(&p, totals, few, p.count);
  }
  *best = p.best;
  return 1;
}

vx_answer vx_answer_of(const vx_question *q, int64_t threads, vx_answer *alone) {
  vx_answer best;
  if (at_once(q, threads, alone, &best)) return best;
  candidates found;
  look(q, &found); /* one thread decides the family, for the same reason */
  *alone = found.alone;
  if (alone->seconds <= vx_least_parallel) return *alone; /* no call on several threads is shorter than their start */
  int64_t splits = parts(q, &found);
  pricing p;
  begin(&p, q, splits > 1 ? &NOTHING : alone);
  if (splits > 1 || (q->batch > 1 && threads > 1)) try_grid(&p, &found, 1, 1, splits, threads);
  try_more_grids(&p, &found, splits, threads);
  return best_of(&p);
}

vx_plan vx_select_batch(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b, int64_t threads) {
  vx_question q = vx_ask(call, batch, items_a, items_b);
  vx_answer alone;
  return vx_answer_of(&q, threads, &alone).plan;
}

int vx_serves(const vx_call *call, int64_t strategy) {
  if (strategy < 0 || strategy >= vx_strategy_count) return 0;
  const vx_strategy *s = &vx_strategies[strategy];
  if (s->dot) return vx_dot_serves(call);
  if (s->held) return !call->transpose_a && (VX_WORDS || !call->transpose_b);
  int has_rows = !call->packed || (vx_panel == LINE_FLOATS && call->m <= vx_panels_rows);
  if (s->streamed) return !call->transpose_a && !call->transpose_b && has_rows && call->k > s->tile_k;
  if (call->packed && (s->pack_b || vx_panel != s->vectors * vx_lanes)) return 0;
  if (VX_WORDS && !call->packed) return s->pack_b != 0;
  return s->swap ? !call->packed && (call->transpose_a || s->pack_b) : !call->transpose_b || s->pack_b;
}

vx_plan vx_select(const vx_call *call, int64_t threads) { return vx_select_batch(call, 1, 1, 1, threads); }

double vx_time_selection(const vx_call *call, int64_t threads, int64_t repeats) {
  struct timespec start, end;
  int64_t kept = 0;
  vx_polymer polymer;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < repeats; i++) kept += vx_choose(call, threads, &polymer).strategy;
  clock_gettime(CLOCK_MONOTONIC, &end);
  volatile int64_t used = kept;
  (void)used;
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
