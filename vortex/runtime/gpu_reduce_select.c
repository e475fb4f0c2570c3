/* The choice of a reduction on a GPU: the cost of every tile with every cut of the depth, then the least.
 *
 * `gpu_reduction.ReduceSelector` is its mirror: both compute in float64, in the same order. Compiled for plain x86-64, no
 * product is fused into an addition. */
#include "gpu_reduce.h"
#include "integers.h"

#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

/* As in gpu_reduction.py; logarithms where they are shifts. */
enum { ITEM = 4, PIECE = 4, PIECES = 2, STEPS = 4, TURNS = 2, CHAINS = 11, SECTOR = 32, BURST = 64, LINE = 128, WARP = 5 };
enum { STEP_SLOTS = 40, NARROW_SLOTS = 64, BLOCK_SLOTS = 192, MOST_FILL = 4, MOST_CUTS = 4 };
#define MOST_BLOCKS INT64_C(2147483647)

/* What a tile makes of a view, however its depth is cut. */
typedef struct {
  const vx_gpu_reduce_tile *tile;
  int64_t alone; /* blocks, the depth uncut */
  int64_t steps; /* of the whole depth */
  int32_t step;  /* log2 of elements of depth that a block takes in one */
  int32_t slots_of_step;
  double elements;  /* bytes that cross */
  double looked_up; /* seconds that an SM looks up lines in, for a step of one block */
} priced;

/* A first sweep and its seconds. */
typedef struct {
  double seconds;
  int64_t chunk, chunks;
  int32_t tile;
} first;

static inline double most(double x, double y) { return x > y ? x : y; }
static inline double least(double x, double y) { return x < y ? x : y; }
static inline int64_t shifted_up(int64_t x, int32_t by) { return (x + ((INT64_C(1) << by) - 1)) >> by; }
/* Exact below 2^53, and sooner done than a division of whole numbers. */
static inline int64_t divided(int64_t x, int64_t y) { return (int64_t)((double)x / (double)y); }
static inline int64_t divided_up(int64_t x, int64_t y) { return divided(x + y - 1, y); }

/* gpu_reduction.waste; chunks are whole steps, and what is cut is longer than one: no cut changes it. */
static double waste(const vx_gpu_view *v, const vx_gpu_reduce_tile *t, int32_t step) {
  int64_t length = t->is_columns ? v->inner : v->depth, piece = INT64_C(1) << (t->is_columns ? t->across + PIECES : step);
  if (length <= piece) return 1.0;
  int64_t run = ITEM * piece;
  if (ITEM * length % SECTOR || run % SECTOR) return (double)(run + SECTOR) / (double)run;
  return run < BURST ? (double)BURST / (double)run : 1.0;
}

/* gpu_reduction.lines */
static double lines(const vx_gpu_view *v, const vx_gpu_reduce_tile *t) {
  int32_t x = t->across < WARP ? t->across : WARP, y = t->along < WARP ? t->along : WARP;
  int64_t width = v->inner;
  if (!t->is_columns) {
    x = y;
    y = 0;
    width = v->depth;
  }
  y = y < WARP - x ? y : WARP - x;
  int64_t z = smaller(INT64_C(1) << (WARP - x - y), v->outer), deep = smaller(INT64_C(1) << y, v->depth);
  int64_t run = ITEM * smaller(INT64_C(1) << (PIECES + x), width);
  double of_rows = least((double)deep * most(1.0, (double)run / LINE), (double)((deep - 1) * ITEM * width + run) / LINE);
  double apart = (double)((z - 1) * (ITEM * v->inner * v->depth)) / LINE;
  return most(1.0, least((double)z * most(1.0, of_rows), apart + of_rows));
}

/* log2 of elements of depth. */
static inline int32_t step_of(const vx_gpu_reduce_tile *t) { return t->along + TURNS + (t->is_columns ? 0 : PIECES); }

static priced price(const vx_gpu_view *v, const vx_gpu_reduce_tile *t) {
  const vx_gpu_reduce_rates *r = &vx_gpu_reduce_figures;
  int32_t step = step_of(t);
  int is_wide = ((t->is_columns ? v->inner : v->depth) & (PIECE - 1)) == 0;
  int64_t wide = t->is_columns ? shifted_up(v->inner, t->across + PIECES) : v->inner;
  return (priced){
      .tile = t,
      .alone = shifted_up(v->outer, t->rows) * wide,
      .steps = larger(1, shifted_up(v->depth, step)),
      .step = step,
      .slots_of_step = is_wide ? STEP_SLOTS : NARROW_SLOTS,
      .elements = (double)(ITEM * v->outer * v->depth * v->inner) * waste(v, t, step),
      .looked_up = (double)(t->warps * STEPS * (is_wide ? 1 : PIECE)) * lines(v, t) * r->cycle,
  };
}

typedef struct {
  double byte, latency, one, issued, steps;
} loads;

