/* What the generated code of one library and the little C around it agree on. */
#ifndef VORTEX_RUNTIME_H
#define VORTEX_RUNTIME_H

#include "integers.h"
#include "lent.h"

#include <stddef.h>

/* Elements that are multiplied in 32-bit words: how many a word has, and their bytes; lines of a panel of B come in multiples of
 * VX_WHOLE, those of a tile of AMX; whether there is a held family. Set for the libraries that have them. */
#ifndef VX_WORDS
#define VX_WORDS 0
#define VX_PER_WORD 1
#define VX_ITEM 4
#define VX_FLIPS 0
#define VX_WIDENED 0
#define VX_WHOLE 1
#define VX_HELD 1
#endif
/* Neighbours along k in a line of a packed B of words. Where B is quantized, VX_GROUP of them share a scale, all of a column if it is 0,
 * no weight is larger than VX_LARGEST, and VX_HEADS lines are before those of a group. */
#ifdef VX_PER_LINE
#define VX_WEIGHTS 1
#else
#define VX_PER_LINE VX_PER_WORD
#define VX_GROUP 0
#define VX_HEADS 1
#define VX_LARGEST 0
#define VX_WEIGHTS 0
#endif

/* One strategy: the L0 register tile, the L1 cache tile and its load and store stages. Extents in elements. */
typedef struct {
  int64_t rows, vectors;
  int64_t tile_m, tile_n, tile_k;
  int64_t rows_first, pack_a, pack_b;
  int64_t swap; /* computes C^T = B^T A^T and stores it transposed */
  int64_t dot;  /* vectors run along k; nothing above applies */
  int64_t held; /* B stays in registers, `tile_k` steps of k of one vector; `tile_m` rows pass before the next vector */
  int64_t streamed; /* `tile_k` rows of B at a time pass `rows` rows of C */
} vx_strategy;

/* What the selector writes: the strategy and how L2 cuts each product of a batch: the output into `grid_m` x `grid_n` blocks, and k
 * into `splits` parts. */
typedef struct {
  int64_t strategy, grid_m, grid_n, splits;
  int64_t workers; /* threads that share the tasks */
} vx_plan;

/* An operand of the store stage. Strides in elements; 0 along an axis that it is broadcast over. */
#define VX_EXTRAS 4
typedef struct {
  const void *data;
  int64_t row_stride, column_stride;
} vx_extra;

/* Where a store stage writes and what it reads: `out` and the extras are those of row 0 and column 0. */
typedef struct {
  void *out;
  int64_t row_stride;
  vx_extra extras[VX_EXTRAS];
  int32_t past; /* whole lines go past the caches, and who set this publishes them (streams.h) */
  int32_t in_order; /* row tiles are outermost, each past all columns of rows that follow each other */
  int32_t padded; /* VX_PADDED or 0, for micro-kernels that finish their sums */
} vx_store;

/* What a micro-kernel does with its sums: add them to C, write them past the caches (streams.h), or both. And whether a nest may ask L1
 * for what comes next (that of the held family asks for no line of C then), asks for nothing, has tiles of few rows share what is asked
 * for, trusts hardware to bring rows of A, has room to keep a panel of B, finds B packed where it would pack it, or (L0) loads four
 * elements of A at once; whether it asks for short rows of C before they are stored to, and for the next ones of A where they follow; and
 * whether the block of B that it packs is away, beyond L2. Whether rows of B end with whole vectors, of which some columns are none; whether
 * C that is asked for comes into L2, not L1; and whether it is far, so that tiles ask for that of the next one. */
enum {
  VX_ADDS = 1,
  VX_STREAMS = 2,
  VX_NEAR = 4,
  VX_QUIET = 8,
  VX_SHARES = 16,
  VX_TRUSTS = 32,
  VX_KEEPS = 64,
  VX_QUADS = 128,
  VX_FILLED = 256,
  VX_OWNS = 512,
  VX_LEADS = 1024,
  VX_AWAY = 2048,
  VX_PADDED = 4096,
  VX_INTO_L2 = 8192,
  VX_FAR_C = 16384
};
extern const int32_t vx_quads; /* VX_QUADS where that is quicker, or 0 */
/* What a step of k counts between two rows that a micro-kernel asks for: STEP of cpu_steps.py. */
#define VX_STEP 16

