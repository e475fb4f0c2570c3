/* What select.c knows of a call, for polymerize.c, which asks about parts of it. */
#ifndef VORTEX_SELECT_H
#define VORTEX_SELECT_H

#include "vortex_runtime.h"

/* All that the cost of a plan depends on beside its grid. `others` are bytes of operands that other regions of the call touch. */
typedef struct {
  const vx_call *call;
  int64_t batch;
  float items_a, items_b, plain, transposed, spacing_a, spacing_b, drift_a, drift_b, others;
} vx_question;

typedef struct {
  vx_plan plan;
  float seconds;
} vx_answer;

vx_question vx_ask(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b);
/* The first strategy of a family, `dot` products or all others, that takes least on a grid while `workers` are at work. */
vx_answer vx_price(const vx_question *q, int64_t dot, int64_t grid_m, int64_t grid_n, int64_t workers);
/* The best plain plan, and in `alone` the best on one thread. */
vx_answer vx_answer_of(const vx_question *q, int64_t threads, vx_answer *alone);

#endif
