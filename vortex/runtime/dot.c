/* The dot family: both operands are read along k, the long side of C in tiles of rows, the short side in one tile of columns. */
#include "vortex_runtime.h"

/* Elements: a cache line, how far to fetch ahead, and the longest row for which that is done all along it. */
#define LINE 16
#define AHEAD 1024
#define SHORT 2048
#define FIRST 128

typedef struct {
  const float *x, *y;
  float *c;
  int64_t rows, columns, depth, ldx, ldy, row_stride, column_stride, rows_per_task;
  int32_t accumulate;
} job;

static int64_t short_side(const vx_call *call) {
  return call->transpose_b && call->m < call->n ? call->m : call->n;
}

int64_t vx_dot_columns(const vx_call *call) {
  int64_t columns = short_side(call);
  if (call->packed || call->transpose_a || columns >= VX_DOT_MOST) return 0;
  return vx_dot_rows[columns] ? columns : 0;
}

static void run_task(void *context, int64_t index) {
  const job *work = context;
  int64_t row = index * work->rows_per_task, end = row + work->rows_per_task;
  if (end > work->rows) end = work->rows;
  int64_t tallest = vx_dot_rows[work->columns], ahead = work->depth < FIRST ? work->depth : FIRST;
  int dense = work->ldx == work->depth && work->depth <= SHORT;
  while (row < end) {
    int64_t height = end - row < tallest ? end - row : tallest;
    /* A new row is a new stream to the hardware: ask for the first lines of the next tile's before they are needed. */
    for (int64_t k = 0; dense && k < height * work->depth; k += LINE)
      __builtin_prefetch(work->x + row * work->ldx + AHEAD + k);
    for (int64_t r = row + height; !dense && r < row + height + tallest && r < end; r++)
      for (int64_t k = 0; k < ahead; k += LINE) __builtin_prefetch(work->x + r * work->ldx + k);
    vx_dots[work->columns][height](work->x + row * work->ldx, work->y, work->c + row * work->row_stride, work->depth,
                                   work->ldx, work->ldy, work->row_stride, work->column_stride, work->accumulate);
    row += height;
  }
}

int vx_execute_dot(const vx_call *call, int64_t tasks) {
  job work = {.columns = short_side(call), .depth = call->k, .accumulate = call->accumulate};
  int over_b = call->transpose_b && call->m < call->n; /* the rows are those of B as stored */
  work.x = over_b ? call->b : call->a;
  work.ldx = over_b ? call->ldb : call->lda;
  work.rows = over_b ? call->n : call->m;
  work.y = over_b ? call->a : call->b;
  work.ldy = over_b ? call->lda : call->ldb;
  work.c = call->c;
  work.row_stride = over_b ? 1 : call->ldc;
  work.column_stride = over_b ? call->ldc : 1;
  if (!call->transpose_b && !(call->n == 1 && call->ldb == 1)) {
    int64_t line = (call->k + LINE - 1) / LINE * LINE; /* no vector of it straddles two lines */
    float *turned = vx_scratch((size_t)(line * call->n + 1) * sizeof(float));
    if (!turned) return 1;
    vortex_transpose(call->b, turned, call->n, call->k, call->ldb, line);
    work.y = turned;
    work.ldy = line;
  }
  int64_t tallest = vx_dot_rows[work.columns];
  work.rows_per_task = ((work.rows + tasks - 1) / tasks + tallest - 1) / tallest * tallest;
  vx_parallel(run_task, &work, tasks);
  return 0;
}
