/* L2 of products in 32-bit words: as execute.c, with the nests of dot instructions. k, and strides of A and of an unpacked B, in
 * elements; everything else in words. */
#include "narrow.h"

#include <stdatomic.h>
#include <string.h>

enum { A_AS_IT_LIES = 0, A_ROWS, A_COLUMNS };
/* Words of k, and rows, of an A that must pass a load stage under a strategy that plans for none: a quarter of a MiB. */
enum { DEPTH = 256, ROWS = 256 };

typedef struct {
  vx_call call;
  const vx_strategy *strategy;
  vx_word_nest nest;
  float *parts; /* of k, those that do not go to C */
  int64_t grid_m, blocks, splits, tile_m, tile_k, rows_per_task, columns_per_task;
  int32_t load_a, in_blocks;
  atomic_int out_of_memory;
} job;

/* A part of k as a call of its own. What a packed B begins with is of all of k: the first part has it. */
static vx_call call_of(const job *work, int64_t index) {
  const vx_call *whole = &work->call;
  vx_part part = vx_part_of(whole, work->parts, work->splits, index);
  vx_call call = *whole;
  int64_t b = whole->packed        ? part.first / VX_PER_WORD * whole->panel * 4
              : whole->transpose_b ? part.first * VX_ITEM
                                   : part.first * whole->ldb * VX_ITEM;
  call.a = (const float *)((const char *)whole->a + part.first * (whole->transpose_a ? whole->lda : 1) * VX_ITEM);
  call.b = (const float *)((const char *)whole->b + b);
  call.k = part.depth;
  call.c = part.c, call.ldc = part.ldc, call.accumulate = part.accumulate;
  if (whole->packed && index) call.zero = 0;
  return call;
}

/* Blocks of C one after the other, each of which stays in L2 until all of k was added; then it is stored, or copied. The rows of A of
 * a block are packed over all of k, unless they are read as they lie. */
static void run_blocks(const job *work, float *packed, float *scratch, float *sums, int64_t row, int64_t m, int64_t column, int64_t end,
                       const vx_store *whole) {
  vx_call call = work->call;
  const vx_strategy *s = work->strategy;
  int64_t apart = smaller(s->tile_n, rounded(end - column, s->vectors * vx_lanes)) + vx_lanes;
  int64_t kept = rounded(vx_depth(call.k), VX_WHOLE) + vx_lanes, lda = work->load_a ? kept * VX_PER_WORD : call.lda;
  for (int64_t last = row + m; row < last; row += work->tile_m) {
    int64_t rows = smaller(work->tile_m, last - row);
    const char *a = (const char *)call.a + (call.transpose_a ? row : row * call.lda) * VX_ITEM;
    if (work->load_a == A_ROWS) vortex_words_rows(a, packed, call.k, rows, call.lda, kept);
    if (work->load_a == A_COLUMNS) vortex_words_columns(a, packed, call.k, rows, call.lda, kept);
    vx_store store = *whole;
    vx_move_store(&store, row, 0);
    for (int64_t first = column; first < end; first += s->tile_n) {
      int64_t stop = smaller(first + s->tile_n, end);
      work->nest(work->load_a ? (const void *)packed : a, call.b, sums - first, NULL, scratch, rows, first, stop, call.k, lda, call.ldb,
                 apart, call.panel, call.panel_stride, rows, s->tile_n, work->tile_k, s->rows, s->vectors, 0, &store,
                 vx_store_stage ? VX_STORE_TILES : VX_STORE_NOTHING, call.flip, call.zero);
      for (int64_t i = 0; !vx_store_stage && i < rows; i++)
        memcpy(call.c + (row + i) * call.ldc + first, sums + i * apart, (size_t)(stop - first) * sizeof(float));
    }
  }
}

static void run_nest(const job *work, const vx_call *call, float *scratch, int64_t a_words, int64_t row, int64_t m, int64_t column, int64_t end,
                     float *c, int64_t ldc, const vx_store *store, int32_t finish) {
  const vx_strategy *s = work->strategy;
  int64_t width = s->vectors * vx_lanes;
  const char *a = (const char *)call->a + (call->transpose_a ? row : row * call->lda) * VX_ITEM;
  work->nest(a, call->b, c - column, scratch, scratch + a_words, m, column, end, call->k, call->lda, call->ldb, ldc,
             call->panel, call->panel_stride, smaller(work->tile_m, m), smaller(s->tile_n, rounded(end - column, width)),
             work->tile_k, tile_rows(s, end - column), s->vectors, call->accumulate, store, finish, call->flip, call->zero);
}

#if VX_HELD
/* The held family, by panels that are packed, or packed here: as narrow as its vectors. Sums lie in a tile of their own unless they are added
 * to C. */
