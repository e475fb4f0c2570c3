/* Winograd convolution: what its emitted transforms, its executor and its selection agree on. */
#ifndef VORTEX_WINOGRAD_H
#define VORTEX_WINOGRAD_H

#include "vortex_runtime.h"

/* F(tile x tile, 3 x 3); `points` is (tile + 2)^2. The emitted stages are described in codegen/cpu_winograd.py. */
typedef struct {
  int64_t tile, points;
  int32_t (*filter)(const float *source, float *target, int64_t channels, int64_t width);
  int32_t (*input)(const float *source, float *target, int64_t tiles, int64_t channels, int64_t row, int64_t column,
                   int64_t height, int64_t width, int64_t row_stride, int64_t pixel_stride, int64_t tile_stride,
                   int64_t point_stride);
  int32_t (*output)(const float *source, float *target, int64_t tiles, int64_t filters, int64_t rows, int64_t columns,
                    int64_t row_stride, int64_t pixel_stride, int64_t tile_stride, int64_t point_stride, int32_t how);
} vx_winograd;

/* Blocks of at most `tiles` tiles and `panels` panels of filters; L2 cuts both into a grid of tasks. */
typedef struct {
  int64_t strategy, algorithm, tiles, panels, grid_tiles, grid_panels;
  float alone, seconds; /* predicted, of the best on one thread and of this one */
} vx_winograd_plan;

extern const vx_winograd vx_winograds[];
extern const int64_t vx_winograd_width, vx_winograd_rows; /* of the register tile, in elements */

/* L0 of any register tile of the library. */
int32_t vortex_l0_row(const float *a, const float *b, float *c, int64_t depth, int64_t lda, int64_t ldb, int64_t ldc, int32_t last,
                      int32_t accumulate, const float *ahead, int64_t every, int64_t beyond, float *kept, int32_t rows, int32_t vectors);

/* Whether `channels` are apart in memory, so that they are brought together on the way. */
static inline int vx_turns(const int64_t *stride, int64_t channels) { return stride[3] != 1 && channels > 1; }

/* Compiled from the cost model: predicted seconds of each algorithm, VX_WINOGRAD_PRICED of them with those that fill the vector. */
extern const float vx_winograd_columns[];
void vortex_winograd_costs(const float *strategies, const float *slopes, float *totals, int32_t blocks, float batch, float out_h, float out_w,
                           float channels, float filters, float input_bytes, float full, float rest, float vectors, float rows,
                           float turn_x, float turn_y, float unpacked, float grid_m, float grid_n, float active);

/* winograd_select.c: whether Winograd computes it; the plan of a strategy; floats of the packed weights; the plan of
 * least time among the algorithms whose bits are set in `offered`. */
int vx_winograd_suits(const vx_conv *conv);
vx_winograd_plan vx_winograd_planned(int64_t strategy, int64_t grid_tiles, int64_t grid_panels);
int64_t vx_winograd_floats(int64_t filters, int64_t channels, int64_t algorithm);
vx_winograd_plan vx_select_winograd(const vx_conv *conv, int64_t offered, int64_t unpacked, int64_t threads);

/* winograd.c: 0, or 1 when memory is out. `w` of the convolution is what vx_pack_winograd makes of dense OIHW weights: panels of
 * vx_winograd_width filters, each [points][channels][filters]. */
int vx_execute_winograd(const vx_conv *conv, const vx_winograd_plan *plan);
int vx_pack_winograd(const float *weights, float *target, int64_t filters, int64_t channels, int64_t algorithm);

#endif
