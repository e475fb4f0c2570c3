/* L1 of the held family: some rows past all vectors of B, one after the other, then the next rows. */
#include "vortex_runtime.h"

int32_t vx_held_nest(const float *a, const float *b, float *c, float *scratch_a, float *scratch_b, int64_t m, int64_t first,
                     int64_t end, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, int64_t panel, int64_t panel_stride,
                     int64_t tile_m, int64_t tile_n, int64_t tile_k, int64_t rows, int64_t vectors, int32_t accumulate,
                     const vx_store *store, int32_t finish) {
  (void)scratch_a, (void)scratch_b, (void)tile_n, (void)rows, (void)vectors;
  int64_t steps = k > tile_k ? quotient_up(k, tile_k) : 1, depth = quotient_up(k, steps);
  for (int64_t i = 0; i < m; i += tile_m) {
    int64_t height = smaller(tile_m, m - i);
    for (int64_t j = first; j < end; j += vx_lanes) {
      int64_t wide = smaller(vx_lanes, end - j);
      const float *from = b + j / panel * panel_stride + j % panel;
      float *to = c + (finish == VX_STORE_ONE_TILE ? first : i * ldc + j);
      for (int64_t s = 0, p = 0; s < steps; s++, p += depth)
        vx_held_tile(a + i * lda + p, from + p * ldb, to, height, smaller(depth, k - p), lda, ldb, ldc, (int32_t)wide, accumulate || s);
      if (finish) vortex_store(store, to, ldc, i, j, height, wide);
    }
  }
  return 0;
}
