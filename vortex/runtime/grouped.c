/* L2 of a grouped GEMM: each group has a strategy and a grid of its own; the tasks of all groups are in one pool, tall groups first. */
#include "batch.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct {
  vx_call call;
  vx_plan plan;
  int64_t tasks; /* of this group and of those before it */
} group;

typedef struct {
  const group *groups;
  int64_t count, tasks, chunk;
  atomic_int out_of_memory;
} job;

int64_t vx_alike(int64_t total, int64_t m) { return (total + m / 2) / m; }

static int taller(const void *x, const void *y) {
  int64_t left = ((const group *)x)->call.m, right = ((const group *)y)->call.m;
  return left < right ? 1 : left > right ? -1 : 0;
}

/* The first group with a task after `index`. */
static int64_t owner(const job *work, int64_t index) {
  int64_t low = 0, high = work->count - 1;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (work->groups[middle].tasks > index)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static void run_chunk(void *context, int64_t index) {
  job *work = context;
  int64_t task = index * work->chunk, end = task + work->chunk;
  if (end > work->tasks) end = work->tasks;
  const group *g = &work->groups[owner(work, task)];
  for (; task < end; task++) {
    if (task >= g->tasks) g++;
    int64_t own = g->plan.grid_m * g->plan.grid_n;
    if (vx_execute_task(&g->call, &g->plan, task - (g->tasks - own))) atomic_store(&work->out_of_memory, 1);
  }
}

int vx_execute_grouped(const vx_grouped *work, int64_t threads) {
  const vx_call *all = &work->call;
  group *groups = malloc((size_t)work->groups * sizeof(group));
  if (!groups) return 1;
  int64_t count = 0, row = 0, tasks = 0;
  for (int64_t g = 0; g < work->groups; row += work->rows[g++]) {
    if (work->rows[g] == 0) continue;
    vx_call *call = &groups[count++].call;
    *call = vx_moved(all, all->transpose_a ? row : row * all->lda, g * work->stride_b, row * all->ldc);
    call->m = work->rows[g];
    for (int64_t x = 0; x < vx_operand_count; x++) vx_move_extra(call, x, g * work->extras[x] + row * all->extras[x].row_stride);
  }
  qsort(groups, (size_t)count, sizeof(group), taller);
  for (int64_t g = 0; g < count; g++) {
    int64_t m = groups[g].call.m, alike = vx_alike(all->m, m);
    if (g > 0 && groups[g - 1].call.m == m)
      groups[g].plan = groups[g - 1].plan;
    else
      groups[g].plan = vx_recall_batch(&groups[g].call, alike, alike, work->groups, threads);
    if (groups[g].plan.splits == 1) tasks += groups[g].plan.grid_m * groups[g].plan.grid_n;
    groups[g].tasks = tasks;
  }
  job pool = {.groups = groups, .count = count, .tasks = tasks};
  /* A reduction is split only in a group that has most of all rows: its parts are added up apart from the others. */
  if (groups[0].plan.splits > 1 && vx_execute(&groups[0].call, &groups[0].plan)) pool.out_of_memory = 1;
  /* The tallest group knows whether all of it is worth several threads. */
  pool.chunk = vx_chunk((double)all->m * (double)all->n * (double)all->k, tasks, groups[0].plan.workers);
  vx_parallel(run_chunk, &pool, quotient_up(tasks, pool.chunk));
  free(groups);
  return pool.out_of_memory;
}