static void run_held(job *work, const vx_call *call, int64_t row, int64_t m, int64_t column, int64_t end, int stores) {
  const vx_strategy *s = work->strategy;
  int own_b = !call->packed, own_tile = stores && !call->accumulate;
  int64_t panel = own_b ? vx_lanes : call->panel, stride = own_b ? vx_lanes * vx_packed_lines(call->k) : call->panel_stride;
  int64_t height = smaller(s->tile_m, m), b_words = own_b ? quotient_up(end - column, panel) * stride : 0;
  int64_t tile_words = own_tile ? height * vx_lanes : 0;
  float *scratch = NULL;
  if (b_words + tile_words && !(scratch = vx_scratch((size_t)(b_words + tile_words) * sizeof(float)))) {
    atomic_store(&work->out_of_memory, 1);
    return;
  }
  const char *a = (const char *)call->a + row * call->lda * VX_ITEM, *b = (const char *)call->b;
  if (own_b)
    (call->transpose_b ? vortex_words_turn : vortex_words_interleave)(b + (call->transpose_b ? column * call->ldb : column) * VX_ITEM, scratch,
                                                                      call->k, end - column, call->ldb, panel, stride);
  vx_store store = vx_store_of(call);
  vx_move_store(&store, row, 0);
  const float *panels = own_b ? scratch - column / panel * stride : call->b;
  float *sums = own_tile ? scratch + b_words - column : call->c + row * call->ldc;
  vx_held_nest((const float *)a, panels, sums, NULL, NULL, m, column, end, call->k, call->lda, panel, own_tile ? vx_lanes : call->ldc, panel, stride,
               height, s->tile_n, s->tile_k, s->rows, s->vectors, call->accumulate ? VX_ADDS : 0, &store,
               !stores ? VX_STORE_NOTHING : own_tile ? VX_STORE_ONE_TILE : VX_STORE_TILES);
}
#else
static void run_held(job *work, const vx_call *call, int64_t row, int64_t m, int64_t column, int64_t end, int stores) {}
#endif

static void run_task(void *context, int64_t index) {
  job *work = context;
  const vx_call part = call_of(work, index / work->blocks), *call = &part;
  const vx_strategy *s = work->strategy;
  int64_t at = index % work->blocks, stores = vx_store_stage && work->splits == 1; /* of several parts, sums are finished in the end */
  int64_t row = at % work->grid_m * work->rows_per_task, column = at / work->grid_m * work->columns_per_task;
  int64_t m = smaller(work->rows_per_task, call->m - row), end = smaller(column + work->columns_per_task, call->n);
  if (m <= 0 || column >= end) return;
  if (s->held) {
    run_held(work, call, row, m, column, end, stores);
    return;
  }
  int64_t width = s->vectors * vx_lanes;
  int64_t tile_m = smaller(work->tile_m, m), tile_n = smaller(s->tile_n, rounded(end - column, width));
  int64_t depth = work->in_blocks ? rounded(vx_depth(call->k), VX_WHOLE) : work->tile_k;
  int64_t a_words = work->load_a ? rounded(tile_m * (depth + vx_lanes), 16) : 0;
  int64_t b_words = s->pack_b && !call->packed ? (work->tile_k + 2) * tile_n : 0, c_words = 0;
  int at_once = stores && work->tile_k >= vx_depth(call->k) && !call->accumulate, apart = stores && vx_apart;
  int32_t finish = at_once ? VX_STORE_ONE_TILE : stores ? VX_STORE_TILES : VX_STORE_NOTHING;
  if (work->in_blocks)
    c_words = tile_m * (tile_n + vx_lanes);
  else if (at_once)
    c_words = tile_rows(s, end - column) * (width + vx_lanes);
  else if (apart)
    c_words = m * (tile_n + vx_lanes);
  float *scratch = NULL;
  if (a_words + b_words + c_words > 0) {
    scratch = vx_scratch((size_t)(a_words + b_words + c_words) * sizeof(float));
    if (!scratch) {
      atomic_store(&work->out_of_memory, 1);
      return;
    }
  }
  float *tile = scratch + a_words + b_words;
  vx_store whole = vx_store_of(call), store = whole;
  vx_move_store(&store, row, 0);
  if (work->in_blocks)
    run_blocks(work, scratch, scratch + a_words, tile, row, m, column, end, &whole);
  else if (at_once)
    run_nest(work, call, scratch, a_words, row, m, column, end, tile, width + vx_lanes, &store, finish);
  else if (!apart)
    run_nest(work, call, scratch, a_words, row, m, column, end, call->c + row * call->ldc + column, call->ldc, &store, finish);
  else /* partial sums of one strip of columns at a time */
    for (; column < end; column += tile_n)
      run_nest(work, call, scratch, a_words, row, m, column, smaller(column + tile_n, end), tile, tile_n + vx_lanes, &store, finish);
  if (VX_TILES) vortex_leave_tiles();
}

