/* Several micro-kernels in one call: regions of the output, each with a strategy and a grid of its own. The search is the twin of
 * polymerize.py, where everything is explained. */
#include "select.h"

#include <stdatomic.h>

/* Of polymerize.py. */
#define LEAST 16.0f
#define WASTE 1.08f
#define GAIN 0.95f
#define MOST_PRICED 8
#define MOST_CORES 64
#define LESS_LANES 7
#define PATTERNS 9
#define CUTS 3
enum { BY_ROWS, BY_COLUMNS, WHOLE, OFFERS, ALL = -1 }; /* the grids that a region is priced on */
static const struct {
  int parent, region, by_rows;
} derivations[PATTERNS - 1] = {{0, 0, 1}, {0, 0, 0}, {1, 1, 0}, {1, 0, 0}, {4, 2, 0}, {1, 1, 1}, {4, 1, 0}, {2, 1, 1}};

/* A polymer while it is searched for: what its fullest core is loaded with, and what all would be if none idled. */
typedef struct {
  int64_t count;
  vx_region regions[VX_REGIONS];
  float load, share;
} mosaic;

typedef struct {
  const vx_question *question;
  int64_t cores, left;
} search;

static atomic_int polymerizing = 1;

void vx_set_polymerizing(int on) {
  atomic_store(&polymerizing, on);
  vx_forget();
}

/* The load of the fullest core when every task, long ones first, goes to the least loaded one. Cores loaded alike are a group. */
static float maxmin(const mosaic *tried, int64_t cores) {
  struct {
    int64_t cores;
    float load;
  } groups[2 * VX_REGIONS + 1] = {{cores, 0.0f}};
  int count = 1, placed[VX_REGIONS] = {0};
  float most = 0.0f;
  for (int64_t step = 0; step < tried->count; step++) {
    int next = -1;
    for (int r = 0; r < tried->count; r++)
      if (!placed[r] && (next < 0 || tried->regions[r].task > tried->regions[next].task)) next = r;
    const vx_region *region = &tried->regions[next];
    placed[next] = 1;
    for (int64_t left = region->grid_m * region->grid_n, taken; left; left -= taken) {
      int at = 0;
      for (int g = 1; g < count; g++)
        if (groups[g].load < groups[at].load) at = g;
      taken = smaller(left, groups[at].cores);
      if (taken < groups[at].cores) {
        groups[at].cores -= taken;
        groups[count].cores = taken;
        groups[count].load = groups[at].load;
        at = count++;
      }
      groups[at].load += region->task;
    }
  }
  for (int g = 0; g < count; g++)
    if (groups[g].load > most) most = groups[g].load;
  return most;
}

static float work(const vx_region *region) {
  const vx_strategy *s = &vx_strategies[region->strategy];
  if (s->dot) return region->task; /* its tiles follow from the shape */
  int64_t width = s->vectors * vx_lanes, m = s->swap ? region->columns : region->rows, n = s->swap ? region->rows : region->columns;
  int64_t panels = quotient_up(n, width), rows = quotient_up(m, region->grid_m);
  int64_t columns = smaller(n, quotient_up(panels, region->grid_n) * width);
  return region->task * ((float)(region->rows * region->columns) / (float)(rows * columns));
}

static void weigh(mosaic *tried, int64_t cores) {
  float total = 0.0f;
  for (int64_t r = 0; r < tried->count; r++) total += work(&tried->regions[r]);
  tried->load = maxmin(tried, cores);
  tried->share = total / (float)cores;
}

/* `first`, and `second` if there is one, in the place of region `at` of `from`. */
static mosaic refined(const mosaic *from, int64_t at, const vx_region *first, const vx_region *second, int64_t cores) {
  mosaic made = {0};
  for (int64_t r = 0; r < from->count; r++) {
    if (r != at) {
      made.regions[made.count++] = from->regions[r];
      continue;
    }
    made.regions[made.count++] = *first;
    if (second) made.regions[made.count++] = *second;
  }
  weigh(&made, cores);
  return made;
}

static vx_answer priced(const vx_question *q, const vx_region *where, int64_t grid_m, int64_t grid_n, int64_t workers, int64_t dot) {
  vx_call part = *q->call;
  vx_question asked = *q;
  int64_t m = part.m, n = part.n, k = part.k, rows = where->rows, columns = where->columns;
  part.m = rows;
  part.n = columns;
  asked.call = &part;
  asked.others = (float)(4 * (m * k + k * n + m * n - rows * k - k * columns - rows * columns));
  return vx_price(&asked, dot, grid_m, grid_n, workers);
}

