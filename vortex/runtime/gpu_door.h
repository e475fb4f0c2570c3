/* What the door of a GPU library, its selector and the launcher (gpu_launcher.py, by ctypes) agree on. */
#ifndef VORTEX_GPU_DOOR_H
#define VORTEX_GPU_DOOR_H

#include "gpu_place.h"

#include <stddef.h>
#include <stdint.h>

#define VX_DOOR_ABI 7
#define VX_MOST_PARAMETERS 24
#define VX_GPU_STEP 16 /* elements: cut there, both regions are aligned as the call is */
#define VX_MOST_EXTRAS 4 /* tensors that an epilogue reads */

/* What the selector writes: a kernel of the library, in how many pieces the reduction is cut, elements of k in each. */
typedef struct {
  int32_t kernel, splits, chunk, raster;
  float seconds;
} vx_gpu_plan;

/* One plan for all of C, or two: the first for `at` rows (columns where `along_n`), the second for what is left. */
typedef struct {
  int32_t count, along_n, at;
  vx_gpu_plan plans[2];
} vx_gpu_regions;

/* All that the choice depends on. `alignment`: every row of A, B and C starts on, and is long, a multiple of 16, 8, 4, 2 or 1 bytes. */
typedef struct {
  int64_t m, n, k, batch; /* of one product, and how many there are */
  int32_t transpose_a, transpose_b, alignment;
  float seen; /* bytes of A in memory over those of m x k elements: less than 1 where taps of a filter see the same input */
} vx_gpu_shape;

/* Linked in with the library. `workspace` bytes may be used by partial sums. `kernel` is -1 where none serves the shape. */
void vx_gpu_choose(const vx_gpu_shape *shape, int64_t workspace, vx_gpu_plan *plan);
void vx_gpu_divide(const vx_gpu_shape *shape, int64_t workspace, int32_t may_cut, vx_gpu_regions *regions);

/* Parameters of a kernel by number; gpu_launcher.PARAMETERS has their names. */
enum {
  VX_A = 0, VX_B, VX_C, VX_W, VX_M, VX_N, VX_K, VX_LDA, VX_LDB, VX_LDC, VX_CHUNK, VX_SPLITS, VX_RASTER, VX_MAP_A, VX_MAP_B,
  VX_FINISHED_C, VX_FINISHED_W, VX_BATCH, VX_PARTS, VX_GROUPS, VX_WINDOW, VX_PARAMETERS
};

/* What a kernel with an epilogue takes in the place of C: where sums go, and its tensors; strides in elements, 0 where shared. */
typedef struct {
  void *c;
  const void *operand[VX_MOST_EXTRAS];
  int64_t row[VX_MOST_EXTRAS], column[VX_MOST_EXTRAS];
  int64_t apart[VX_MOST_EXTRAS][2]; /* bytes along the axes of a batch, outer first; of groups, between rows and between groups */
  int64_t at[2]; /* of a product along those axes */
} vx_gpu_finished;

/* How the products of a batch lie, which blockIdx.y counts: bytes along up to two axes, outer first; 0 where one serves all. `w`
 * is the workspace; partial sums are written with it in the place of C. */
typedef struct {
  int64_t inner, first, a[2], b[2], c[2], w[2];
} vx_gpu_batches;

#define VX_MOST_GROUPS 256 /* of a launch: what 4 KiB of parameters have room for */

/* How groups of rows lie. `rows` and `tiles` are how many come before each group of the launch, and in all; bytes between rows of
 * A (columns, where it is turned over), matrices of B and rows of C. */
typedef struct {
  int64_t a, b, c;
  int32_t count, first; /* groups of this launch, and how many come before them */
  int32_t rows[VX_MOST_GROUPS + 1], tiles[VX_MOST_GROUPS + 1];
} vx_gpu_row_groups;

/* x / by as x * times >> shift, for 0 <= x < 2^31. */
typedef struct {
  uint32_t times;
  int32_t by, shift;
} vx_gpu_divisor;

/* How a filter walks the input of a convolution: elements between its images, rows and columns; zeros above and left of it. */
typedef struct {
  int64_t image, row, column;
  int32_t height, width, stride[2], before[2], dilation[2];
  vx_gpu_divisor pixels, columns, channels, taps; /* of an image of C; of a row of it; of a tap; of a row of the filter */
} vx_gpu_window;

/* What a convolution is told beside its tensors. */
typedef struct {
  int64_t is_turned; /* whether channels are the second dimension of x and y */
  int64_t stride[2], before[2], dilation[2], groups;
} vx_gpu_filter;

/* A tensor of an epilogue: [n] per column, [m] per row, [m, n] per element; of a batch with its axes in front, of groups [groups, n]. */
enum { VX_PER_COLUMN = 0, VX_PER_ROW, VX_PER_ELEMENT };
typedef struct {
  int32_t per, code, bits;
} vx_gpu_extra;

/* One symbol of a cubin. */
typedef struct {
  void *function;
  uint32_t block[3], shared_bytes;
  int32_t parameter_count;
  uint8_t parameters[VX_MOST_PARAMETERS];
} vx_gpu_entry;

/* One kernel of the selector. `split` writes partial sums to the workspace; -1 where it cannot be split. */
typedef struct {
  int32_t direct, split;
  int32_t tile_m, tile_n, tile_k;
  int32_t transpose_a, transpose_b, vector_bytes;
  uint32_t box_a[2], box_b[2]; /* of the TMA descriptors, contiguous extent first; 0 where there are none */
  int32_t cluster;             /* blocks that compute a tile together */
  int32_t staying;             /* blocks that take one tile after the other, as many as run at a time; 0: one for each tile */
} vx_gpu_kernel;

typedef struct {
  vx_gpu_place place;
  const vx_gpu_entry *entries;
  const vx_gpu_kernel *kernels;
  int32_t kernel_count, reduce;     /* the entry that adds partial sums up, -1 if no kernel splits */
  int32_t reduce_columns;           /* elements of C of one block of it */
  int32_t dtype_code, dtype_bits;   /* of A and B, as DLPack writes them */
  int32_t out_code, out_bits;       /* of C */
  int32_t map_type;                 /* CUtensorMapDataType */
  int32_t wide;                     /* whether kernels address more than 2^31 elements of an operand */
  int32_t is_batched;               /* whether operands have batch axes and kernels take them */
  int32_t is_grouped;               /* whether kernels take groups of rows */
  int32_t finishes, extra_count;    /* whether sums go through an epilogue, and how many tensors it reads */
  vx_gpu_extra extras[VX_MOST_EXTRAS];
  int64_t workspace_bytes;
} vx_gpu_setup;

#endif
