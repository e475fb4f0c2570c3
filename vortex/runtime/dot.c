/* The dot family: both operands are read along k, the long side of C in tiles of rows, the short side in one tile of columns. */
#include "tasks.h"

/* Elements: a cache line, how far to fetch ahead, and the longest row for which that is done all along it. */
#define LINE 16
#define AHEAD 1024
#define SHORT 2048
#define FIRST 128
/* Tiles whose sums a store stage finishes together. */
#define TILES 8

static int64_t short_side(const vx_call *call) {
  return call->transpose_b && call->m < call->n ? call->m : call->n;
}

int64_t vx_dot_columns(const vx_call *call) {
  int64_t columns = short_side(call);
  if (call->packed || call->transpose_a || columns >= VX_DOT_MOST) return 0;
  return vx_dot_rows[columns] ? columns : 0;
}

/* Sums of a part of k for the rows `row` to `end`; the first goes to `c`. */
static void run_rows(const vx_dotted *work, const vx_part *part, int64_t row, int64_t end, float *c, int64_t row_stride,
                     int64_t column_stride) {
  const float *x = work->x + part->first, *y = work->y + part->first;
  int64_t tallest = vx_dot_rows[work->columns], ahead = part->depth < FIRST ? part->depth : FIRST;
  int dense = work->ldx == part->depth && part->depth <= SHORT;
  while (row < end) {
    int64_t height = end - row < tallest ? end - row : tallest;
    /* A new row is a new stream to the hardware: ask for the first lines of the next tile's before they are needed. */
    for (int64_t k = 0; dense && k < height * part->depth; k += LINE) __builtin_prefetch(x + row * work->ldx + AHEAD + k);
    for (int64_t r = row + height; !dense && r < row + height + tallest && r < end; r++)
      for (int64_t k = 0; k < ahead; k += LINE) __builtin_prefetch(x + r * work->ldx + k);
    vx_dots[work->columns][height](x + row * work->ldx, y, c, part->depth, work->ldx, work->ldy, row_stride, column_stride,
                                   part->accumulate);
    row += height;
    c += height * row_stride;
  }
}

void vx_run_dots(void *context, int64_t index) {
  const vx_dotted *work = context;
  int64_t row = index % work->blocks * work->rows_per_task, end = row + work->rows_per_task;
  vx_part part = vx_part_of(work->call, work->parts, work->splits, index / work->blocks);
  int64_t row_stride = work->over_b ? 1 : part.ldc, column_stride = work->over_b ? part.ldc : 1;
  if (end > work->rows) end = work->rows;
  if (!vx_store_stage || work->splits > 1) {
    run_rows(work, &part, row, end, part.c + row * row_stride, row_stride, column_stride);
    return;
  }
  float apart[TILES * 8 * VX_DOT_MOST];
  int64_t chunk = TILES * vx_dot_rows[work->columns];
  vx_store store = vx_store_of(work->call);
  if (vx_apart) {
    row_stride = work->over_b ? 1 : work->columns;
    column_stride = work->over_b ? chunk : 1;
  }
  for (; row < end; row += chunk) {
    int64_t stop = end - row < chunk ? end : row + chunk;
    float *c = vx_apart ? apart : part.c + row * row_stride;
    run_rows(work, &part, row, stop, c, row_stride, column_stride);
    if (work->over_b)
      vortex_store(&store, c, column_stride, 0, row, work->columns, stop - row);
    else
      vortex_store(&store, c, row_stride, row, 0, stop - row, work->columns);
  }
}

int vx_dots_of(const vx_call *call, const vx_plan *plan, vx_dotted *prepared) {
  int over_b = call->transpose_b && call->m < call->n;
  vx_dotted work = {.call = call, .columns = short_side(call), .blocks = plan->grid_m * plan->grid_n, .splits = plan->splits,
              .over_b = over_b};
  work.x = over_b ? call->b : call->a;
  work.ldx = over_b ? call->ldb : call->lda;
  work.rows = over_b ? call->n : call->m;
  work.y = over_b ? call->a : call->b;
  work.ldy = over_b ? call->lda : call->ldb;
  if (!call->transpose_b && !(call->n == 1 && call->ldb == 1)) {
    int64_t line = (call->k + LINE - 1) / LINE * LINE; /* no vector of it straddles two lines */
    /* Parts of k are in the shared scratch; else tasks of another region may use the other one while this is read. */
    float *turned = (plan->splits > 1 ? vx_scratch : vx_shared_scratch)((size_t)(line * call->n + 1) * sizeof(float));
    if (!turned) return 1;
    vortex_transpose(call->b, turned, call->n, call->k, call->ldb, line);
    work.y = turned;
    work.ldy = line;
  }
  int64_t tallest = vx_dot_rows[work.columns];
  work.rows_per_task = ((work.rows + work.blocks - 1) / work.blocks + tallest - 1) / tallest * tallest;
  *prepared = work;
  return 0;
}

int vx_execute_dot(const vx_call *call, const vx_plan *plan) {
  vx_dotted work;
  if (vx_dots_of(call, plan, &work)) return 1;
  if (plan->splits > 1 && !(work.parts = vx_parts(call, plan->splits))) return 1;
  vx_parallel(vx_run_dots, &work, work.blocks * work.splits);
  vx_add_parts(call, work.parts, plan->splits);
  return 0;
}

int vx_execute_dot_task(const vx_call *call, const vx_plan *plan, int64_t index) {
  vx_dotted work;
  if (vx_dots_of(call, plan, &work)) return 1;
  vx_run_dots(&work, index);
  return 0;
}