/* One call, already checked. Strides in elements; an unpacked B has `panel` past its last column. `c` has the element
 * type of the output, which is not that of the sums where vx_apart is 1. */
typedef struct {
  const float *a, *b;
  float *c;
  int64_t m, n, k, lda, ldb, ldc, panel, panel_stride;
  int64_t outputs; /* elements of C, or of all C where this is one of a batch or a region */
  int32_t transpose_a, transpose_b, packed, accumulate;
  int32_t flip; /* added to each word of A, bit by bit: makes signed bytes unsigned */
  int32_t zero; /* what an unsigned byte of A is that stands for 0 */
  vx_extra extras[VX_EXTRAS];
} vx_call;

/* One convolution, already checked: y[pixel, filter] = sum over taps and channels of x[pixel + tap, channel] w.
 *
 * `w` is laid out by the executor that runs. Strides of activations in elements, for batch, height, width and channels. */
typedef struct {
  const float *x, *w;
  float *y;
  int64_t batch, height, width, channels, filters, kernel_h, kernel_w, out_h, out_w;
  int64_t stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w, groups;
  int64_t x_stride[4], y_stride[4];
  vx_extra extras[VX_EXTRAS];
} vx_conv;

/* When a nest runs the store stage: never, after the last step of k, or then on one register tile that all tiles share. */
enum { VX_STORE_NOTHING = 0, VX_STORE_TILES, VX_STORE_ONE_TILE };
/* How a convolution runs: a plain GEMM, direct, a channel to a filter, by a Winograd strategy, or direct along lines; which pixels a
 * register tile of the direct families holds, `rows` at most; and how L2 cuts pixels and filters into tasks. */
enum { VX_GEMM_FAMILY = 0, VX_DIRECT_FAMILY, VX_DEPTHWISE_FAMILY, VX_WINOGRAD_FAMILY, VX_LINES_FAMILY, VX_GROUPED_FAMILY };
typedef struct {
  int64_t family, walk_batch, rows, strategy, grid_m, grid_n;
  float alone, seconds; /* predicted, of the best on one thread and of this one; 0 where another selector chooses */
} vx_conv_plan;

/* Filters of so few channels that a row of their taps is one run of the input: packed as [rows][columns][channels]. Mirrored by
 * conv_selector.in_lines. */
#define VX_FEW_CHANNELS 4
static inline int vx_in_lines(int64_t groups, int64_t channels, int64_t kernel_w) {
  return groups == 1 && channels >= 1 && channels <= VX_FEW_CHANNELS && kernel_w > 1;
}

/* Groups of so few channels, and as many filters, that several are in one vector, each channel spread over the lanes of its group: the
 * filters lie as those of a depthwise convolution do. Mirrored by conv_selector.in_vectors. */
static inline int vx_in_vectors(int64_t groups, int64_t channels, int64_t filters) {
  int64_t depth = groups > 1 ? channels / groups : 0;
  return channels == filters && (depth == 2 || depth == 4 || depth == 8);
}

extern const int64_t vx_lanes;
/* Whether the channels of a group are brought side by side, for tiles of one vector: these have the most pixels, more than a set of the first
 * cache has ways where all channels of a pixel are a power of two. At least VX_STAGED_READS taps read each pixel. Mirrored by
 * conv_selector.staged. */
#define VX_STAGED_READS 4
static inline int vx_staged(const vx_conv *c) {
  return c->groups > 1 && c->channels / c->groups >= vx_lanes && c->filters / c->groups <= vx_lanes &&
         c->kernel_h * c->kernel_w >= VX_STAGED_READS * c->stride_h * c->stride_w;
}

/* Micro-kernels of a direct convolution by [vectors][rows], 0 where there is none, and the tallest by vectors; of a depthwise one by pixels, [1] for
 * groups of several channels, of which `group` is the number, the filters of each `w_c` after those of the one before. */
