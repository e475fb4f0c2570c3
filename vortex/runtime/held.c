/* L1 of the held family: some rows past all vectors of B, one after the other, then the next rows. Where the chain is
 * short the store stage is in the kernel of the last step. Of words k and strides of A are in elements, steps of k in words; panels of B
 * begin with a line for zero points, which products of floating point have none of. */
#include "streams.h"

/* The narrowest kernel that has room for so many columns. */
static int width_of(int64_t columns) {
  int width = 0;
  while (width + 1 < VX_HELD_WIDTHS && columns <= vx_lanes >> (width + 1)) width++;
  return width;
}

static const float *element(const float *a, int64_t place) { return (const float *)((const char *)a + place * VX_ITEM); }

int32_t vx_held_nest(const float *a, const float *b, float *c, float *scratch_a, float *scratch_b, int64_t m, int64_t first,
                     int64_t end, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, int64_t panel, int64_t panel_stride,
                     int64_t tile_m, int64_t tile_n, int64_t tile_k, int64_t rows, int64_t vectors, int32_t how,
                     const vx_store *store, int32_t finish) {
  (void)scratch_a, (void)scratch_b, (void)tile_n, (void)rows, (void)vectors;
  int accumulate = how & VX_ADDS, streams = how & VX_STREAMS, asks = how & (VX_NEAR | VX_INTO_L2);
  int64_t words = vx_depth(k), steps = words > tile_k ? quotient_up(words, tile_k) : 1, depth = quotient_up(words, steps) * VX_PER_WORD;
  for (int64_t i = 0; i < m; i += tile_m) {
    int64_t height = smaller(tile_m, m - i);
    for (int64_t j = first; j < end; j += vx_lanes) {
      int64_t wide = smaller(vx_lanes, end - j);
      int width = width_of(wide);
      const float *from = b + j / panel * panel_stride + j % panel + (VX_WORDS ? panel : 0);
      float *to = c + (finish == VX_STORE_ONE_TILE ? first : i * ldc + j);
      int64_t finished = finish && vx_held_finish_tiles[width], plain = steps - finished, last = plain * depth;
      for (int64_t s = 0, p = 0; s < plain; s++, p += depth)
        vx_held_tiles[width](element(a, i * lda + p), from + p / VX_PER_WORD * ldb, to, height, smaller(depth, k - p), lda, ldb, ldc,
                             (int32_t)wide, (accumulate || s ? VX_ADDS : 0) | (s + 1 == steps ? streams : 0) | asks);
      if (finished) {
        vx_store at = *store;
        vx_move_store(&at, i, j);
        const vx_extra *x = at.extras;
        vx_held_finish_tiles[width](element(a, i * lda + last), from + last / VX_PER_WORD * ldb, to, at.out, height, k - last, lda, ldb, ldc,
                            at.row_stride, (int32_t)wide, (accumulate || plain ? VX_ADDS : 0) | asks, x[0].data, x[0].row_stride, x[1].data, x[1].row_stride, x[2].data, x[2].row_stride,
                            x[3].data, x[3].row_stride);
      } else if (finish)
        vortex_store(store, to, ldc, i, j, height, wide);
    }
  }
  return 0;
}

#if !VX_WORDS
/* Columns of a transposed B that are turned over at a time: with all of a k that is short they stay in L2 while rows pass. */
#define TURNED 1024

/* From one step of k to the next of so many columns of a transposed B that were turned over. */
static int64_t turned_stride(int64_t columns) { return rounded(smaller(columns, TURNED), LINE_FLOATS) + LINE_FLOATS; }

int64_t vx_held_turned_floats(int64_t columns, int64_t k) { return turned_stride(columns) * k; }

int32_t vx_held_turning_nest(const float *a, const float *b, float *c, float *scratch_a, float *scratch_b, int64_t m, int64_t first,
                             int64_t end, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, int64_t panel, int64_t panel_stride,
                             int64_t tile_m, int64_t tile_n, int64_t tile_k, int64_t rows, int64_t vectors, int32_t how,
                             const vx_store *store, int32_t finish) {
  (void)panel, (void)panel_stride;
  int64_t stride = turned_stride(end - first);
  for (int64_t j = first; j < end; j += TURNED) {
    int64_t stop = smaller(j + TURNED, end);
    vortex_transpose(b + j * ldb, scratch_b, k, stop - j, ldb, stride);
    /* Sums of one tile lie at its beginning, whatever columns they are of. */
    float *to = finish == VX_STORE_ONE_TILE ? c - (j - first) : c;
    vx_held_nest(a, scratch_b - j, to, scratch_a, scratch_b, m, j, stop, k, lda, stride, ldc, stop, 0, tile_m, tile_n, tile_k, rows, vectors,
                 how, store, finish);
  }
  return 0;
}
#endif
