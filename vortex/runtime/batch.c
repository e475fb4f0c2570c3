/* L2 of a batch: every product cut into the same grid of tasks, all of them in one pool. */
#include "batch.h"

#include <stdatomic.h>

/* Multiply-adds that make claiming a task worth its while, and claims per thread that still balance well. */
#define WORTH (1 << 17)
#define CLAIMS 8

typedef struct {
  const vx_batch *batch;
  const vx_plan *plan;
  int64_t cells, units, chunk;
  atomic_int out_of_memory;
} job;

int64_t vx_chunk(double multiply_adds, int64_t tasks, int64_t workers) {
  if (workers < 2 || tasks < 2) return tasks > 1 ? tasks : 1;
  double most = (double)tasks / (double)(workers * CLAIMS), wanted = WORTH * (double)tasks / (multiply_adds + 1);
  return 1 + (int64_t)(wanted < most ? wanted : most);
}

vx_call vx_moved(const vx_call *call, int64_t a, int64_t b, int64_t c) {
  vx_call moved = *call;
  moved.a = (const float *)((const char *)call->a + a * VX_ITEM);
  moved.b = (const float *)((const char *)call->b + b * (call->packed ? (int64_t)sizeof(float) : VX_ITEM));
  moved.c = (float *)((char *)call->c + c * (vx_out.bits / 8));
  return moved;
}

void vx_move_extra(vx_call *call, int64_t x, int64_t elements) {
  call->extras[x].data = (const char *)call->extras[x].data + elements * (vx_operands[x].bits / 8);
}

static void swap_axes(vx_batch *batch) {
  int64_t *each[4 + VX_EXTRAS] = {batch->extents, batch->a, batch->b, batch->c};
  for (int x = 0; x < VX_EXTRAS; x++) each[4 + x] = batch->extras[x];
  for (int i = 0; i < 4 + VX_EXTRAS; i++) {
    int64_t outer = each[i][0];
    each[i][0] = each[i][1];
    each[i][1] = outer;
  }
}

/* Make the inner axis rows of C, where all of it shares one B and the rows of its products follow each other. */
static int into_rows(vx_batch *batch) {
  vx_call *call = &batch->call;
  if (batch->b[1] != 0) return 0;
  for (int64_t x = 0; x < vx_operand_count; x++)
    if (batch->extras[x][1] != call->m * call->extras[x].row_stride && (call->m > 1 || vx_operands[x].per == VX_PER_COLUMN)) return 0;
  if (call->m == 1 && !call->transpose_a && batch->a[1] >= call->k && batch->c[1] >= call->n) {
    call->lda = batch->a[1];
    call->ldc = batch->c[1];
  } else if (batch->a[1] != call->m * (call->transpose_a ? 1 : call->lda) || batch->c[1] != call->m * call->ldc) {
    return 0;
  }
  for (int64_t x = 0; x < vx_operand_count && call->m == 1; x++) call->extras[x].row_stride = batch->extras[x][1];
  call->m *= batch->extents[1];
  return 1;
}

/* Make the inner axis columns of C, where all of it shares one A. */
static int into_columns(vx_batch *batch) {
  vx_call *call = &batch->call;
  if (batch->a[1] != 0 || call->packed || batch->c[1] != call->n) return 0;
  for (int64_t x = 0; x < vx_operand_count; x++)
    if (batch->extras[x][1] != call->n * call->extras[x].column_stride) return 0;
  if (call->n == 1 && call->transpose_b && batch->b[1] >= call->k)
    call->ldb = batch->b[1];
  else if (batch->b[1] != call->n * (call->transpose_b ? call->ldb : 1))
    return 0;
  call->n *= batch->extents[1];
  return 1;
}

static void drop_inner(vx_batch *batch) {
  batch->extents[1] = 1;
  swap_axes(batch); /* the other axis is the inner one from now on */
}

void vx_fold(vx_batch *batch) {
  for (int tries = 0; tries < 3; tries++) {
    if (batch->extents[1] == 1) {
      swap_axes(batch);
    } else if (into_rows(batch) || into_columns(batch)) {
      drop_inner(batch);
    } else if (batch->extents[0] != 1) {
      swap_axes(batch); /* perhaps the outer one can be; then the order of products in memory is restored below */
    }
  }
  if (batch->extents[0] == 1 || batch->extents[1] == 1) {
    if (batch->extents[1] == 1) swap_axes(batch);
    return;
  }
  if (batch->c[0] < batch->c[1]) swap_axes(batch);
  int64_t inner = batch->extents[1];
  for (int64_t x = 0; x < vx_operand_count; x++)
    if (batch->extras[x][0] != inner * batch->extras[x][1]) return;
  if (batch->a[0] == inner * batch->a[1] && batch->b[0] == inner * batch->b[1] && batch->c[0] == inner * batch->c[1]) {
    batch->extents[1] *= batch->extents[0];
    batch->extents[0] = 1;
  }
}

int64_t vx_products(const vx_batch *batch) { return batch->extents[0] * batch->extents[1]; }

static int64_t different(const vx_batch *batch, const int64_t *strides) {
  return (strides[0] ? batch->extents[0] : 1) * (strides[1] ? batch->extents[1] : 1);
}

vx_plan vx_select_products(const vx_batch *batch, int64_t threads) {
  return vx_recall_batch(&batch->call, vx_products(batch), different(batch, batch->a), different(batch, batch->b), threads);
}

static void run_chunk(void *context, int64_t index) {
  job *work = context;
  const vx_batch *batch = work->batch;
  int64_t unit = index * work->chunk, end = unit + work->chunk;
  if (end > work->units) end = work->units;
  for (; unit < end; unit++) {
    int64_t product = unit / work->cells, outer = product / batch->extents[1], inner = product % batch->extents[1];
    vx_call call = vx_moved(&batch->call, outer * batch->a[0] + inner * batch->a[1], outer * batch->b[0] + inner * batch->b[1],
                            outer * batch->c[0] + inner * batch->c[1]);
    call.outputs = call.m * call.n * vx_products(batch);
    for (int64_t x = 0; x < vx_operand_count; x++) vx_move_extra(&call, x, outer * batch->extras[x][0] + inner * batch->extras[x][1]);
    if (vx_execute_task(&call, work->plan, unit % work->cells)) atomic_store(&work->out_of_memory, 1);
  }
}

int vx_execute_batch(const vx_batch *batch, const vx_plan *plan) {
  const vx_call *call = &batch->call;
  job work = {.batch = batch, .plan = plan, .cells = plan->grid_m * plan->grid_n};
  work.units = vx_products(batch) * work.cells;
  double multiply_adds = (double)vx_products(batch) * (double)call->m * (double)call->n * (double)call->k;
  work.chunk = vx_chunk(multiply_adds, work.units, plan->workers);
  vx_parallel(run_chunk, &work, quotient_up(work.units, work.chunk));
  return work.out_of_memory;
}