#define VX_CONV_VECTORS 8
#define VX_CONV_ROWS 33
#define VX_DEPTHWISE 8
typedef int32_t (*vx_conv_tile)(const float *a, const float *b, float *c, int64_t depth, int64_t taps_s, int64_t taps_r, int64_t a_s,
                                int64_t a_r, int64_t b_s, int64_t b_r, int64_t lda, int64_t ldb, int64_t ldc, int32_t last,
                                int32_t how);
typedef int32_t (*vx_depthwise_tile)(const float *x, const float *w, float *y, int64_t channels, int64_t taps_r, int64_t taps_s,
                                     int64_t x_r, int64_t x_s, int64_t w_r, int64_t w_s, int64_t ldx, int64_t ldy, int64_t group, int64_t w_c);
extern const vx_conv_tile vx_conv_tiles[VX_CONV_VECTORS][VX_CONV_ROWS];
extern const int64_t vx_conv_tallest[VX_CONV_VECTORS];
extern const vx_depthwise_tile vx_depthwise_tiles[2][VX_DEPTHWISE + 1];
/* Tiles of usual filters by [width][stride][pixels], 0 where there is none; `taps_s` and `x_s` are then the input columns, of those under
 * the tile, where the input starts and ends, and `x_r`, `w_r`, `w_s` follow. */
#define VX_SLIDING 8
extern const vx_depthwise_tile vx_sliding_tiles[2][VX_SLIDING][3][VX_DEPTHWISE + 1];
/* Tiles of a 3x3 filter with stride 1 that walk down `rows` of outputs, by pixels, or 0: inputs before row `top` or column `first`, and from
 * `bottom` or `end` on, are zeros. */
typedef int32_t (*vx_falling_tile)(const float *x, const float *w, float *y, int64_t channels, int64_t rows, int64_t top, int64_t bottom,
                                   int64_t first, int64_t end, int64_t x_r, int64_t w_r, int64_t w_s, int64_t ldx, int64_t y_r, int64_t ldy);
extern const vx_falling_tile vx_falling_tiles[VX_DEPTHWISE + 1];
/* Tiles of a 3x3 filter for `rows` by `pixels` outputs of at least `least` channels, by [stride][whether operands come from memory]: inputs lie
 * `seen` from x, outputs go to `places` from y. */
typedef int32_t (*vx_block_tile)(const float *x, const int64_t *seen, const float *w, float *y, const int64_t *places, int64_t channels,
                                 int64_t w_r, int64_t w_s);
typedef struct {
  vx_block_tile tile;
  int64_t rows, pixels, least;
} vx_block;
extern const vx_block vx_blocks[3][2];
#define VX_BLOCK_WIDTH 1024 /* channels of a panel, at most */
/* Bytes of input that should stay in the first, and in the second cache; of operands that are too many for all caches. */
extern const int64_t vx_conv_near, vx_conv_far, vx_conv_memory;
/* Bytes of a panel that the second cache keeps beside them. */
extern const int64_t vx_conv_kept;
extern const float vx_conv_columns[];

/* Compiled from the cost model: predicted seconds of each walk over the pixels. */
void vortex_conv_costs(const float *strategies, const float *slopes, float *totals, int32_t blocks, float batch, float out_h, float out_w, float depth,
                       float filters, float groups, float depthwise, float input_bytes, float line_bytes, float seen, float seen_h,
                       float hops, float in_rows, float moved, float taps, float passes, float edges, float stride_w, float rows,
                       float full, float vectors, float rest, float width, float grid_m, float grid_n, float active);

typedef int32_t vx_nest_function(const float *a, const float *b, float *c, float *scratch_a, float *scratch_b, int64_t m,
                                 int64_t first, int64_t end, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, int64_t panel,
                                 int64_t panel_stride, int64_t tile_m, int64_t tile_n, int64_t tile_k, int64_t rows,
                                 int64_t vectors, int32_t accumulate, const vx_store *store, int32_t finish);