static job job_of(const vx_call *call, const vx_plan *plan) {
  const vx_strategy *s = &vx_strategies[plan->strategy];
  job work = {.call = *call, .strategy = s, .grid_m = plan->grid_m, .blocks = plan->grid_m * plan->grid_n, .splits = plan->splits,
              .tile_m = s->tile_m};
  int64_t width = s->vectors * vx_lanes, column_units = quotient_up(call->n, width);
  int64_t depth = vx_depth(vx_part_depth(call->k, plan->splits));
  if (call->transpose_a)
    work.load_a = A_COLUMNS;
  else if (VX_WIDENED || call->k % VX_PER_WORD || s->pack_a)
    work.load_a = A_ROWS;
  work.tile_k = smaller(s->tile_k, rounded(larger(depth, 1), VX_WHOLE));
  work.in_blocks = VX_TILES && work.tile_k < depth && !call->accumulate;
  if (work.in_blocks) {
    int64_t kept = rounded(depth, VX_WHOLE) + vx_lanes;
    if (work.load_a) work.tile_m = smaller(work.tile_m, larger(vx_room / kept / s->rows, 1) * s->rows);
  } else if (work.load_a && !s->pack_a) {
    work.tile_k = smaller(work.tile_k, DEPTH);
    work.tile_m = smaller(work.tile_m, rounded(ROWS, s->rows));
  }
  work.nest = vx_word_nests[s->rows_first][work.in_blocks ? A_AS_IT_LIES : work.load_a][s->pack_b ? 1 + call->transpose_b : 0];
  work.rows_per_task = quotient_up(call->m, plan->grid_m);
  work.columns_per_task = quotient_up(column_units, plan->grid_n) * width;
  return work;
}

#if VX_TILES
typedef struct {
  const vx_call *call;
  float *target;
  int64_t width, stride, share;
} whole_b;

static void pack_share(void *context, int64_t index) {
  const whole_b *b = context;
  const vx_call *call = b->call;
  int64_t first = index * b->share, columns = smaller(b->share, call->n - first);
  if (columns <= 0) return;
  const char *source = (const char *)call->b + (call->transpose_b ? first * call->ldb : first) * VX_ITEM;
  (call->transpose_b ? vortex_words_turn : vortex_words_interleave)(source, b->target + first / b->width * b->stride, call->k, columns,
                                                                    call->ldb, b->width, b->stride);
}

/* Several bands of rows, each of which would pack B in steps of k for its blocks of C: all of it is packed beforehand. 1 when memory is
 * out. */
static int pack_beforehand(job *work, int64_t tasks) {
  const vx_strategy *s = work->strategy;
  vx_call *call = &work->call;
  int64_t width = s->vectors * vx_lanes, stride = width * vx_packed_lines(call->k);
  float *target = vx_shared_scratch((size_t)(quotient_up(call->n, width) * stride) * sizeof(float));
  if (!target) return 1;
  whole_b b = {call, target, width, stride, rounded(quotient_up(call->n, tasks), width)};
  vx_parallel(pack_share, &b, tasks);
  call->b = target, call->packed = 1, call->panel = width, call->panel_stride = stride;
  work->nest = vx_word_nests[s->rows_first][A_AS_IT_LIES][0];
  return 0;
}
#else
static int pack_beforehand(job *work, int64_t tasks) { return 0; }
#endif

int vx_execute(const vx_call *call, const vx_plan *plan) {
  if (vx_strategies[plan->strategy].dot) return vx_execute_dot(call, plan);
  job work = job_of(call, plan);
  int several = plan->grid_m > 1 || work.rows_per_task > work.tile_m;
  if (work.in_blocks && work.strategy->pack_b && several && pack_beforehand(&work, work.blocks)) return 1;
  if (plan->splits > 1 && !(work.parts = vx_parts(call, plan->splits))) return 1;
  vx_parallel(run_task, &work, work.blocks * work.splits);
  if (work.out_of_memory) return 1;
  vx_add_parts(call, work.parts, plan->splits);
  return 0;
}

int vx_execute_task(const vx_call *call, const vx_plan *plan, int64_t index) {
  if (vx_strategies[plan->strategy].dot) return vx_execute_dot_task(call, plan, index);
  job work = job_of(call, plan);
  run_task(&work, index);
  return work.out_of_memory;
}

/* There is one region, the whole output. */
vx_plan vx_choose(const vx_call *call, int64_t threads, vx_polymer *polymer) {
  polymer->count = 0;
  return vx_select(call, threads);
}

int vx_run(const vx_call *call) {
  return vx_execute(call, &vx_recall(call, vx_get_threads())->plan);
}

void vx_set_polymerizing(int on) {}
