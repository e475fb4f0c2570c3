/* Many products in one call: a batch of one shape, or groups of rows that share n and k. */
#ifndef VORTEX_BATCH_H
#define VORTEX_BATCH_H

#include "vortex_runtime.h"

/* Products of one shape along up to two axes, outer first; `call` is the first of them. Strides in elements, words of a packed B, 0 where
 * shared. */
typedef struct {
  vx_call call;
  int64_t extents[2], a[2], b[2], c[2], extras[VX_EXTRAS][2];
} vx_batch;

/* The same call, its operands so many elements further. */
vx_call vx_moved(const vx_call *call, int64_t a, int64_t b, int64_t c);
/* Operand number `x` of its store stage so many elements further. */
void vx_move_extra(vx_call *call, int64_t x, int64_t elements);

/* Axes become rows or columns of one product where the strides allow it, and two become one; then how many products are left. */
void vx_fold(vx_batch *batch);
int64_t vx_products(const vx_batch *batch);
/* The plan, and running it: 0, or 1 when memory is out. */
vx_plan vx_select_products(const vx_batch *batch, int64_t threads);
int vx_execute_batch(const vx_batch *batch, const vx_plan *plan);

/* How many tasks of a pool are claimed at once. */
int64_t vx_chunk(double multiply_adds, int64_t tasks, int64_t workers);

/* `rows[g]` rows of A and of C, one group after the other, each with its own B, `stride_b` elements apart, and with operands per column of
 * the store stage that may be its own as well. */
typedef struct {
  vx_call call; /* of all rows */
  const int64_t *rows;
  int64_t groups, stride_b, extras[VX_EXTRAS];
} vx_grouped;

/* How many groups of `m` rows would make up all rows: as a batch of so many a group is priced. */
int64_t vx_alike(int64_t total, int64_t m);
int vx_execute_grouped(const vx_grouped *work, int64_t threads);

#endif