typedef vx_nest_function *vx_nest;

/* Generated with the library: the strategies and the L1 nests by [A is col][rows first][A copied][B: none, copy, transpose]. */
extern const vx_strategy vx_strategies[];
extern const int64_t vx_strategy_count;
extern const vx_nest vx_nests[2][2][2][3];

/* The kernels of the held family for a vector of columns, half of one or a quarter, 0 where there is none: they walk over `count` rows;
 * and held.c's nest around them. */
#define VX_HELD_WIDTHS 3
typedef int32_t (*vx_held)(const float *a, const float *b, float *c, int64_t count, int64_t k, int64_t lda, int64_t ldb,
                           int64_t ldc, int32_t last, int32_t how);
extern const vx_held vx_held_tiles[VX_HELD_WIDTHS];
/* The same with the store stage in it, 0 where there is none of either: sums are added to `c` if `how` says so, and finished; `out` and
 * what the chain reads are those of the first row. */
typedef int32_t (*vx_held_finish)(const float *a, const float *b, const float *c, void *out, int64_t count, int64_t k, int64_t lda,
                                  int64_t ldb, int64_t ldc, int64_t ldo, int32_t last, int32_t how, const void *x0,
                                  int64_t stride0, const void *x1, int64_t stride1, const void *x2, int64_t stride2, const void *x3,
                                  int64_t stride3);
extern const vx_held_finish vx_held_finish_tiles[VX_HELD_WIDTHS];
/* Micro-kernels with the store stage in them by [vectors][rows]; 0 where there is none. */
#define VX_FINISH_MOST 33
typedef int32_t (*vx_finish)(const float *a, const float *b, void *out, int64_t depth, int64_t lda, int64_t ldb, int64_t ldo,
                             int32_t last, const float *ahead, int64_t every, int32_t how, const void *x0, int64_t stride0, const void *x1,
                             int64_t stride1, const void *x2, int64_t stride2, const void *x3, int64_t stride3);
extern const vx_finish vx_finish_tiles[VX_FINISH_MOST][VX_FINISH_MOST];
extern const int32_t vx_finishes; /* whether there are any */
vx_nest_function vx_held_nest, vx_held_turning_nest;
/* What the second one, of a transposed B, needs as `scratch_b`: all of k of the columns that are turned over at a time. */
int64_t vx_held_turned_floats(int64_t columns, int64_t k);

/* The kernels of the streamed family, for a B from memory and a nearer one, by rows, 0 where there is none; and streamed.c's nest around
 * them. */
#define VX_STREAMED_MOST 8
typedef int32_t (*vx_streamed)(const float *a, const float *b, float *c, int64_t columns, int64_t k, int64_t lda, int64_t ldb,
                               int64_t ldc, int64_t ahead, int32_t accumulate);
extern const int64_t vx_streamed_ahead; /* elements that a nearer one is asked for ahead in each row */
extern const vx_streamed vx_streamed_tiles[2][VX_STREAMED_MOST];
/* Those of a packed B whose panels are a line wide and `apart`, for up to `vx_panels_rows` rows. */
typedef int32_t (*vx_panels)(const float *a, const float *b, float *c, int64_t columns, int64_t k, int64_t lda, int64_t apart,
                             int64_t ldc, int32_t accumulate);
extern const vx_panels vx_panels_tiles[VX_STREAMED_MOST];
extern const int64_t vx_panels_rows;
vx_nest_function vx_streamed_nest;

/* Kernels of few rows by a packed B whose panels pass abreast, by rows up to `vx_abreast_rows`, which may be 0: they add to sums in rows `lds`
 * apart; and abreast.c's nest around them, of tiles that wide at most. */
#define VX_ABREAST_MOST 10
#define VX_ABREAST_WIDEST 32 /* vectors */
typedef int32_t vx_abreast(const float *a, const float *b, float *sums, int64_t panels, int64_t vectors, int64_t k, int64_t lda,
                           int64_t ldb, int64_t apart, int64_t lds);
