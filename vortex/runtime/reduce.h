/* What the generated code of a library of reductions and the C around it agree on. */
#ifndef VORTEX_REDUCE_H
#define VORTEX_REDUCE_H

#include "vortex_runtime.h"

/* One reduction, already checked: out[outer, inner] from x[outer, depth, inner]; `out` is contiguous. Strides in elements.
 *
 * The depth is contiguous, or the inner axis is, or there is one inner element. */
typedef struct {
  const float *x;
  float *out;
  int64_t outer, depth, inner;
  int64_t outer_stride, depth_stride, inner_stride;
} vx_reduction;

typedef int32_t (*vx_reduce_rows)(const float *x, float *out, int64_t groups, int64_t depth, int64_t stride, int64_t step,
                                  float divisor);
typedef int32_t (*vx_reduce_columns)(const float *x, float *out, int64_t columns, int64_t depth, int64_t stride,
                                     int32_t accumulate, float divisor);

/* A tile of rows and its measured cost over one group: start + steps along the depth x slope, in seconds. */
typedef struct {
  int64_t rows, vectors;
  float start, slope;
  vx_reduce_rows run;
} vx_reduce_tile;

/* Generated with the library. */
extern const vx_reduce_tile vx_reduce_tiles[];
extern const int64_t vx_reduce_tile_count, vx_reduce_lanes;
extern const vx_reduce_columns vx_reduce_column_tile;
extern const int64_t vx_reduce_width;    /* columns of that tile */
extern const int64_t vx_reduce_grain;    /* bytes that one thread reads while another is started */
extern const int32_t vx_reduce_is_mean;
extern const int32_t vx_reduce_needs_one; /* nothing has no maximum */

/* One sweep of a reduction: over what it goes, by which tile (that of columns is the last), in which chunks of the depth, blocks of rows or
 * of columns, and tasks. Of contiguous rows without an inner axis, `inner` is how many there are. */
typedef struct {
  int64_t outer, depth, inner, tile, chunk, chunks, block, items, tasks;
} vx_reduce_sweep;

enum { VX_REDUCE_SWEEPS = 8 }; /* each leaves the next a 512th of the depth at most, which is below 2^62 */
/* The sweeps of a reduction by so many threads, in their order; how many. */
int64_t vx_reduce_sweeps(const vx_reduction *r, int64_t threads, vx_reduce_sweep *sweeps);
/* 0, or 1 when memory is out. */
int vx_reduce(const vx_reduction *r);

#endif
