/* L1 of the streamed family: whole rows of B past all rows of C, which pass through L1 once for each few rows of B. */
#include "vortex_runtime.h"

/* Kernels of few rows of A ask L1 for lines from within the outermost cache at the same place of the next rows of B, if those are so few
 * elements that L1 has room for both: no row begins unasked for. A Zen 4 begins rows by itself, and sooner so: half of each of 1x1024x1000 on
 * each of two cores 38 us, asked for 58. */
#define NEXT_ROWS 6144

int32_t vx_streamed_nest(const float *a, const float *b, float *c, float *scratch_a, float *scratch_b, int64_t m, int64_t first,
                         int64_t end, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, int64_t panel, int64_t panel_stride,
                         int64_t tile_m, int64_t tile_n, int64_t tile_k, int64_t rows, int64_t vectors, int32_t how,
                         const vx_store *store, int32_t finish) {
  (void)scratch_a, (void)scratch_b, (void)tile_m, (void)tile_n, (void)vectors;
  const vx_streamed *tiles = vx_streamed_tiles[(how & VX_NEAR) != 0];
  int64_t p = 0, ahead = !vx_roomy && (end - first) * tile_k <= NEXT_ROWS ? tile_k * ldb : vx_streamed_ahead;
  if (panel_stride) /* packed: all of k at once */
    vx_panels_tiles[m](a, b + first / panel * panel_stride, c + first, end - first, k, lda, panel_stride, ldc, how & VX_ADDS);
  else
    do {
      int64_t depth = smaller(tile_k, k - p);
      for (int64_t i = 0; i < m; i += rows)
        tiles[smaller(rows, m - i)](a + i * lda + p, b + p * ldb + first, c + i * ldc + first, end - first, depth, lda, ldb, ldc,
                                    ahead, (how & VX_ADDS) || p);
      p += depth;
    } while (p < k);
  if (finish) vortex_store(store, c + first, ldc, 0, first, m, end - first);
  return 0;
}
