/* The run-time choice: the compiled cost model over every strategy and grid, then the least. `selector.Selector` is its mirror. */
#include "select.h"
#include "integers.h"
#include "streams.h"

#include <time.h>

/* Of selector.py, where they are explained. */
#define DEEP 16
#define MOST_PARTS (1 << 22)
#define WORTH 4.0f
#define SPLIT_GAIN 0.95f
#define SPLIT_LOSS 1.1f

static const vx_answer NOTHING = {{0, 1, 1, 1, 1}, 3e38f};

/* Keep in `best` the first strategy of a family on a grid that takes less. */
void vx_price(const vx_question *q, int64_t dot, int64_t grid_m, int64_t grid_n, int64_t splits, int64_t workers, vx_answer *best) {
  float totals[VX_PRICED];
  const vx_call *call = q->call;
  vortex_costs(vx_columns, vx_slopes, totals, VX_BLOCKS, (float)call->m, (float)call->n, (float)vx_depth(call->k), (float)call->transpose_a,
               q->plain, q->transposed, (float)call->packed, q->spacing_a, q->spacing_b, q->drift_a, q->drift_b,
               (float)grid_m, (float)grid_n, (float)splits, (float)workers, (float)q->batch, q->items_a,
               q->items_b, q->others);
  for (int64_t s = 0; s < vx_strategy_count; s++)
    if (totals[s] < best->seconds && (dot == VX_ANY_FAMILY || vx_strategies[s].dot == dot))
      *best = (vx_answer){{s, grid_m, grid_n, splits, workers}, totals[s]};
}

static void try_grid(const vx_question *q, int64_t dot, int64_t grid_m, int64_t grid_n, int64_t splits, int64_t threads,
                     vx_answer *best) {
  int64_t tasks = q->batch * grid_m * grid_n * splits;
  vx_price(q, dot, grid_m, grid_n, splits, tasks < threads ? tasks : threads, best);
}

/* The grids after the first. */
static void try_more_grids(const vx_question *q, int64_t dot, int64_t splits, int64_t threads, vx_answer *best) {
  int64_t count = threads, columns = 0;
  while (next_grid(&count, &columns)) try_grid(q, dot, count / columns, columns, splits, threads, best);
}

/* How many parts k is cut into; decided for all cores of the machine, so that a result has the same bits on any number of threads. */
static int64_t parts(const vx_question *q, const vx_answer *alone) {
  const vx_call *call = q->call;
  int64_t longer = call->m > call->n ? call->m : call->n, dot = vx_strategies[alone->plan.strategy].dot;
  if (q->batch > 1 || vx_cores < 2 || call->k / DEEP < longer || (double)call->m * call->n * vx_cores > MOST_PARTS) return 1;
  if (alone->seconds < WORTH * vx_least_parallel) return 1;
  vx_answer whole = *alone, split = NOTHING, in_turn = NOTHING;
  try_more_grids(q, dot, 1, vx_cores, &whole);
  for (int64_t splits = 2; splits <= vx_cores; splits++)
    for (int64_t columns = 1; vx_cores % splits == 0 && columns <= vx_cores / splits; columns++)
      if (vx_cores / splits % columns == 0)
        try_grid(q, dot, vx_cores / splits / columns, columns, splits, vx_cores, &split);
  if (!(split.seconds < SPLIT_GAIN * whole.seconds)) return 1;
  try_grid(q, dot, 1, 1, split.plan.splits, 1, &in_turn);
  return in_turn.seconds <= SPLIT_LOSS * alone->seconds ? split.plan.splits : 1;
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

vx_answer vx_answer_of(const vx_question *q, int64_t threads, vx_answer *alone) {
  vx_answer best = NOTHING;
  try_grid(q, VX_ANY_FAMILY, 1, 1, 1, 1, &best); /* one thread decides the family, for the same reason */
  *alone = best;
  if (best.seconds <= vx_least_parallel) return best; /* no call on several threads is shorter than their start */
  int64_t dot = vx_strategies[best.plan.strategy].dot, splits = parts(q, &best);
  if (splits > 1) best = NOTHING;
  if (splits > 1 || (q->batch > 1 && threads > 1)) try_grid(q, dot, 1, 1, splits, threads, &best);
  try_more_grids(q, dot, splits, threads, &best);
  return best;
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
  if (s->held) return !call->transpose_a && !call->transpose_b;
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
