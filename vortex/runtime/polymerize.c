/* Several micro-kernels in one call: regions of the output, each with a strategy and a grid of its own. The search is the twin of
 * polymerize.py, where everything is explained. */
#include "select.h"

#include <stdatomic.h>

/* Of polymerize.py. */
#define LEAST 16.0f
#define WASTE 1.08f
#define GAIN 0.95f
#define MOST_CUTS 2
#define MOST_TRIED 4
#define FEW_TRIED 2
#define MOST_CORES 64
#define LESS_LANES 7
#define PATTERNS 9
#define CUTS 3
enum { BY_ROWS, BY_COLUMNS, WHOLE, OFFERS, ALL = -1 }; /* the grids that a region may be priced on */
#define MOST_PRICED (MOST_CUTS * (1 + OFFERS))
static const struct {
  int parent, region, by_rows;
} derivations[PATTERNS - 1] = {{0, 0, 1}, {0, 0, 0}, {1, 1, 0}, {1, 0, 0}, {4, 2, 0}, {1, 1, 1}, {4, 1, 0}, {2, 1, 1}};
static const int sought[PATTERNS - 1] = {2, 1, 3, 4, 5, 6, 7, 8};
#define TOGETHER 2 /* of them, which cut the whole: they are priced at once */

/* A polymer while it is searched for, and what its fullest core is loaded with. */
typedef struct {
  int64_t count;
  vx_region regions[VX_REGIONS];
  float load;
} mosaic;

typedef struct {
  const vx_question *question;
  vx_outset *outset;
  int64_t cores;
} search;

static atomic_int polymerizing = 1;

void vx_set_polymerizing(int on) {
  atomic_store(&polymerizing, on);
  vx_forget();
}

/* The load of the fullest core when every task, long ones first, goes to the least loaded one. Cores loaded alike are a group. */
static float maxmin(const vx_region *const *regions, int64_t regions_count, int64_t cores) {
  struct {
    int64_t cores;
    float load;
  } groups[2 * VX_REGIONS + 1] = {{cores, 0.0f}};
  const vx_region *order[VX_REGIONS];
  int count = 1;
  float most = 0.0f;
  for (int64_t r = 0; r < regions_count; r++) { /* of tasks that are as long the earlier ones first */
    int64_t at = r;
    for (; at > 0 && order[at - 1]->task < regions[r]->task; at--) order[at] = order[at - 1];
    order[at] = regions[r];
  }
  for (int64_t r = 0; r < regions_count; r++)
    for (int64_t left = order[r]->grid_m * order[r]->grid_n, taken; left; left -= taken) {
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
      groups[at].load += order[r]->task;
    }
  for (int g = 0; g < count; g++)
    if (groups[g].load > most) most = groups[g].load;
  return most;
}

static float work(const vx_question *q, const vx_region *region) {
  const vx_strategy *s = vx_listed(q, region->strategy);
  if (s->dot) return region->task; /* its tiles follow from the shape */
  int64_t width = s->vectors * vx_lanes, m = s->swap ? region->columns : region->rows, n = s->swap ? region->rows : region->columns;
  int64_t panels = quotient_up(n, width), rows = quotient_up(m, region->grid_m);
  int64_t columns = smaller(n, quotient_up(panels, region->grid_n) * width);
  return region->task * ((float)(region->rows * region->columns) / (float)(rows * columns));
}

/* What all cores would be loaded with if none idled. */
static float share(const search *s, const mosaic *tried) {
  float total = 0.0f;
  for (int64_t r = 0; r < tried->count; r++) total += work(s->question, &tried->regions[r]);
  return total / (float)s->cores;
}

static vx_way way_of(const vx_call *call, const vx_region *region, int64_t cores) {
  int64_t rows = region->rows, columns = region->columns, m = call->m, n = call->n, k = call->k;
  float others = (float)(4 * (m * k + k * n + m * n - rows * k - k * columns - rows * columns));
  return (vx_way){(float)region->grid_m, (float)region->grid_n, 1.0f, (float)cores, (float)rows, (float)columns, others};
}

/* Some regions, each by the best of some strategies while so many cores are at work. */
static void price(const search *s, const vx_some *some, int64_t cores, vx_region *regions, int64_t count) {
  vx_answer best[MOST_PRICED];
  vx_pricing p;
  vx_begin(&p, s->question);
  for (int64_t r = 0; r < count; r++) {
    best[r].seconds = 2.0f * VX_NEVER;
    vx_price(&p, some, way_of(s->question->call, &regions[r], cores), &best[r], 0);
  }
  vx_settle(&p);
  for (int64_t r = 0; r < count; r++) {
    regions[r].strategy = best[r].plan.strategy;
    regions[r].task = best[r].seconds - (cores > 1 ? vx_least_parallel : vx_call_seconds);
  }
}

static int few(const search *s) { return s->cores <= VX_FEW_THREADS; }