extern vx_abreast *const vx_abreast_tiles[];
extern const int64_t vx_abreast_rows;
vx_nest_function vx_abreast_nest;

/* Micro-kernels of the dot family by [columns][rows], and the tallest by columns; 0 where there is none. */
#define VX_DOT_MOST 16
#define VX_DOT_TALLEST 8 /* rows */
#define VX_DOT_SHORT 32
#if VX_WORDS /* flips of bytes, and what is added to each sum: see codegen/cpu_word_dots.py */
typedef int32_t (*vx_dot)(const void *x, const void *y, void *c, int64_t depth, int64_t ldx, int64_t ldy,
                          int64_t row_stride, int64_t column_stride, int32_t accumulate, int64_t ahead, int32_t flip_x,
                          int32_t flip_y, int32_t times, const int32_t *offsets);
#else
typedef int32_t (*vx_dot)(const float *x, const float *y, float *c, int64_t depth, int64_t ldx, int64_t ldy,
                          int64_t row_stride, int64_t column_stride, int32_t accumulate, int64_t ahead);
#endif
extern const vx_dot vx_dot_tiles[VX_DOT_MOST][VX_DOT_TALLEST + 1];
extern const int64_t vx_dot_rows[VX_DOT_MOST];
/* Those for rows from within the outermost cache, which ask for nothing ahead; 0 where the others serve them too. */
extern const vx_dot vx_near_tiles[VX_DOT_MOST][VX_DOT_TALLEST + 1];
extern const int64_t vx_near_rows[VX_DOT_MOST];
/* And those for a few rows that are each the next one of a long stream. */
extern const vx_dot vx_stream_tiles[VX_DOT_MOST][VX_DOT_TALLEST + 1];
extern const int64_t vx_stream_rows[VX_DOT_MOST];
extern const int64_t vx_dot_widest;    /* columns of a tile */
extern const int64_t vx_dot_short;     /* and of as many as are tiled where they lie along k; at most VX_DOT_SHORT */
extern const int64_t vx_dot_bytes;     /* of a tile of columns that L1 keeps */
extern const int64_t vx_dot_cached;    /* bytes of rows that L2 holds */
extern const int64_t vx_dot_kept;      /* of what stays there while as much arrives: rows for all tiles of columns, few long columns for all rows */
extern const int64_t vx_dot_passes;    /* rows for each column from which on columns are laid anew where they lie badly */
extern const int64_t vx_dot_pieced;    /* columns of a tile from which on k is taken a page at a time */
extern const int64_t vx_dot_very_long; /* steps of k from which on it is not, by no more columns than `vx_dot_very_long_most`; 0 for none */
extern const int64_t vx_dot_very_long_most;
extern const int64_t vx_fixed[3];      /* m, n, k that every call has; 0 where any will do */
extern const int64_t vx_panel;         /* width of the panels of a packed operand, in elements */
extern const int64_t vx_l1_span;       /* bytes after which addresses fall into the same set of L1 again */
extern const int64_t vx_l2_buffer;     /* of L2, what the CacheBuffer may take up */
extern const int64_t vx_l3_bytes;      /* of operands that the outermost cache keeps */
extern const int64_t vx_outer_bytes;   /* all of it */
extern const int64_t vx_narrow_rows;   /* most rows of the register tile of a product narrower than one */
extern const int64_t vx_crowded_span;  /* bytes; rows a multiple of them apart crowd few sets of the caches, */
extern const int64_t vx_crowded_rows;  /* and so many of them stay in L2, */
extern const int64_t vx_crammed_rows;  /* or so many if all start in one set of L1 */
extern const int64_t vx_panel_room;    /* elements that L1 has room for of a kept panel of B, and of the A that goes by */
extern const int64_t vx_reach;         /* bytes of pages whose translations are found again, 0 for any number, */
extern const int64_t vx_page_bytes;    /* and of one page */
extern const int64_t vx_roomy;         /* whether a core starts one multiply-add a cycle, */
extern const int64_t vx_pieced;        /* and whether k may be cut for few rows by a plain B */
extern const float vx_least_parallel;  /* seconds of an empty call on several threads */
extern const float vx_call_seconds;    /* and on one */
extern const int64_t vx_cores;         /* of the machine the library is for: what a split of k is decided for */
extern const float vx_slopes[];

