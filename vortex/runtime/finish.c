/* Micro-kernels with the store stage in them: the place of the output and of what the chain reads, for one register tile. */
#include "streams.h"

int32_t vortex_finish(int32_t rows, int32_t vectors, const float *a, const float *b, int64_t depth, int64_t lda, int64_t ldb,
                      int32_t last, const float *ahead, int64_t every, const vx_store *store, int64_t row, int64_t column) {
  const vx_extra *x = store->extras;
  const void *at[VX_EXTRAS] = {0};
  char *out = (char *)store->out + (row * store->row_stride + column) * (vx_out.bits / 8);
  for (int64_t e = 0; e < vx_operand_count; e++) at[e] = vx_operand_at(store, e, row, column);
  int64_t columns = (vectors - 1) * vx_lanes + last;
  int past = store->past && vx_in_whole_lines(out, columns, store->row_stride);
  if (!past) vx_own_next(store, out, column, rows, columns);
  int32_t how = vx_quads | store->padded | (past ? VX_STREAMS : 0);
  return vx_finish_tiles[vectors][rows](a, b, out, depth, lda, ldb, store->row_stride, last, ahead, every, how, at[0], x[0].row_stride,
                                        at[1], x[1].row_stride, at[2], x[2].row_stride, at[3], x[3].row_stride);
}
