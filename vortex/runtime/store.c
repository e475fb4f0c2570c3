/* The store stage of L1: finished sums through the emitted epilogue into the output. */
#include "streams.h"

/* As the nests fetch a plain C: rows up to this many elements, this far ahead; more lines than these at a time into the second cache. */
#define SHORT 256
#define AHEAD_BYTES 4096
#define LINE_BYTES 64
#define WAITED_FOR 24

void vx_own_next(const vx_store *store, const void *out, int64_t column, int64_t rows, int64_t columns) {
  int64_t item = vx_out.bits / 8, bytes = rows * columns * item;
  if (store->row_stride > SHORT || (store->row_stride != columns && !store->in_order)) return;
  /* As much as the panels before this one have asked for of the next row tile, from where that begins. */
  int64_t shares = (rows - 1) * column * item, lead = store->in_order ? rows * store->row_stride * item : 0;
  const char *next = (const char *)out + shares + larger(lead, AHEAD_BYTES);
  if (bytes <= WAITED_FOR * LINE_BYTES)
    for (int64_t line = 0; line < bytes; line += LINE_BYTES) __builtin_prefetch(next + line, 1);
  else
    for (int64_t line = 0; line < bytes; line += LINE_BYTES) __builtin_prefetch(next + line, 0, 2);
}

vx_store vx_store_of(const vx_call *call) {
  vx_store store = {.out = call->c, .row_stride = call->ldc};
  for (int x = 0; x < VX_EXTRAS; x++) store.extras[x] = call->extras[x];
  return store;
}

void vx_move_store(vx_store *store, int64_t row, int64_t column) {
  for (int64_t x = 0; x < vx_operand_count; x++) store->extras[x].data = vx_operand_at(store, x, row, column);
  store->out = (char *)store->out + (row * store->row_stride + column) * (vx_out.bits / 8);
}

int32_t vortex_store(const vx_store *store, const void *c, int64_t ldc, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  char *out = (char *)store->out + (row * store->row_stride + column) * (vx_out.bits / 8);
  const vx_extra *x = store->extras;
  int past = store->past && c != out && vx_in_whole_lines(out, columns, store->row_stride);
  if (c != out && !past) vx_own_next(store, out, column, rows, columns);
  return (past ? vx_store_past : vx_store_stage)(c, out, rows, columns, ldc, store->row_stride, vx_operand_at(store, 0, row, column),
                                                 x[0].row_stride, vx_operand_at(store, 1, row, column), x[1].row_stride,
                                                 vx_operand_at(store, 2, row, column), x[2].row_stride,
                                                 vx_operand_at(store, 3, row, column), x[3].row_stride);
}