/* A region cut for all cores by rows, by columns, or left whole; or each of them, whole on few cores only if it cannot be cut. */
static int64_t offers(const search *s, const vx_region *where, int only, vx_region *found) {
  const int64_t grids[OFFERS][2] = {{s->cores, 1}, {1, s->cores}, {1, 1}};
  int64_t count = 0;
  for (int g = s->cores > 1 ? BY_ROWS : WHOLE; g < OFFERS; g++) {
    int64_t grid_m = grids[g][0], grid_n = grids[g][1];
    if (only == ALL ? g == WHOLE && count && few(s) : only != g) continue;
    if (where->rows < grid_m || (grid_n > 1 && where->columns < grid_n * vx_lanes)) continue;
    found[count] = *where;
    found[count].grid_m = grid_m;
    found[count++].grid_n = grid_n;
  }
  return count;
}

/* The pair of offers that fills the cores best in the place of region `at`. */
static mosaic best_pair(const mosaic *from, int64_t at, const vx_region *first, int64_t firsts, const vx_region *second, int64_t seconds,
                        int64_t cores) {
  const vx_region *regions[VX_REGIONS], *best[2] = {first, second};
  mosaic made = {.count = from->count + 1, .load = 3e38f};
  for (int64_t r = 0; r < from->count; r++) regions[r < at ? r : r + 1] = &from->regions[r];
  for (int64_t i = 0; i < firsts; i++)
    for (int64_t j = 0; j < seconds; j++) {
      regions[at] = &first[i];
      regions[at + 1] = &second[j];
      float load = maxmin(regions, made.count, cores);
      if (load < made.load) {
        made.load = load;
        best[0] = &first[i];
        best[1] = &second[j];
      }
    }
  regions[at] = best[0];
  regions[at + 1] = best[1];
  for (int64_t r = 0; r < made.count; r++) made.regions[r] = *regions[r];
  return made;
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
  const vx_strategy *strategy = vx_listed(s->question, region->strategy);
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

/* Where lanes may be cut off for the dot family: how many stay, and whether along the rows of C; 0 for nowhere. */
static int64_t residue(const vx_question *q, const vx_answer *alone, int *by_rows) {
  const vx_call *call = q->call;
  *by_rows = vx_listed(q, alone->plan.strategy)->swap && call->transpose_b;
  int64_t extent = *by_rows ? call->m : call->n, rest = extent % vx_lanes, whole = extent - rest;
  if (!rest || !whole || rest > vx_dot_widest || call->packed || call->transpose_a) return 0;
  if ((vx_lanes - rest) * LESS_LANES < whole + vx_lanes || alone->seconds < LEAST * vx_least_parallel) return 0;
  return whole;
}

static void finish(const vx_question *q, const mosaic *found, int64_t pattern, float start, vx_polymer *polymer) {
  polymer->count = found->count;
  polymer->pattern = pattern;
  polymer->seconds = found->load + start;
  for (int64_t r = 0; r < found->count; r++) {
    polymer->regions[r] = found->regions[r];
    polymer->regions[r].strategy = q->from->strategies[found->regions[r].strategy];
  }
}

/* The residue by dot products, if that gains on one thread: then each part on the grid that serves it best, and 1. */
static int mix(const search *s, vx_polymer *polymer) {
  const vx_question *q = s->question;
  vx_outset *found = s->outset;
  int by_rows;
  int64_t whole = residue(q, &found->alone, &by_rows);
  if (!whole) return 0;
  vx_region all = {.rows = q->call->m, .columns = q->call->n, .grid_m = 1, .grid_n = 1}, body, rest, outer[OFFERS], dots[OFFERS];
  int64_t outers = 1, tails = 1, shared = s->cores > 1;
  vx_some outer_products, dot_products = {1, {q->from->dots}};
  vx_nearest(q, found->on_one, MOST_TRIED, &outer_products);
  cut(&all, by_rows, whole, &body, &rest);
  outer[0] = body;
  dots[0] = rest;
  price(s, &outer_products, 1, outer, 1);
  price(s, &dot_products, 1, dots, 1);
  if (!(outer[0].task + dots[0].task + vx_call_seconds < GAIN * found->alone.seconds)) return 0;
  if (shared) {
    if (few(s)) {
      vx_nearest(q, found->on_one, VX_FEW_NEAR, &outer_products);
    } else {
      vx_share(q, s->cores, found);
      if (found->best.plan.splits == 1) vx_nearest(q, found->least, MOST_TRIED, &outer_products);
    }
    outers = offers(s, &body, ALL, outer);
    tails = offers(s, &rest, ALL, dots);
    price(s, &outer_products, s->cores, outer, outers);
    price(s, &dot_products, s->cores, dots, tails);
  }
  mosaic root = {.count = 1, .regions = {all}};
  mosaic mixed = best_pair(&root, 0, outer, outers, dots, tails, s->cores);
  finish(q, &mixed, by_rows ? 1 : 2, shared ? vx_least_parallel : vx_call_seconds, polymer);
  return 1;
}

/* A cut of a pattern, whose first region has one offer and whose second has so many. */
typedef struct {
  int derived;
  int64_t seconds;
} trial;

/* So many cuts of a pattern at most, and how many there are; `part` goes past the offers of both regions of each. */
static int64_t cut_for(const search *s, const mosaic *from, int derived, int64_t most, vx_region **part, trial *trials) {
  int by_rows = derivations[derived - 1].by_rows, along = by_rows ? BY_ROWS : BY_COLUMNS, across = by_rows ? BY_COLUMNS : BY_ROWS;
  const vx_region *region = &from->regions[derivations[derived - 1].region];
  int64_t places[CUTS], made = 0;
  cuts(s, region, by_rows, places);
  for (int i = 0; i < CUTS && made < most; i++) {
    vx_region one, other;
    int halves = i == CUTS - 1;
    if (!places[i]) continue;
    cut(region, by_rows, places[i], &one, &other);
    if (!offers(s, &one, halves ? WHOLE : along, *part)) continue;
    int64_t seconds = halves ? 0 : offers(s, &other, few(s) ? across : ALL, *part + 1);
    if (!seconds) seconds = offers(s, &other, WHOLE, *part + 1);
    trials[made++] = (trial){derived, seconds};
    *part += 1 + seconds;
  }
  return made;
}

/* Branch and bound over patterns, cuts and strategies. */
static void balance(const search *s, vx_polymer *polymer) {
  const vx_call *call = s->question->call;
  const vx_answer *plain = &s->outset->best;
  mosaic known[PATTERNS];
  vx_some tried;
  vx_nearest(s->question, s->outset->least, few(s) ? FEW_TRIED : MOST_TRIED, &tried);
  for (int pattern = 0; pattern < PATTERNS; pattern++) known[pattern].count = 0; /* their regions are for later */
  known[0].count = 1;
  known[0].regions[0] = (vx_region){.rows = call->m, .columns = call->n, .strategy = plain->plan.strategy,
                                    .grid_m = plain->plan.grid_m, .grid_n = plain->plan.grid_n,
                                    .task = plain->seconds - (plain->plan.workers > 1 ? vx_least_parallel : vx_call_seconds)};
  const vx_region *whole = &known[0].regions[0];
  known[0].load = maxmin(&whole, 1, s->cores);
  int64_t pattern = 0, best = 0, left = MOST_CUTS; /* `best` is of the least load so far */
  for (int next = 0; next < PATTERNS - 1 && left;) {
    vx_region parts[MOST_PRICED], *part = parts;
    trial trials[MOST_CUTS];
    int64_t made = 0;
    do {
      int derived = sought[next];
      const mosaic *from = &known[derivations[derived - 1].parent];
      if (!from->count || share(s, from) * WASTE >= known[best].load) continue;
      int64_t added = cut_for(s, from, derived, left, &part, trials + made);
      made += added;
      left -= added;
    } while (++next < TOGETHER);
    price(s, &tried, s->cores, parts, part - parts);
    part = parts;
    for (int64_t i = 0; i < made; part += 1 + trials[i++].seconds) {
      int derived = trials[i].derived;
      const mosaic *from = &known[derivations[derived - 1].parent];
      mosaic found = best_pair(from, derivations[derived - 1].region, part, 1, part + 1, trials[i].seconds, s->cores);
      if (!known[derived].count || found.load < known[derived].load) {
        known[derived] = found;
        if (found.load < known[best].load) best = pattern = derived;
      }
    }
  }
  if (pattern && known[best].load < GAIN * (plain->seconds - vx_least_parallel)) finish(s->question, &known[best], pattern, vx_least_parallel, polymer);
}

vx_plan vx_choose(const vx_call *call, int64_t threads, vx_polymer *polymer) {
  vx_question q = vx_ask(call, 1, 1, 1);
  vx_outset found;
  const search s = {&q, &found, threads};
  polymer->count = 0;
  int known = vx_look(&q, threads, &found);
  int cuts = found.alone.seconds >= LEAST * vx_least_parallel && !vx_listed(&q, found.alone.plan.strategy)->dot && vx_may_cut() &&
             threads <= MOST_CORES && atomic_load_explicit(&polymerizing, memory_order_relaxed);
  if (cuts && mix(&s, polymer)) return vx_of_library(&q, found.alone.plan);
  if (!known) vx_share(&q, threads, &found);
  int balances = cuts && threads > 1 && found.best.plan.splits == 1 && found.best.seconds >= LEAST * vx_least_parallel;
  if (balances) balance(&s, polymer);
  return vx_of_library(&q, found.best.plan);
}

int vx_run(const vx_call *call) {
  const vx_choice *choice = vx_recall(call, vx_get_threads());
  const vx_polymer *polymer = &choice->polymer;
  return polymer->count ? vx_execute_regions(call, polymer->regions, polymer->count) : vx_execute(call, &choice->plan);
}