/* A region cut for all cores by rows, by columns, or left whole, by its best strategy while all cores are at work; or each of the three. */
static int64_t offers(search *s, const vx_region *where, int64_t dot, int only, vx_region *found) {
  const int64_t grids[OFFERS][2] = {{s->cores, 1}, {1, s->cores}, {1, 1}};
  int64_t count = 0;
  for (int g = s->cores > 1 ? BY_ROWS : WHOLE; g < OFFERS; g++) {
    int64_t grid_m = grids[g][0], grid_n = grids[g][1];
    if (only != ALL && only != g) continue;
    if (where->rows < grid_m || (grid_n > 1 && where->columns < grid_n * vx_lanes)) continue;
    s->left--;
    vx_answer best = priced(s->question, where, grid_m, grid_n, s->cores, dot);
    found[count] = *where;
    found[count].grid_m = grid_m;
    found[count].grid_n = grid_n;
    found[count].strategy = best.plan.strategy;
    found[count++].task = best.seconds - (s->cores > 1 ? vx_least_parallel : vx_call_seconds);
  }
  return count;
}

/* The pair of offers that fills the cores best in the place `at`. */
static mosaic best_pair(const mosaic *from, int64_t at, const vx_region *first, int64_t firsts, const vx_region *second, int64_t seconds,
                        int64_t cores) {
  mosaic best = {.load = 3e38f};
  for (int64_t i = 0; i < firsts; i++)
    for (int64_t j = 0; j < seconds; j++) {
      mosaic tried = refined(from, at, &first[i], &second[j], cores);
      if (tried.load < best.load) best = tried;
    }
  return best;
}

static void cut(const vx_region *region, int by_rows, int64_t at, vx_region *first, vx_region *second) {
  *first = *second = *region;
  if (by_rows) {
    first->rows = at;
    second->row += at;
    second->rows -= at;
  } else {
    first->columns = at;
    second->column += at;
    second->columns -= at;
  }
}

/* After whole waves of register tiles, of rows or vectors, and of two cores in halves; 0 for none. */
static void cuts(const search *s, const vx_region *region, int by_rows, int64_t *places) {
  const vx_strategy *strategy = &vx_strategies[region->strategy];
  int along_rows = by_rows != (int)strategy->swap;
  int64_t coarse = along_rows ? strategy->rows : strategy->vectors * vx_lanes, fine = along_rows ? 1 : vx_lanes;
  if (s->question->call->packed && !by_rows) coarse = fine = vx_panel;
  int64_t extent = by_rows ? region->rows : region->columns, wave = s->cores * coarse, thin = s->cores * fine;
  places[0] = extent / wave * wave;
  places[1] = extent / thin * thin;
  places[CUTS - 1] = s->cores == 2 ? (extent + 2 * fine - 1) / (2 * fine) * fine : 0;
  for (int i = CUTS - 1; i >= 0; i--) {
    if (places[i] >= extent) places[i] = 0;
    for (int j = 0; j < i; j++)
      if (places[j] == places[i]) places[i] = 0;
  }
}

/* Where one thread cuts lanes off for the dot family: how many stay, and whether along the rows of C; 0 for nowhere. */
static int64_t residue(const vx_question *q, const vx_answer *alone, int *by_rows) {
  const vx_call *call = q->call;
  *by_rows = vx_strategies[alone->plan.strategy].swap && call->transpose_b;
  int64_t extent = *by_rows ? call->m : call->n, rest = extent % vx_lanes, whole = extent - rest;
  if (!rest || !whole || rest > vx_dot_widest || call->packed || call->transpose_a) return 0;
  if ((vx_lanes - rest) * LESS_LANES < whole + vx_lanes || alone->seconds < LEAST * vx_least_parallel) return 0;
  vx_region all = {.rows = call->m, .columns = call->n}, body, tail;
  cut(&all, *by_rows, whole, &body, &tail);
  float together = priced(q, &body, 1, 1, 1, 0).seconds + priced(q, &tail, 1, 1, 1, 1).seconds - vx_call_seconds;
  return together < GAIN * alone->seconds ? whole : 0;
}

static void finish(const mosaic *found, int64_t pattern, float start, vx_polymer *polymer) {
  polymer->count = found->count;
  polymer->pattern = pattern;
  polymer->seconds = found->load + start;
  for (int64_t r = 0; r < found->count; r++) polymer->regions[r] = found->regions[r];
}

