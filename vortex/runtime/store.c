/* The store stage of L1: finished sums through the emitted epilogue into the output. */
#include "vortex_runtime.h"

vx_store vx_store_of(const vx_call *call) {
  vx_store store = {.out = call->c, .row_stride = call->ldc};
  for (int x = 0; x < VX_EXTRAS; x++) store.extras[x] = call->extras[x];
  return store;
}

vx_store vx_store_from(const vx_store *store, int64_t row, int64_t column) {
  vx_store moved = *store;
  moved.out = (char *)store->out + (row * store->row_stride + column) * (vx_out.bits / 8);
  for (int64_t x = 0; x < vx_operand_count; x++)
    moved.extras[x].data = (const char *)store->extras[x].data + (row * store->extras[x].row_stride + column * store->extras[x].column_stride) * (vx_operands[x].bits / 8);
  return moved;
}

int32_t vortex_store(const vx_store *store, const void *c, int64_t ldc, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  vx_store at = vx_store_from(store, row, column);
  const vx_extra *x = at.extras;
  return vx_store_stage(c, at.out, rows, columns, ldc, at.row_stride, x[0].data, x[0].row_stride, x[1].data,
                        x[1].row_stride, x[2].data, x[2].row_stride, x[3].data, x[3].row_stride);
}
