/* The run-time choice: the compiled cost model over every strategy and grid, then the least. `selector.Selector` is its mirror. */
#include "select.h"
#include "integers.h"
#include "streams.h"

#include <string.h>
#include <time.h>

/* Of selector.py, where they are explained. */
#define DEEP 16
#define MOST_PARTS (1 << 22)
#define FEW_ROWS 4
#define SHALLOW 16
#define FEW_CORES 8
#define WORTH 4.0f
#define SPLIT_GAIN 0.95f
#define SPLIT_LOSS 1.1f

static const vx_answer NOTHING = {{0, 1, 1, 1, 1}, VX_NEVER};

typedef int32_t quad __attribute__((vector_size(16)));
#define QUADS (VX_PRICED / 4)

/* By their ranks, in the order of seconds, which are positive, then of strategies: no branch could be foretold. */
void vx_nearest(const vx_question *q, const float *seconds, int64_t most, vx_some *found) {
  enum { UNABLE = INT32_MAX };
  const float never = VX_NEVER;
  int32_t keys[VX_PRICED], ranks[VX_PRICED], unable;
  quad own[QUADS], rank[QUADS], place[QUADS];
  int64_t count = q->from->count, taken = 0;
  memcpy(&unable, &never, sizeof unable);
  memcpy(keys, seconds, sizeof keys);
  if (q->from->dots >= 0) keys[q->from->dots] = UNABLE;
  memcpy(own, keys, sizeof own);
  for (int32_t i = 0; i < QUADS; i++) {
    own[i] |= (own[i] >= unable) & UNABLE;
    rank[i] = (quad){0};
    place[i] = (quad){4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};
  }
  memcpy(keys, own, sizeof keys);
  for (int32_t t = 0; t < count; t++)
    for (int32_t i = 0; i < QUADS; i++) rank[i] -= own[i] > keys[t] + (place[i] > t); /* one that takes as long, and is later, is behind */
  memcpy(ranks, rank, sizeof ranks);
  for (int32_t s = 0; s < count; s++) {
    found->strategies[taken] = s;
    taken += (keys[s] < UNABLE) & (ranks[s] < most);
  }
  found->count = taken;
}

/* What all strategies take on one thread, and the best of them. */
static void look(const vx_question *q, vx_outset *found) {
  vx_answer best = NOTHING;
  vx_price_all(q, found->on_one);
  for (int64_t s = 0; s < q->from->count; s++)
    if (found->on_one[s] < best.seconds) best.seconds = found->on_one[best.plan.strategy = s];
  found->alone = found->best = best;
}

/* The strategies that are worth a look on so many threads, and what they take on one. */
static void approach(const vx_question *q, vx_outset *found, int64_t threads) {
  int32_t best = found->alone.plan.strategy;
  if (best == q->from->dots)
    found->near = (vx_some){1, {best}};
  else
    vx_nearest(q, found->on_one, threads <= VX_FEW_THREADS ? VX_FEW_NEAR : VX_NEAR, &found->near);
  memcpy(found->least, found->on_one, sizeof found->least);
}

/* All grids after the first, of `plans.grids`. */
static void spread(vx_pricing *p, const vx_some *near, int64_t splits, int64_t threads, vx_answer *best, float *least) {
  int64_t count = threads % splits ? threads : threads / splits, columns = 0;
  while (next_grid(&count, &columns)) vx_price(p, near, vx_whole(p->q, count / columns, columns, splits, threads), best, least);
}

/* Whether k may be cut into parts at all. */
static int deep(const vx_question *q) {
  const vx_call *call = q->call;
  int64_t longer = call->m > call->n ? call->m : call->n;
  if (q->batch > 1 || vx_cores < 2 || (double)call->m * call->n * vx_cores > MOST_PARTS) return 0;
  int pieced = vx_pieced && vx_cores <= FEW_CORES && call->m <= FEW_ROWS && !call->packed && !call->transpose_b;
  return call->k / DEEP >= longer || (pieced && call->k >= quotient_up(call->n, SHALLOW));
}

/* How many; decided for all cores of the machine, so that a result has the same bits on any number of threads. `found` is left with what is near
 * on as many, and the best plan of those that do not cut k; `split` is the best of those that do, `in_turn` of one thread that does all parts. */
