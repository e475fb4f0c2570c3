/* L2 of a GEMM: the output cut into grid_m x grid_n tasks, each one call of an L1 nest. */
#include "vortex_runtime.h"

#include <stdatomic.h>

typedef struct {
  const vx_call *call;
  const vx_strategy *strategy;
  vx_nest nest;
  int64_t grid_m, tile_k, rows_per_task, columns_per_task;
  atomic_int out_of_memory;
} job;

static int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

static void run_task(void *context, int64_t index) {
  job *work = context;
  const vx_call *call = work->call;
  const vx_strategy *s = work->strategy;
  int64_t row = index % work->grid_m * work->rows_per_task, column = index / work->grid_m * work->columns_per_task;
  int64_t m = smaller(work->rows_per_task, call->m - row), end = smaller(column + work->columns_per_task, call->n);
  if (m <= 0 || column >= end) return;
  int64_t width = s->vectors * vx_lanes;
  int64_t tile_n = smaller(s->tile_n, (end - column + width - 1) / width * width), tile_m = smaller(s->tile_m, m);
  float *scratch_a = NULL, *scratch_b = NULL;
  if (s->pack_a || s->pack_b) {
    int64_t a_floats = s->pack_a ? (tile_m + vx_lanes) * (work->tile_k + vx_lanes) : 0;
    a_floats = (a_floats + 15) & ~15LL;
    scratch_a = vx_scratch((size_t)(a_floats + (s->pack_b ? work->tile_k * tile_n : 0)) * sizeof(float));
    if (!scratch_a) {
      atomic_store(&work->out_of_memory, 1);
      return;
    }
    scratch_b = scratch_a + a_floats;
  }
  work->nest(call->a + (call->transpose_a ? row : row * call->lda), call->b, call->c + row * call->ldc, scratch_a,
             scratch_b, m, column, end, call->k, call->lda, call->ldb, call->ldc, call->panel, call->panel_stride,
             tile_m, tile_n, work->tile_k, s->rows, s->vectors, call->accumulate);
}

int vx_execute(const vx_call *call, const vx_plan *plan) {
  const vx_strategy *s = &vx_strategies[plan->strategy];
  int64_t width = s->vectors * vx_lanes;
  int64_t column_units = (call->n + width - 1) / width;
  job work = {
      .call = call,
      .strategy = s,
      .nest = vx_nests[call->transpose_a][s->rows_first][s->pack_a][s->pack_b ? 1 + call->transpose_b : 0],
      .grid_m = plan->grid_m,
      .tile_k = smaller(s->tile_k, call->k > 0 ? call->k : 1),
      .rows_per_task = (call->m + plan->grid_m - 1) / plan->grid_m,
      .columns_per_task = (column_units + plan->grid_n - 1) / plan->grid_n * width,
  };
  vx_parallel(run_task, &work, plan->grid_m * plan->grid_n);
  return work.out_of_memory;
}
