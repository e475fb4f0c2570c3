/* L1 of few rows by a packed B whose panels stream past abreast: each a few steps of k at a time, as many panels as have their sums in L1. */
#include "streams.h"

#include <string.h>

/* Panels that a core follows at once, and vectors of them all. One core of an Emerald Rapids, GB/s of 300 MB by 1, 2, 4 and 8 rows: panels of
 * 3 vectors one after the other 17, 16, 16 and 13, two abreast 18, 18, 16, 11, four 19, 20, 19, 13, eight 20, 21, 20 and 13; of 14 vectors
 * two 18, 18, 13, 10. */
#define MOST_ABREAST 8
#define MOST_VECTORS 24

int32_t vx_abreast_nest(const float *a, const float *b, float *c, float *scratch_a, float *scratch_b, int64_t m, int64_t first,
                        int64_t end, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, int64_t panel, int64_t panel_stride,
                        int64_t tile_m, int64_t tile_n, int64_t tile_k, int64_t rows, int64_t vectors, int32_t how,
                        const vx_store *store, int32_t finish) {
  (void)scratch_a, (void)scratch_b, (void)tile_m, (void)tile_n, (void)tile_k, (void)rows;
  enum { STRIDE = (VX_ABREAST_WIDEST + 1) * LINE_FLOATS }; /* rows of sums begin in different sets of L1 */
  _Alignas(64) float sums[VX_ABREAST_MOST * STRIDE];
  int64_t abreast = smaller(MOST_ABREAST, larger(MOST_VECTORS / vectors, smaller(VX_ABREAST_WIDEST / vectors, 2)));
  for (int64_t j = first, wide; j < end; j += wide) {
    int64_t whole = (end - j) / panel, panels = whole ? smaller(whole, abreast) : 1;
    wide = smaller(end - j, panels * panel);
    for (int64_t i = 0; i < m; i++) memset(sums + i * STRIDE, 0, (size_t)rounded(wide, LINE_FLOATS) * sizeof(float));
    if (how & VX_ADDS) vortex_copy(c + j, sums, m, wide, ldc, STRIDE);
    vx_abreast_tiles[m](a, b + j / panel * panel_stride, sums, panels, whole ? vectors : quotient_up(wide, vx_lanes), k, lda, ldb,
                        panel_stride, STRIDE);
    if (finish)
      vortex_store(store, sums, STRIDE, 0, j, m, wide);
    else
      vortex_copy(sums, c + j, m, wide, STRIDE, ldc);
  }
  return 0;
}
