/* Plans of both families made ready to run: what regions of one call share a pool of tasks with. */
#ifndef VORTEX_TASKS_H
#define VORTEX_TASKS_H

#include "vortex_runtime.h"

#include <stdatomic.h>

typedef struct {
  vx_call call;         /* turned over if the strategy is */
  const vx_call *whole; /* as it was given */
  const vx_strategy *strategy;
  vx_nest nest;
  int64_t grid_m, grid_n, splits, tile_k, rows_per_task, columns_per_task;
  float *parts;
  atomic_int out_of_memory;
} vx_outer;

typedef struct {
  const vx_call *call;
  const void *x, *y;
  int32_t flip_x, flip_y, times; /* of bytes, see vx_dot */
  int32_t per_sum, per_step;     /* an offset of vx_dot: so often the sum of the column, and so much for each step of k */
  float *parts;
  int64_t rows, columns, ldx, ldy, rows_per_task, blocks, splits;
  int64_t width, followed; /* columns of each tile, and most rows */
  int near;                /* whether the rows come from within the outermost cache, and have kernels for that */
  int64_t ahead;           /* how far ahead each row of a tile is asked for, if it is the next of a long stream; else 0 */
  int64_t line;            /* how far apart every task lays the columns anew for itself, each from the beginning of a line; 0: not */
  int turned;              /* and that it takes them out of a B by rows */
  atomic_int out_of_memory;
  int over_b;              /* the rows are those of B as stored, columns of C */
} vx_dotted;

/* VX_PADDED where B lies in panels, or is packed into some; else 0. */
static inline int32_t vx_padded(const vx_call *call, const vx_strategy *s) { return call->packed || s->pack_b ? VX_PADDED : 0; }

/* nest.c: whether the nest of a task of so many rows and columns keeps panels; whether packed ones pass so many rows abreast; steps of k that a
 * tile of L1 takes in tasks of so many rows. */
int vx_keeps_panels(const vx_call *call, const vx_strategy *s, int64_t rows, int64_t columns);
int vx_passes_abreast(const vx_call *call, const vx_strategy *s, int64_t rows);
int64_t vx_tile_depth(const vx_strategy *s, const vx_call *call, int64_t rows);

/* L1 nests over `m` rows from `row`, columns `column` to `end` and a part of k; `c` is where the first of them goes, rows `ldc` apart.
 * `store` is seen from that row and from column 0. */
void vx_run_nest(const vx_outer *work, const vx_part *part, float *scratch, int64_t a_floats, int64_t row, int64_t m, int64_t column,
                 int64_t end, float *c, int64_t ldc, const vx_store *store, int32_t finish);

/* execute.c; the task `index` of the plan. */
void vx_make_outer(vx_outer *work, const vx_call *call, const vx_plan *plan);
void vx_run_outer(void *outer, int64_t index);

/* dot.c: the operands by their roles. */
void vx_dots_of(const vx_call *call, const vx_plan *plan, vx_dotted *dotted);
void vx_run_dots(void *dotted, int64_t index);

#endif
