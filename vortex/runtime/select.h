/* What select.c knows of a call, for polymerize.c, which asks about parts of it. */
#ifndef VORTEX_SELECT_H
#define VORTEX_SELECT_H

#include "vortex_runtime.h"

#define VX_NEAR 8        /* `MOST_NEAR` of selector.py, */
#define VX_FEW_THREADS 2 /* `FEW_THREADS`, */
#define VX_FEW_NEAR (VX_LANES / 2 < 5 ? VX_LANES / 2 : 5) /* `most_near` on as few, */
#define VX_FIELDS 7      /* `OWN` of codegen/selector.py */
#define VX_NEVER 1e30f   /* `NEVER` of cost.py */
#define VX_PRICED (VX_BLOCKS * VX_LANES)

/* All that the cost of a plan depends on beside what a `vx_way` has. What is said of strategies here, until a choice is made, is said of
 * their places in the list `from`. */
typedef struct {
  const vx_call *call;
  const vx_shortlist *from;
  int64_t batch;
  float items_a, items_b, spacing_a, spacing_b, drift_a, drift_b;
} vx_question;

typedef struct {
  vx_plan plan;
  float seconds;
} vx_answer;

typedef struct {
  int64_t count;
  int32_t strategies[VX_NEAR + 1]; /* one more than are counted, so that finding them takes no branch */
} vx_some;

/* A grid, the threads that share its tasks, and the region of the output that it cuts; `others` are bytes of operands that other regions of
 * the call touch. */
typedef struct {
  float grid_m, grid_n, splits, workers, m, n, others;
} vx_way;

/* What is known of a call before regions are sought. */
typedef struct {
  vx_answer alone, best; /* on one thread, and on as many as are asked for */
  float on_one[VX_PRICED]; /* seconds by strategy */
  /* Of several threads: the strategies that were tried, and seconds on the best grid of each. */
  vx_some near;
  float least[VX_PRICED];
} vx_outset;

static inline const vx_strategy *vx_listed(const vx_question *q, int64_t place) { return &vx_strategies[q->from->strategies[place]]; }

/* A plan of what is chosen from as one of the library. */
static inline vx_plan vx_of_library(const vx_question *q, vx_plan plan) {
  plan.strategy = q->from->strategies[plan.strategy];
  return plan;
}

vx_question vx_ask(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b);
/* On one thread, which decides the family, so that a result has the same bits on any number; 1 where the rest is known too. */
int vx_look(const vx_question *q, int64_t threads, vx_outset *found);
/* The rest. */
void vx_share(const vx_question *q, int64_t threads, vx_outset *found);
/* So many strategies that take least, but for the dot family. */
void vx_nearest(const vx_question *q, const float *seconds, int64_t most, vx_some *found);

/* ways.c. The whole output on a grid. */
vx_way vx_whole(const vx_question *q, int64_t grid_m, int64_t grid_n, int64_t splits, int64_t threads);
/* Seconds of every strategy on one thread. */
void vx_price_all(const vx_question *q, float *totals);

/* A few ways wait for each other until they fill a vector, which has room for any. */
#define VX_ROOM VX_LANES
_Static_assert(VX_ROOM >= VX_NEAR, "a way and all strategies near the best");

/* The lanes of a way. The best of them becomes `to`, if it takes less than what is there, and the seconds of each go to `by_strategy`, if
 * there is one and they are less. */
typedef struct {
  int64_t first, count;
  vx_answer *to;
  float *by_strategy;
} vx_waiting;

/* All that waits at the same time is of one family. */
typedef struct {
  const vx_question *q;
  int64_t groups, lanes;
  vx_waiting waiting[VX_ROOM];
  _Alignas(64) int32_t order[VX_ROOM];
  _Alignas(64) float own[VX_FIELDS * VX_ROOM];
} vx_pricing;

void vx_begin(vx_pricing *p, const vx_question *q);
/* Price a way, now or with those that follow; */
void vx_price(vx_pricing *p, const vx_some *some, vx_way way, vx_answer *to, float *by_strategy);
/* and all that wait. */
void vx_settle(vx_pricing *p);

#endif