/* Blocks of one wave; an SM has `deepest` of them. */
static inline double wave(const priced *p, const loads *l, double count, double deepest, double edge) {
  const vx_gpu_reduce_rates *r = &vx_gpu_reduce_figures;
  double loaded = most(count * l->one * l->byte, deepest * l->one * r->port_byte), looked = deepest * p->looked_up;
  double longest = most(most(l->latency, loaded), looked);
  double middle = most(least(l->latency, loaded), least(most(l->latency, loaded), looked));
  return most(l->steps * (longest + r->leak * middle), deepest * l->issued) + edge;
}

/* gpu_reduction.terms: the total of a sweep of so many chunks, of `steps` steps each. */
static double total(const vx_gpu_view *v, const priced *p, int64_t chunks, int64_t steps, int32_t is_warm) {
  const vx_gpu_reduce_rates *r = &vx_gpu_reduce_figures;
  const vx_gpu_reduce_tile *t = p->tile;
  int64_t blocks = p->alone * chunks;
  double bytes = (double)(ITEM * (v->outer * v->depth * v->inner + v->outer * chunks * v->inner));
  int in_l2 = is_warm && bytes <= r->l2_bytes;
  loads l = {.byte = in_l2 ? r->l2_byte : r->dram_byte, .latency = in_l2 ? r->l2_latency : r->dram_latency};
  l.one = p->elements / (double)(blocks * steps);
  l.issued = (double)(t->warps * (steps * p->slots_of_step + BLOCK_SLOTS)) * r->slot;
  l.steps = (double)steps;
  double read = 0.0;
  int64_t left = blocks;
  if (blocks > t->slots) {
    int64_t full = divided_up(blocks, t->slots) - 1;
    left -= full * t->slots;
    read = (double)full * wave(p, &l, (double)t->slots, (double)t->slots / r->sms, t->share);
  }
  read += wave(p, &l, (double)left, (double)divided_up(left, (int64_t)r->sms), t->edge);
  return r->launch + most(read, bytes * l.byte);
}

static int serves(const vx_gpu_reduce_tile *t, const vx_gpu_view *v) { return t->is_columns == (v->inner != 1); }

/* What combines the chunks of a sweep: the tile, and its seconds. */
static int32_t second(const vx_gpu_view *chunks, double *seconds) {
  const vx_gpu_reduce_rates *r = &vx_gpu_reduce_figures;
  int32_t best = -1;
  for (int32_t i = 0; i < vx_gpu_reduce_count; i++) {
    const vx_gpu_reduce_tile *t = &vx_gpu_reduce_tiles[i];
    if (!serves(t, chunks)) continue;
    int64_t steps = larger(1, shifted_up(chunks->depth, step_of(t)));
    if (best >= 0 && r->launch + ((double)steps * least(r->dram_latency, r->l2_latency) + t->edge) > *seconds) continue; /* no less */
    priced p = price(chunks, t);
    double taken = total(chunks, &p, 1, steps, 1);
    if (best < 0 || taken < *seconds) best = i, *seconds = taken;
  }
  return best;
}

/* What a tile may begin with, as ReduceSelector.firsts: how many. */
static int32_t begin(const vx_gpu_view *v, int32_t index, int64_t room, int32_t is_warm, first *firsts) {
  priced p = price(v, &vx_gpu_reduce_tiles[index]);
  int64_t fewest = larger(1, shifted_up(v->depth, CHAINS + p.step)), deepest = larger(fewest, v->depth >> p.step);
  int64_t fill = p.alone > MOST_FILL * p.tile->slots || deepest == fewest ? 0 : divided(MOST_FILL * p.tile->slots, p.alone);
  int64_t parts[MOST_CUTS] = {fewest, fill >> 2, fill >> 1, fill};
  int32_t count = 0, fits = 0;
  for (int32_t i = 0; i < MOST_CUTS; i++) {
    parts[i] = smaller(larger(parts[i], fewest), deepest);
    if (i && parts[i] == parts[i - 1]) continue;
    int64_t steps = parts[i] == 1 ? p.steps : divided_up(p.steps, parts[i]), chunks = parts[i] == 1 ? 1 : divided_up(p.steps, steps);
    if (chunks > 1 && ITEM * v->outer * chunks * v->inner > room) continue;
    fits = 1;
    if (p.alone * chunks > MOST_BLOCKS) continue;
    int64_t chunk = chunks == 1 ? v->depth : steps << p.step;
    firsts[count++] = (first){total(v, &p, chunks, steps, is_warm), chunk, chunks, index};
  }
  if (!fits && p.alone <= MOST_BLOCKS) firsts[count++] = (first){total(v, &p, 1, p.steps, is_warm), v->depth, 1, index};
  return count;
}

static vx_gpu_sweep sweep(const vx_gpu_view *v, int32_t tile, int64_t chunk, int64_t chunks) {
  return (vx_gpu_sweep){v->outer, v->depth, v->inner, chunk, chunks, price(v, &vx_gpu_reduce_tiles[tile]).alone * chunks, tile};
}

