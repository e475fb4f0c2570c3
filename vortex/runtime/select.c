/* The run-time choice: the compiled cost model over every strategy and grid, then the least. `selector.Selector` is its mirror. */
#include "vortex_runtime.h"

#include <time.h>

/* One task first, then every factorization of the thread count, tall to wide, and of its halves while they are even. */
static int64_t next_grid(int64_t *count, int64_t *columns) {
  for (;;) {
    if (*count <= 1) return 0;
    while (++*columns <= *count)
      if (*count % *columns == 0) return 1;
    *count /= 2;
    *columns = 0;
  }
}

static int64_t greatest_divisor(int64_t x, int64_t y) {
  while (y) {
    int64_t rest = x % y;
    x = y;
    y = rest;
  }
  return x;
}

vx_plan vx_select_batch(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b, int64_t threads) {
  float totals[VX_PRICED];
  float plain = !call->packed && !call->transpose_b, transposed = !call->packed && call->transpose_b;
  float spacing_a = (float)greatest_divisor(call->lda * 4, vx_l1_span);
  float spacing_b = (float)greatest_divisor(call->ldb * 4, vx_l1_span);
  float spacing_b_l2 = (float)greatest_divisor(call->ldb * 4, vx_l2_span);
  vx_plan best = {0, 1, 1, 1};
  float least = 3e38f;
  int64_t count = threads, columns = 0, grid_m = 1, grid_n = 1, workers = 1;
  int first = 1, spread = batch > 1 && threads > 1; /* the whole products of a batch on all threads come second */
  for (;;) {
    vortex_costs(vx_columns, vx_slopes, totals, (float)call->m, (float)call->n, (float)call->k,
                 (float)call->transpose_a, plain, transposed, (float)call->packed, spacing_a, spacing_b, spacing_b_l2,
                 (float)grid_m, (float)grid_n, (float)workers, (float)batch, (float)items_a, (float)items_b);
    for (int64_t s = 0; s < vx_strategy_count; s++)
      /* One thread decides the family, so that a result has the same bits on any number of threads. */
      if (totals[s] < least && (first || vx_strategies[s].dot == vx_strategies[best.strategy].dot)) {
        least = totals[s];
        best = (vx_plan){s, grid_m, grid_n, workers};
      }
    first = 0;
    /* No call on several threads is shorter than their start. */
    if (least <= vx_least_parallel) break;
    if (spread) {
      spread = 0;
    } else {
      if (!next_grid(&count, &columns)) break;
      grid_m = count / columns;
      grid_n = columns;
    }
    int64_t tasks = batch * grid_m * grid_n;
    workers = tasks < threads ? tasks : threads;
  }
  return best;
}

vx_plan vx_select(const vx_call *call, int64_t threads) { return vx_select_batch(call, 1, 1, 1, threads); }

double vx_time_selection(const vx_call *call, int64_t threads, int64_t repeats) {
  struct timespec start, end;
  int64_t kept = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < repeats; i++) kept += vx_select(call, threads).strategy;
  clock_gettime(CLOCK_MONOTONIC, &end);
  volatile int64_t used = kept;
  (void)used;
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