static void mix(search *s, int by_rows, int64_t whole, vx_polymer *polymer) {
  const vx_call *call = s->question->call;
  vx_region all = {.rows = call->m, .columns = call->n, .grid_m = 1, .grid_n = 1}, body, tail, outer[OFFERS], dots[OFFERS];
  cut(&all, by_rows, whole, &body, &tail);
  mosaic root = {.count = 1, .regions = {all}};
  int64_t outers = offers(s, &body, 0, ALL, outer), tails = offers(s, &tail, 1, ALL, dots);
  mosaic found = best_pair(&root, 0, outer, outers, dots, tails, s->cores);
  finish(&found, by_rows ? 1 : 2, s->cores > 1 ? vx_least_parallel : vx_call_seconds, polymer);
}

/* Branch and bound over patterns, cuts and strategies. */
static void balance(search *s, const vx_answer *plain, vx_polymer *polymer) {
  const vx_call *call = s->question->call;
  mosaic known[PATTERNS];
  for (int pattern = 0; pattern < PATTERNS; pattern++) known[pattern].count = 0; /* their regions are for later */
  known[0].count = 1;
  known[0].regions[0] = (vx_region){.rows = call->m, .columns = call->n, .strategy = plain->plan.strategy,
                                    .grid_m = plain->plan.grid_m, .grid_n = plain->plan.grid_n,
                                    .task = plain->seconds - (plain->plan.workers > 1 ? vx_least_parallel : vx_call_seconds)};
  weigh(&known[0], s->cores);
  int64_t pattern = 0, best = 0; /* of the least load so far */
  for (int derived = 1; derived < PATTERNS; derived++) {
    const mosaic *from = &known[derivations[derived - 1].parent];
    int64_t at = derivations[derived - 1].region, places[CUTS];
    int by_rows = derivations[derived - 1].by_rows;
    if (!from->count || from->share * WASTE >= known[best].load) continue;
    cuts(s, &from->regions[at], by_rows, places);
    for (int i = 0; i < CUTS; i++) {
      vx_region one, other, first[OFFERS], second[OFFERS];
      int halves = i == CUTS - 1;
      if (!places[i] || s->left < 1 + OFFERS) continue;
      cut(&from->regions[at], by_rows, places[i], &one, &other);
      int64_t firsts = offers(s, &one, 0, halves ? WHOLE : by_rows ? BY_ROWS : BY_COLUMNS, first);
      if (!firsts) continue;
      mosaic least = refined(from, at, first, NULL, s->cores);
      if (least.share >= known[best].load) continue;
      int64_t seconds = offers(s, &other, 0, halves ? WHOLE : ALL, second);
      mosaic tried = best_pair(from, at, first, firsts, second, seconds, s->cores);
      if (!known[derived].count || tried.load < known[derived].load) {
        known[derived] = tried;
        if (tried.load < known[best].load) best = pattern = derived;
      }
    }
  }
  if (pattern && known[best].load < GAIN * (plain->seconds - vx_least_parallel)) finish(&known[best], pattern, vx_least_parallel, polymer);
}

vx_plan vx_choose(const vx_call *call, int64_t threads, vx_polymer *polymer) {
  vx_question q = vx_ask(call, 1, 1, 1);
  vx_answer alone, plain = vx_answer_of(&q, threads, &alone);
  polymer->count = 0;
  if (alone.seconds < LEAST * vx_least_parallel || !vx_may_cut() || !atomic_load_explicit(&polymerizing, memory_order_relaxed)) return plain.plan;
  if (vx_strategies[plain.plan.strategy].dot || plain.plan.splits > 1 || threads > MOST_CORES) return plain.plan;
  search s = {&q, threads, MOST_PRICED};
  int by_rows;
  int64_t whole = residue(&q, &alone, &by_rows);
  if (whole)
    mix(&s, by_rows, whole, polymer);
  else if (threads > 1 && plain.seconds >= LEAST * vx_least_parallel)
    balance(&s, &plain, polymer);
  return plain.plan;
}

int vx_run(const vx_call *call) {
  const vx_choice *choice = vx_recall(call, vx_get_threads());
  const vx_polymer *polymer = &choice->polymer;
  return polymer->count ? vx_execute_regions(call, polymer->regions, polymer->count) : vx_execute(call, &choice->plan);
}