EXPORT int32_t vx_gpu_reduce_abi(void) { return VX_REDUCE_ABI; }

EXPORT void vx_gpu_reduce_choose(const vx_gpu_view *view, int64_t room, int32_t is_warm, vx_gpu_reduce_plan *plan) {
  const vx_gpu_reduce_rates *r = &vx_gpu_reduce_figures;
  first firsts[VX_REDUCE_MOST * MOST_CUTS];
  struct {
    int64_t chunks;
    int32_t tile;
    double seconds;
  } seconds[VX_REDUCE_MOST * MOST_CUTS];
  int32_t cut[VX_REDUCE_MOST * MOST_CUTS], cuts = 0, count = 0, known = 0, best = -1, then = -1;
  double least_second = r->launch + (least(r->dram_latency, r->l2_latency) + r->start), best_total = 0;
  for (int32_t i = 0; i < vx_gpu_reduce_count; i++)
    if (serves(&vx_gpu_reduce_tiles[i], view)) count += begin(view, i, room, is_warm, &firsts[count]);
  *plan = (vx_gpu_reduce_plan){0};
  for (int32_t i = 0; i < count; i++)
    if (firsts[i].chunks > 1) cut[cuts++] = i;
    else if (best < 0 || firsts[i].seconds < best_total) best = i, best_total = firsts[i].seconds;
  for (;;) { /* cuts, the soonest read first: what it takes in all spares most others their second sweep */
    int32_t i = -1, at = 0;
    for (int32_t k = 0; k < cuts; k++)
      if (i < 0 || firsts[cut[k]].seconds < firsts[cut[i]].seconds) i = k;
    if (i < 0 || (best >= 0 && firsts[cut[i]].seconds + least_second > best_total)) break;
    int32_t taken_up = cut[i];
    const first *f = &firsts[taken_up];
    memmove(&cut[i], &cut[i + 1], sizeof *cut * (size_t)(--cuts - i));
    while (at < known && seconds[at].chunks != f->chunks) at++;
    if (at == known) {
      vx_gpu_view chunks = {view->outer, f->chunks, view->inner};
      seconds[at].chunks = f->chunks;
      seconds[at].tile = second(&chunks, &seconds[at].seconds);
      known++;
    }
    double taken = f->seconds + seconds[at].seconds;
    int is_tie = best >= 0 && taken == best_total && firsts[best].chunks == 1; /* which the mirror tries after the cut */
    if (best < 0 || taken < best_total || is_tie) best = taken_up, best_total = taken, then = seconds[at].tile;
  }
  if (best < 0) return;
  const first *f = &firsts[best];
  plan->seconds = best_total;
  plan->sweeps[plan->count++] = sweep(view, f->tile, f->chunk, f->chunks);
  if (f->chunks == 1) return;
  vx_gpu_view chunks = {view->outer, f->chunks, view->inner};
  plan->sweeps[plan->count++] = sweep(&chunks, then, f->chunks, 1);
}

/* A given sweep: by a tile that serves the view, in chunks of whole steps, as many as a grid has room for. */
static int take_sweep(const vx_gpu_view *v, vx_gpu_given *given, vx_gpu_sweep *out) {
  if (given->count < 1) return 0;
  const vx_gpu_given_sweep *g = given->sweeps;
  if (g->tile < 0 || g->tile >= vx_gpu_reduce_count || g->chunk < 1) return 0;
  const vx_gpu_reduce_tile *t = &vx_gpu_reduce_tiles[g->tile];
  int is_whole = g->chunk >= v->depth;
  if (!serves(t, v) || (!is_whole && g->chunk & ((INT64_C(1) << step_of(t)) - 1))) return 0;
  *out = sweep(v, (int32_t)g->tile, is_whole ? v->depth : g->chunk, is_whole ? 1 : (v->depth - 1) / g->chunk + 1);
  given->sweeps++;
  given->count--;
  return out->blocks <= MOST_BLOCKS;
}

int vx_gpu_reduce_take(const vx_gpu_view *view, vx_gpu_given *given, vx_gpu_reduce_plan *plan) {
  *plan = (vx_gpu_reduce_plan){0};
  if (!take_sweep(view, given, &plan->sweeps[0])) return 0;
  int64_t chunks = plan->sweeps[0].chunks;
  vx_gpu_view left = {view->outer, chunks, view->inner};
  if (chunks > 1 && (!take_sweep(&left, given, &plan->sweeps[1]) || plan->sweeps[1].chunks > 1)) return 0;
  plan->count = chunks > 1 ? 2 : 1;
  return 1;
}

/* Seconds of `repeats` selections. */
EXPORT double vx_gpu_reduce_time_selection(const vx_gpu_view *view, int64_t room, int32_t is_warm, int64_t repeats) {
  struct timespec start, end;
  vx_gpu_reduce_plan plan;
  volatile int64_t kept = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < repeats; i++) {
    vx_gpu_reduce_choose(view, room, is_warm, &plan);
    kept = kept + plan.count;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