static int64_t parts(const vx_question *q, vx_outset *found, vx_answer *split, vx_answer *in_turn) {
  int64_t only = vx_cores <= 3 ? vx_cores : 0; /* numbers without a divisor */
  vx_pricing p;
  vx_begin(&p, q);
  approach(q, found, vx_cores);
  spread(&p, &found->near, 1, vx_cores, &found->best, found->least);
  for (int64_t splits = 2; splits <= vx_cores; splits++)
    for (int64_t columns = 1; vx_cores % splits == 0 && columns <= vx_cores / splits; columns++)
      if (vx_cores / splits % columns == 0)
        vx_price(&p, &found->near, vx_whole(q, vx_cores / splits / columns, columns, splits, vx_cores), split, 0);
  if (only) vx_price(&p, &found->near, vx_whole(q, 1, 1, only, 1), in_turn, 0);
  vx_settle(&p);
  if (!(split->seconds < SPLIT_GAIN * found->best.seconds)) return 1;
  if (!only) vx_price(&p, &found->near, vx_whole(q, 1, 1, split->plan.splits, 1), in_turn, 0);
  vx_settle(&p);
  return in_turn->seconds <= SPLIT_LOSS * found->alone.seconds ? split->plan.splits : 1;
}

static int64_t in_words(int64_t stride) {
  int64_t words = stride * VX_ITEM / 4;
  return words > 0 ? words : 1;
}

/* Bytes missing to a multiple of the span, or past one: `selector.drift`. */
static int64_t drift(int64_t bytes, int64_t span) { return smaller(bytes % span, span - bytes % span); }

vx_question vx_ask(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b) {
  return (vx_question){call,
                       &vx_shortlists[call->packed ? 2 : call->transpose_b ? 1 : 0],
                       batch,
                       (float)items_a,
                       (float)items_b,
                       (float)greatest_divisor(in_words(call->lda) * 4, vx_l1_span),
                       (float)greatest_divisor(in_words(call->ldb) * 4, vx_l1_span),
                       (float)drift(in_words(call->lda) * 4, vx_l1_span),
                       (float)drift(in_words(call->ldb) * 4, vx_l1_span)};
}

/* A packed B leaves few strategies. Where one vector has room for all of them, alone and on the grids of two threads, they are priced at once:
 * the same answer, or 0 for none. */
static int at_once(const vx_question *q, int64_t threads, vx_outset *found) {
  if (!q->call->packed || q->from->count * 3 > VX_LANES || threads != 2 || q->batch > 1 || deep(q)) return 0;
  vx_pricing p;
  vx_begin(&p, q);
  found->near.count = q->from->count;
  for (int32_t i = 0; i < q->from->count; i++) found->near.strategies[i] = i;
  for (int64_t s = 0; s < VX_PRICED; s++) found->on_one[s] = found->least[s] = VX_NEVER;
  found->alone = found->best = NOTHING;
  vx_price(&p, &found->near, vx_whole(q, 1, 1, 1, 1), &found->alone, found->on_one);
  spread(&p, &found->near, 1, 2, &found->best, found->least);
  vx_settle(&p);
  for (int64_t s = 0; s < VX_PRICED; s++)
    if (found->on_one[s] < found->least[s]) found->least[s] = found->on_one[s];
  if (found->alone.seconds <= vx_least_parallel || found->alone.seconds <= found->best.seconds) found->best = found->alone;
  return 1;
}

int vx_look(const vx_question *q, int64_t threads, vx_outset *found) {
  if (at_once(q, threads, found)) return 1;
  look(q, found);
  return found->alone.seconds <= vx_least_parallel; /* no call on several threads is shorter than their start */
}

void vx_share(const vx_question *q, int64_t threads, vx_outset *found) {
  int64_t splits = 1;
  int asked = deep(q) && found->alone.seconds >= WORTH * vx_least_parallel;
  if (threads == 1 && !asked) return;
  if (asked) {
    vx_answer split = NOTHING, in_turn = NOTHING;
    splits = parts(q, found, &split, &in_turn);
    if (splits == 1 && threads == vx_cores) return;
    if (splits > 1 && threads <= vx_cores && vx_cores <= VX_FEW_THREADS) { /* where the same strategies are near, on the same grids */
      found->best = threads > 1 ? split : in_turn;
      return;
    }
    found->best = splits > 1 ? NOTHING : found->alone;
    if (splits == 1 && threads == 1) return;
  }
  approach(q, found, threads);
  vx_pricing p;
  vx_begin(&p, q);
  if (splits > 1 || (q->batch > 1 && threads > 1))
    vx_price(&p, &found->near, vx_whole(q, 1, 1, splits, threads), &found->best, found->least);
  spread(&p, &found->near, splits, threads, &found->best, found->least);
  vx_settle(&p);
}

vx_plan vx_select_batch(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b, int64_t threads) {
  vx_question q = vx_ask(call, batch, items_a, items_b);
  vx_outset found;
  if (!vx_look(&q, threads, &found)) vx_share(&q, threads, &found);
  return vx_of_library(&q, found.best.plan);
}

int vx_serves(const vx_call *call, int64_t strategy) {
  if (strategy < 0 || strategy >= vx_strategy_count) return 0;
  const vx_strategy *s = &vx_strategies[strategy];
  if (s->dot) return vx_dot_serves(call);
  if (s->held) return !call->transpose_a;
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
