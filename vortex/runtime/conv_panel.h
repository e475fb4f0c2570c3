/* What the walks of a direct convolution share: the call cut into tasks, one panel of filters, and what is done around its tiles. */
#ifndef VORTEX_CONV_PANEL_H
#define VORTEX_CONV_PANEL_H

#include "streams.h"

#include <stdatomic.h>

typedef struct {
  const vx_conv *conv;
  const vx_conv_plan *plan;
  int64_t depth, share, panels, width; /* channels and filters of a group, panels of its filters and their width */
  int64_t sets;                        /* panels of all groups */
  int64_t tiles, units, units_per_task, panels_per_task, block;
  int turn_x, turn_y, lines, staged;
  int by_channel; /* vectors run along the channels of all groups, of `group` channels each */
  int64_t group;
  const vx_block *blocks; /* that outputs are made in, or NULL */
  int64_t turned_extras; /* operands of the store stage that are turned as the outputs are */
  int far; /* operands come from memory */
  int64_t pixel, columns; /* floats between the pixels of turned inputs, and pixels of a row of them */
  int64_t turned_floats; /* of a block's inputs that are turned or staged */
  int64_t window;        /* floats of what a tile of lines sees */
  int64_t w_s, w_r; /* floats between columns and rows of a packed filter */
  int64_t pass_s, pass_r; /* columns and rows of a filter that a pass takes, at most */
  int streams;         /* see streams.h; outputs then lie in whole lines, if a panel begins with one */
  int64_t sums_floats; /* of one tile, if these are all that there is to its outputs */
  atomic_int out_of_memory;
} job;

/* One panel: its weights, its group's part of the input and its part of the output, as `conv` strides them; and the pass over it that
 * is at work, of the filter's taps [r, r_end) x [s, s_end), after which there may be `more`. */
typedef struct {
  const job *work;
  const vx_conv *conv;
  const float *x, *w;
  float *y, *window;
  const float *extras[VX_EXTRAS]; /* of the store stage: of this panel's first filter, of the output at y */
  int64_t columns, vectors;
  int32_t last;
  int64_t r, r_end, s, s_end;
  int32_t begun, more, how;
  float *sums; /* room for the sums of a tile on their way past the caches, or NULL: they go to their place */
} panel;

/* Taps `first` to `end` of a filter side whose first one lies at `origin`, which may be outside of 0 to `extent`. */
static inline void taps_inside(int64_t origin, int64_t taps, int64_t dilation, int64_t extent, int64_t *first, int64_t *end) {
  *first = origin >= 0 ? 0 : smaller(taps, quotient_up(-origin, dilation));
  *end = origin >= extent ? 0 : smaller(taps, quotient_up(extent - origin, dilation));
  if (*end < *first) *end = *first;
}

/* The stride, the same both ways, of a channel to a filter of so many taps each way that lie side by side; 0 for other convolutions. */
#define VX_TAPS 3
static inline int64_t vx_stride_of_three(const vx_conv *c) {
  int usual = c->kernel_w == VX_TAPS && c->kernel_h == VX_TAPS && c->dilation_w == 1 && c->dilation_h == 1 && c->groups == c->channels;
  return usual && c->stride_w == c->stride_h ? c->stride_w : 0;
}

/* Floats of the sums of one tile. */
#define SUMS (VX_CONV_ROWS * VX_CONV_VECTORS * LINE_FLOATS)

/* Columns and rows of a filter that one pass takes: of a panel as much as the second cache keeps, in parts of like size. Mirrored by
 * conv_selector.passes. */
static inline void vx_passes(const vx_conv *c, int64_t family, int64_t *columns, int64_t *rows) {
  *columns = c->kernel_w;
  *rows = c->kernel_h;
  if (family != VX_DIRECT_FAMILY) return;
  int64_t taps = larger(1, vx_conv_kept / (4 * larger(1, c->channels / c->groups) * vx_panel));
  *columns = even_part(c->kernel_w, larger(1, smaller(c->kernel_w, taps / c->kernel_h)), 1);
  *rows = even_part(c->kernel_h, smaller(c->kernel_h, taps), 1);
}

/* Asks for `pixels` that are `stride` floats apart, `floats` of each. Those of a depthwise filter that come from memory are asked for ahead, line
 * by line: a tile takes its vectors across the pixels, which is no stream that a prefetcher would follow. Twice as fast, measured. A function
 * that does nothing but prefetch is pure to GCC, and calls of it are dropped. */
#define VX_ALWAYS_INLINE inline __attribute__((always_inline))
static VX_ALWAYS_INLINE void vx_fetch_pixels(const float *first, int64_t pixels, int64_t stride, int64_t floats) {
  for (int64_t i = 0; i < pixels; i++)
    for (int64_t j = 0; j < floats; j += LINE_FLOATS) __builtin_prefetch(first + i * stride + j);
}

/* conv.c: the store stage on finished `sums`, rows `apart` from each other, which are in place or those of the panel: rows of extras per
 * element lie as the rows of outputs do, or are turned as those are; and zeros into outputs `first` to `end`. */
void vx_conv_finish(const panel *p, const float *sums, int64_t apart, float *out, int64_t rows, int64_t ldc);
void vx_conv_clear(const panel *p, float *out, int64_t first, int64_t end, int64_t ldc);

/* conv_depthwise.c: one row of output pixels, a channel to a filter: any filter, and the usual ones, which `slides` tells. */
void vx_conv_depthwise(const panel *p, int64_t unit);
void vx_conv_sliding(const panel *p, int64_t unit);
int vx_conv_slides(const vx_conv *c);

/* conv_falling.c: output rows `unit` to `end`, tiles of which walk down; and whether they can, so many rows at a time. */
void vx_conv_falling(const panel *p, int64_t unit, int64_t end);
int vx_conv_falls(const panel *p, int64_t rows);

/* conv_block.c: output rows `unit` to `end` by the blocks of the call; and those that it has, or NULL. */
void vx_conv_blocks(const panel *p, int64_t unit, int64_t end);
const vx_block *vx_conv_block(const vx_conv *c);

#endif
