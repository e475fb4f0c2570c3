/* Micro-kernels with the store stage in them: the place of the output and of what the chain reads, for one register tile. */
#include "vortex_runtime.h"

int32_t vortex_finish(int32_t rows, int32_t vectors, const float *a, const float *b, int64_t depth, int64_t lda, int64_t ldb,
                      int32_t last, const float *ahead, int64_t every, const vx_store *store, int64_t row, int64_t column) {
  vx_store at = vx_store_from(store, row, column);
  const vx_extra *x = at.extras;
  vx_own_next(store, at.out, rows, (vectors - 1) * vx_lanes + last);
  return vx_finish_tile(rows, vectors, a, b, at.out, depth, lda, ldb, at.row_stride, last, ahead, every, x[0].data, x[0].row_stride,
                        x[1].data, x[1].row_stride, x[2].data, x[2].row_stride, x[3].data, x[3].row_stride);
}