/* Compiled from the cost model: predicted seconds of the strategies that `order` names, each lane on a grid and a region of its own: the rows of
 * a block of `own` are grid_m, grid_n, splits, active, m, n, others. */
typedef void vx_ways(const float *strategies, const float *slopes, float *totals, int32_t blocks, const int32_t *order, const float *own,
                     float k, float a_is_col, float spacing_a, float spacing_b, float drift_a, float drift_b, float batch, float items_a,
                     float items_b);

/* What a choice is made from, by how B comes: plain, transposed, packed. So many strategies of the library, ascending, and their columns of
 * the cost: that of outer products, and that of dot products, whose order is nothing to them. */
typedef struct {
  const float *columns;
  const int32_t *strategies;
  int64_t count;
  int32_t dots; /* the place of the dot family; -1 where it is not listed */
  vx_ways *outer, *dot;
} vx_shortlist;
extern const vx_shortlist vx_shortlists[3];

/* The emitted store stage: out[i, j] = epilogue(c[i, j], extras), or 0 where C is stored as it is summed. */
typedef int32_t (*vx_epilogue)(const void *c, void *out, int64_t rows, int64_t columns, int64_t ldc, int64_t ldo,
                               const void *x0, int64_t stride0, const void *x1, int64_t stride1, const void *x2,
                               int64_t stride2, const void *x3, int64_t stride3);
extern const vx_epilogue vx_store_stage;
/* The same past the caches, of outputs in float32 that begin with a line; or 0. */
extern const vx_epilogue vx_store_past;
extern const int32_t vx_apart; /* the output has another element type than the sums, which are kept in scratch */

/* What the store stage takes and gives: element types as DLPack numbers them, and what an extra is indexed by. */
enum { VX_PER_COLUMN = 0, VX_PER_ROW, VX_PER_ELEMENT };
typedef struct {
  int32_t code, bits, per;
} vx_operand;
extern const vx_operand vx_factor, vx_packed, vx_out, vx_operands[VX_EXTRAS];
extern const int64_t vx_operand_count;
/* Where the operand `x` of a store stage has what belongs to an element of the output. */
static inline const void *vx_operand_at(const vx_store *store, int64_t x, int64_t row, int64_t column) {
  const vx_extra *extra = &store->extras[x];
  return (const char *)extra->data + (row * extra->row_stride + column * extra->column_stride) * (vx_operands[x].bits / 8);
}

/* The emitted load stages of L1. */
int32_t vortex_copy(const float *source, float *target, int64_t rows, int64_t columns, int64_t source_stride,
                    int64_t target_stride);
int32_t vortex_transpose(const float *source, float *target, int64_t rows, int64_t columns, int64_t source_stride,
                         int64_t target_stride);
/* ahead.c: for the lines of `rows` runs of `columns` floats, `stride` apart, which are to be read: into L1, or L2. */
int32_t vortex_ask(const float *first, int64_t rows, int64_t columns, int64_t stride, int32_t is_near);
/* The same of where sums go that a micro-kernel finishes, unless they go past the caches. */
int32_t vortex_ask_stored(const vx_store *store, int64_t row, int64_t column, int64_t rows, int64_t columns, int32_t is_near);
/* That of inputs of a convolution to which a prologue is done, as vortex_copy; its target may be its source. Or NULL. */
typedef int32_t (*vx_load)(const float *source, float *target, int64_t rows, int64_t columns, int64_t source_stride, int64_t target_stride);
extern const vx_load vx_conv_begin;

/* `pixels` of a row of the input to `target`, `pixel` floats apart, their channels side by side; a prologue is done to them. */
static inline void vx_conv_load(const float *source, float *target, int64_t pixels, int64_t channels, const int64_t *stride, int64_t pixel) {
  int apart = stride[3] != 1;
  if (apart) vortex_transpose(source, target, pixels, channels, stride[3], pixel);
  if (vx_conv_begin)
    vx_conv_begin(apart ? target : source, target, pixels, channels, apart ? pixel : stride[2], pixel);
  else if (!apart)
    vortex_copy(source, target, pixels, channels, stride[2], pixel);
}

/* words.c: a line of a packed panel is one word of k for every column; before them is the line where sums begin. */
typedef int32_t (*vx_word_nest)(const void *a, const void *b, void *c, void *scratch_a, void *scratch_b, int64_t m,
                                int64_t first, int64_t end, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, int64_t panel,
                                int64_t panel_stride, int64_t tile_m, int64_t tile_n, int64_t tile_k, int64_t rows,
                                int64_t vectors, int32_t accumulate, const vx_store *store, int32_t finish, int32_t flip, int32_t zero);
extern const vx_word_nest vx_word_nests[2][3][3];
#define VX_TILES (VX_WHOLE > 1)
extern const int64_t vx_room; /* words of A that are packed at a time for blocks of C that stay in L2 while k is cut */
int32_t vortex_words_rows(const void *source, void *target, int64_t k, int64_t rows, int64_t source_stride, int64_t target_stride);
int32_t vortex_words_columns(const void *source, void *target, int64_t k, int64_t rows, int64_t source_stride, int64_t target_stride);
int32_t vortex_leave_tiles(void);
int32_t vortex_words_interleave(const void *source, void *target, int64_t k, int64_t columns, int64_t source_stride,
                                int64_t width, int64_t stride);
int32_t vortex_words_turn(const void *source, void *target, int64_t k, int64_t columns, int64_t source_stride,
                          int64_t width, int64_t stride);
static inline int64_t vx_depth(int64_t k) { return quotient_up(k, VX_PER_WORD); }
static inline int64_t vx_packed_lines(int64_t k) {
  return rounded(quotient_up(k, VX_PER_LINE), VX_WHOLE) + VX_HEADS * (VX_GROUP ? quotient_up(k, VX_GROUP ? VX_GROUP : 1) : VX_WORDS);
}

/* weights.c: panels of quantized weights, q[i, j] with lines `q_k` and `q_n` apart for steps of k and n, likewise scales and zero points,
 * if there are any. 0, or 1 for a weight that is too large. */
int vx_pack_weights(const int8_t *q, int64_t q_k, int64_t q_n, const float *scales, int64_t scale_k, int64_t scale_n,
                    const int8_t *zeros, int64_t zero_k, int64_t zero_n, int64_t n, int64_t k, int32_t *target);

/* select.c: the plan of a call, and of `batch` products of its shape that read `items_a` A's and `items_b` B's. */
vx_plan vx_select(const vx_call *call, int64_t threads);
vx_plan vx_select_batch(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b, int64_t threads);
/* Whether a strategy can compute a call. */
int vx_serves(const vx_call *call, int64_t strategy);
double vx_time_selection(const vx_call *call, int64_t threads, int64_t repeats);

/* polymerize.c: a rectangle of the output with a strategy and a grid of its own, and the seconds of one of its tasks. */
#define VX_REGIONS 4
typedef struct {
  int64_t row, column, rows, columns, strategy, grid_m, grid_n;
  float task;
} vx_region;

/* Regions that together are the output; none where the plain plan serves the call. `pattern` counts from 0. */
typedef struct {
  int64_t count, pattern;
  float seconds;
  vx_region regions[VX_REGIONS];
} vx_polymer;

/* The choice with regions among what is chosen from, unless they are switched off; then what runs it. */
void vx_set_polymerizing(int on);
vx_plan vx_choose(const vx_call *call, int64_t threads, vx_polymer *polymer);
int vx_run(const vx_call *call);

/* recall.c: as vx_choose and vx_select_batch, from memory where this thread asked the same before. */
typedef struct {
  vx_plan plan;
  vx_polymer polymer;
} vx_choice;
const vx_choice *vx_recall(const vx_call *call, int64_t threads);
vx_plan vx_recall_batch(const vx_call *call, int64_t batch, int64_t items_a, int64_t items_b, int64_t threads);
/* From now on every thread chooses anew. */
void vx_forget(void);

/* threads.c */
void vx_parallel(void (*task)(void *context, int64_t index), void *context, int64_t tasks);
void vx_set_threads(int64_t count);
int64_t vx_get_threads(void);
/* Tasks run on the threads of `fork_join` from now on; on the library's own ones again with NULL. */
void vx_borrow_threads(vx_fork_join fork_join);

/* store.c: what the store stage of `call` needs; the same, to be seen from another first row and column; then the stage itself
 * on rows x columns of finished sums that lie at `c`, `ldc` elements apart, and belong to that place of the output. */
vx_store vx_store_of(const vx_call *call);
void vx_move_store(vx_store *store, int64_t row, int64_t column);
int32_t vortex_store(const vx_store *store, const void *c, int64_t ldc, int64_t row, int64_t column, int64_t rows,
                     int64_t columns);
/* Where rows are short and follow each other: asks for the lines that the tile after the one at `out` writes, or for a tile's share of those
 * that the next row tile does; it begins with so many a `column`. */
void vx_own_next(const vx_store *store, const void *out, int64_t column, int64_t rows, int64_t columns);

/* scratch.c: memory of the calling thread, 64-byte aligned, kept between calls; NULL when memory is out. The second kind is for
 * what the caller's tasks share. */
void *vx_scratch(size_t bytes);
void *vx_shared_scratch(size_t bytes);

/* split.c: a reduction in parts. The first goes to C itself, if that can keep sums, each further one to a dense matrix of its own.
 * The store stage runs when they are added up. */
typedef struct {
  int64_t first, depth; /* of k */
  float *c;
  int64_t ldc;
  int32_t accumulate;
  int32_t filled; /* B is packed already where a nest would pack it */
} vx_part;
int64_t vx_part_depth(int64_t k, int64_t splits);
float *vx_parts(const vx_call *call, int64_t splits); /* of those that do not go to C, shared scratch; NULL when memory is out */
vx_part vx_part_of(const vx_call *call, float *parts, int64_t splits, int64_t index);
void vx_add_parts(const vx_call *call, float *parts, int64_t splits);

/* dot.c: whether the dot family serves a call; running it, as vx_execute and vx_execute_task. */
int vx_dot_serves(const vx_call *call);
int vx_execute_dot(const vx_call *call, const vx_plan *plan);
int vx_execute_dot_task(const vx_call *call, const vx_plan *plan, int64_t index);

/* conv_select.c: the plan without Winograd, and among the forms that the weights were packed in: VX_DIRECT_FORM and above it a bit for
 * each algorithm. One thread decides the family, so that a result has the same bits on any number of threads. */
#define VX_DIRECT_FORM 1
vx_conv_plan vx_select_conv(const vx_conv *conv, int64_t threads);
vx_conv_plan vx_choose_conv(const vx_conv *conv, int64_t forms, int64_t unpacked, int64_t threads);

/* conv.c: 0, or 1 when memory is out. `w` of the convolution: panels of vx_panel filters, each [columns][rows][channels] of the filter; of
 * one in lines, and of a depthwise one, [rows][columns][channels]; of groups in vectors [rows][channels of a group][columns][filters]. */
int vx_execute_conv(const vx_conv *conv, const vx_conv_plan *plan);

/* regions.c: whether a library has the micro-kernels for cuts anywhere; the call of one region alone; and all regions side by side, of
 * which one at most is of the dot family: 0, or 1 when memory is out. */
int vx_may_cut(void);
vx_call vx_region_call(const vx_call *call, const vx_region *region);
int vx_execute_regions(const vx_call *call, const vx_region *regions, int64_t count);

/* execute.c: all tasks of a plan, or one of an unsplit one on the calling thread. 0, or 1 when memory is out. */
int vx_execute(const vx_call *call, const vx_plan *plan);
int vx_execute_task(const vx_call *call, const vx_plan *plan, int64_t index);

#endif
