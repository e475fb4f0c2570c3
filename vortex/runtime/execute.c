/* L2 of a GEMM: the output cut into grid_m x grid_n blocks and k into parts, each task of one of both one call of an L1 nest. */
#include "narrow.h"
#include "streams.h"
#include "tasks.h"

/* Part of the outermost cache that bands of A take up, and rows for which reading B once more is no matter. */
#define BAND_SHARE 2
#define SHORTEST_BAND 1024

/* Of tasks.py. */
#define KEPT_BESIDE 2
#define FAR_SPANS 4
#define ONCE_SPANS 2

/* Rows that take so long over a step of k that a packed B from memory comes into L1 in time; for fewer it is asked for into L2, further on.
 * A loose one, whose rows are pages of their own, comes in time from within the outermost cache, if this much of it is enough. */
#define NEAR_LEAST 3
#define NEAR_LOOSE 2
/* On a roomy core, a Zen 4, hardware that follows a packed B is quicker than what is asked for, however many rows there are and wherever B
 * is: 1x1024x1024 72 to 89 GB/s, two rows out of memory 20 to 29, eight 20 to 22. */
/* Where pages are small, a packed B takes so long to come that tiles of few rows share the next panel among them as others do: on a Granite
 * Rapids 10x1024x1024 208 to 166 us, 32x4096x9216 25 to 21 ms, 16x4096x4096 on two threads 4.0 to 2.5. And a core there waits while it asks
 * for the rows of A of a next tile, all at once, which hardware follows: 6 x 64 made 8448x3000x2816 in 870 ms and does in 742, 3000x1024x2048
 * in 76 and 65. */

/* Whether what is asked for of B a few of its rows ahead is in L1 when a tile of so many rows reads it. Where pages are small, a packed one is if
 * all its translations are found again: on a Granite Rapids one row by 0.5 and 1 MB goes at 95 to 108 GB/s and by 2.4 MB at 33, with nothing
 * asked for into L1 at 67 to 73 and 28; by 4 MB and more both are alike, and by 9 MB out of memory one row goes at 12.8 and 13.7, four at 11.2
 * and 13.1, on two threads 24.0 and 26.8, 21.3 and 25.3. */
static int comes_in_time(const vx_call *call, int64_t rows) {
  int64_t weights = call->n * call->k;
  if (!call->packed) return !vx_overflows(weights * NEAR_LOOSE);
  return vx_reach ? weights * (int64_t)sizeof(float) <= vx_reach : rows >= NEAR_LEAST || !vx_overflows(weights);
}

/* Of rates.py. */
#define KEPT_TILES 4
#define KEPT_ROWS 3

/* Whether the nest of a task of so many rows and columns keeps panels: it is one for a plain B, a panel after the other. */
static int keeps_panels(const vx_call *call, const vx_strategy *s, int64_t rows, int64_t columns) {
  int loose = !s->pack_b && !call->packed && !call->transpose_a && !call->transpose_b;
  int by_panels = !s->rows_first && !s->swap && !s->held && !s->streamed && s->rows >= KEPT_ROWS;
  return vx_panel_room && loose && by_panels && rows > (KEPT_TILES - 1) * s->rows && columns >= s->vectors * vx_lanes;
}

/* Steps of k of a panel that is kept. */
static int64_t kept_depth(const vx_strategy *s) { return vx_panel_room / (s->vectors * vx_lanes + KEPT_BESIDE * s->rows); }

static int crowds(int64_t stride) { return stride * (int64_t)sizeof(float) % vx_crowded_span == 0; }

/* Of rows so many bytes apart that all start in one set of L1: as many as L2 keeps for further tiles, or for `once`. As tasks.py has it, which
 * takes them for as far apart as they are long. */
static int64_t crammed_rows(int64_t bytes, int once) {
  int64_t rows = vx_crammed_rows;
  if (rows >= vx_crowded_rows) return rows;
  if (bytes >= FAR_SPANS * vx_l1_span) rows /= 2;
  return once && bytes >= ONCE_SPANS * vx_l1_span ? rows / 2 : rows;
}

/* Steps of k of an operand that is read as it lies, a step a row: whose rows crowd few sets of L2, as many as stay there for the next tile,
 * and of any, as many as are on pages that are found again. */
static int64_t loose_depth(int64_t depth, int64_t columns, int64_t stride, int once) {
  const int64_t item = sizeof(float);
  if (crowds(stride)) depth = smaller(depth, stride * item % vx_l1_span ? vx_crowded_rows : crammed_rows(stride * item, once));
  return vx_reach ? smaller(depth, vx_reach / larger(larger(columns, 1) * item, smaller(stride * item, vx_page_bytes))) : depth;
}

/* Steps of k that a tile of L1 takes, in tasks of so many rows. As the cost has it. */
static int64_t tile_depth(const vx_strategy *s, const vx_call *call, int64_t rows) {
  int64_t depth = s->tile_k;
  int loose_b = !s->pack_b && !call->packed, loose_a = !s->pack_a && call->transpose_a;
  int once = (loose_b || loose_a) && rows <= tile_rows(s, call->n);
  if (keeps_panels(call, s, rows, call->n)) return larger(smaller(depth, kept_depth(s)), 1);
  if (loose_b) depth = loose_depth(depth, call->n, call->ldb, once);
  if (loose_a) depth = loose_depth(depth, call->m, call->lda, once);
  return larger(depth, 1);
}

/* Rows of A that this thread's share of the outermost cache keeps while the panels of B go by; all, where each band would pack B anew. */
static int64_t band_of(const vx_outer *work, const vx_part *part, int64_t m, int64_t tile) {
  if (work->strategy->pack_b || m <= SHORTEST_BAND || part->depth <= 0) return m;
  int64_t rows = vx_l3_bytes / BAND_SHARE / (int64_t)sizeof(float) / vx_get_threads() / part->depth;
  if (rows < SHORTEST_BAND) rows = SHORTEST_BAND;
  int64_t bands = quotient_up(m, rows);
  return bands > 1 ? rounded(quotient_up(m, bands), tile) : m;
}

/* Rows of the cache tiles that so many rows make: about as many each, since under those of a short last one B would not arrive. */
static int64_t even_bands(int64_t rows, const vx_strategy *s) {
  return rows > s->tile_m ? rounded(quotient_up(rows, quotient_up(rows, s->tile_m)), s->rows) : rows;
}

/* Rows of C that one nest walks over, all or every so many-th: their A from its first row on, as far down as the part of k begins, a B
 * likewise, and where their sums of column `column` go. `store` is seen from the first row and from column 0. */
typedef struct {
  const float *a, *b;
  float *c;
  int64_t m, lda, ldc, column, end;
  const vx_store *store;
  int streams;
} strip;

static void run_strip(const vx_outer *work, const vx_part *part, float *scratch, int64_t a_floats, const strip *at, int32_t finish) {
  const vx_call *call = &work->call;
  const vx_strategy *s = work->strategy;
  int64_t width = s->vectors * vx_lanes, tall = tile_rows(s, at->end - at->column), band = band_of(work, part, at->m, tall);
  int quiet = call->packed && vx_roomy;
  int near = !quiet && comes_in_time(call, at->m);
  int32_t small = vx_reach ? VX_TRUSTS | (call->packed ? VX_SHARES : 0) : 0;
  int32_t asks = (near ? VX_NEAR : 0) | (quiet ? VX_QUIET : 0) | small;
  int keeps = finish != VX_STORE_ONE_TILE && keeps_panels(call, s, at->m, at->end - at->column); /* kernels that finish sums keep nothing */
  int32_t how = part->accumulate | (at->streams ? VX_STREAMS : 0) | (keeps ? VX_KEEPS : 0) | vx_quads | asks;
  for (int64_t i = 0; i < at->m; i += band) {
    int64_t rows = smaller(band, at->m - i);
    vx_store from = *at->store;
    vx_move_store(&from, i, 0);
    work->nest(at->a + i * (call->transpose_a ? 1 : at->lda), at->b, at->c - at->column + (finish == VX_STORE_ONE_TILE ? 0 : i * at->ldc),
               scratch, scratch + a_floats, rows, at->column, at->end, part->depth, at->lda, call->ldb, at->ldc, call->panel,
               call->panel_stride, even_bands(rows, s), smaller(s->tile_n, rounded(at->end - at->column, width)), work->tile_k, tall,
               s->vectors, how, &from, finish);
  }
}

/* Rows that begin anywhere in a line: those that begin at the same place of one are a product of their own, and its columns are cut where
 * lines begin and end, so that all but the first and the last few go past the caches. */
static void run_in_turns(const vx_outer *work, const vx_part *part, float *scratch, int64_t a_floats, const strip *all,
                         int32_t finish) {
  int one_tile = finish == VX_STORE_ONE_TILE;
  int64_t columns = all->end - all->column, stride = one_tile ? all->store->row_stride : all->ldc, turns = vx_line_turns(stride);
  for (int64_t x = 0; x < turns; x++) {
    strip at = *all;
    vx_store store = *all->store;
    at.a += x * all->lda;
    at.m = quotient_up(all->m - x, turns);
    at.lda *= turns;
    at.store = &store;
    vx_move_store(&store, x, 0);
    store.row_stride *= turns;
    for (int e = 0; e < VX_EXTRAS; e++) store.extras[e].row_stride *= turns;
    if (!one_tile) at.ldc *= turns;
    const float *row = one_tile ? (const float *)store.out + all->column : all->c + x * all->ldc;
    int64_t head = vx_before_line(row), tail = (columns - head) % LINE_FLOATS;
    int64_t cuts[] = {all->column, all->column + head, all->end - tail, all->end};
    for (int piece = 0; piece < 3; piece++) {
      at.column = cuts[piece];
      at.end = cuts[piece + 1];
      at.streams = all->streams && piece == 1;
      if (!one_tile) at.c = all->c + x * all->ldc + at.column - all->column;
      if (at.column < at.end) run_strip(work, part, scratch, a_floats, &at, finish);
    }
  }
}

/* L1 nests over `m` rows from `row`, columns `column` to `end` and a part of k; `c` is where the first of them goes, rows `ldc` apart.
 * `store` is seen from that row and from column 0. */
static void run_nest(const vx_outer *work, const vx_part *part, float *scratch, int64_t a_floats, int64_t row, int64_t m,
                     int64_t column, int64_t end, float *c, int64_t ldc, const vx_store *store, int32_t finish) {
  const vx_call *call = &work->call;
  const vx_strategy *s = work->strategy;
  int tiled = !s->swap && !s->held && !s->streamed && s->vectors * vx_lanes % LINE_FLOATS == 0;
  int direct = finish == VX_STORE_NOTHING && tiled && work->splits == 1 && vx_overflows(call->outputs);
  int finished = finish == VX_STORE_ONE_TILE && tiled && store->past;
  int whole = finished ? vx_in_whole_lines((const float *)store->out + column, end - column, store->row_stride)
                       : vx_in_whole_lines(c, end - column, ldc);
  int cut = !vx_fixed[1] || vx_fixed[1] % LINE_FLOATS; /* kernels of what is between lines are there: specialise.last_vectors */
  int in_turns = !VX_WORDS && (direct || finished) && !whole && cut && !call->transpose_a && !call->packed && m >= VX_TURN_ROWS &&
                 end - column >= VX_TURN_COLUMNS && part->depth <= smaller(work->tile_k, VX_TURN_DEPTH);
  strip at = {.a = call->a + (call->transpose_a ? row + part->first * call->lda : row * call->lda + part->first),
              .b = call->b + (call->transpose_b ? part->first : part->first * call->ldb),
              .c = c,
              .m = m,
              .lda = call->lda,
              .ldc = ldc,
              .column = column,
              .end = end,
              .store = store,
              .streams = direct && (whole || in_turns)};
  (in_turns ? run_in_turns : run_strip)(work, part, scratch, a_floats, &at, finish);
  if (at.streams) vx_publish();
}

/* The store stage for rows `first` to `end` of C, columns `column` on, whose sums lie turned over in `tile`: a few rows at a
 * time, so that they are still in L1. `apart` has room for them where the output cannot keep sums. */
static void store_turned(const vx_call *call, const vx_store *store, const float *tile, int64_t stride, int64_t first,
                         int64_t end, int64_t column, int64_t columns, float *apart) {
  for (int64_t row = first; row < end; row += vx_lanes) {
    int64_t rows = smaller(vx_lanes, end - row), ldc = vx_apart ? columns + vx_lanes : call->ldc;
    float *c = vx_apart ? apart : call->c + row * call->ldc + column;
    vortex_transpose(tile + row - first, c, rows, columns, stride, ldc);
    vortex_store(store, c, ldc, row, column, rows, columns);
  }
}

/* The same without a store stage. As many rows of C at a time as a vector has elements, each from its beginning to its end: more that are a
 * power of two apart would wait for each other's lines in one set of L1 (64 rows 12 KiB apart: half of the time). */
static void turn_back(const float *tile, int64_t stride, float *c, int64_t ldc, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row += vx_lanes)
    vortex_transpose(tile + row, c + row * ldc, smaller(vx_lanes, rows - row), columns, stride, ldc);
}

/* What one task makes: rows and columns of C, or of its transpose where the product was turned over, from a part of k. */
typedef struct {
  vx_part part;
  int64_t row, m, column, end, tile_m, tile_n;
} block;

static block block_of(const vx_outer *work, int64_t index) {
  const vx_strategy *s = work->strategy;
  int64_t blocks = work->grid_m * work->grid_n, at = index % blocks;
  int64_t row = at % work->grid_m * work->rows_per_task, column = at / work->grid_m * work->columns_per_task;
  int64_t m = smaller(work->rows_per_task, work->call.m - row), end = smaller(column + work->columns_per_task, work->call.n);
  return (block){vx_part_of(work->whole, work->parts, work->splits, index / blocks), row, m, column, end, smaller(s->tile_m, m),
                 smaller(s->tile_n, rounded(end - column, s->vectors * vx_lanes))};
}

/* Where a task keeps what it packs, A before B; sums that do not lie in the output; and rows of C for the store stage. */
typedef struct {
  float *packed, *tile, *rows;
  int64_t a_floats;
} room;

/* 1 if there is no memory. */
static int make_room(const vx_outer *work, const block *at, int64_t tile_floats, int64_t row_floats, room *out) {
  const vx_strategy *s = work->strategy;
  int64_t a_floats = s->pack_a ? rounded((at->tile_m + vx_lanes) * (work->tile_k + vx_lanes), 16) : 0;
  int64_t kept = keeps_panels(&work->call, s, at->m, at->end - at->column) ? work->tile_k * s->vectors * vx_lanes : 0;
  int64_t packed = a_floats + kept + (s->pack_b ? (work->tile_k + 1) * at->tile_n : 0), floats = packed + tile_floats + row_floats;
  *out = (room){.a_floats = a_floats};
  if (floats == 0) return 0;
  if (!(out->packed = vx_scratch((size_t)floats * sizeof(float)))) return 1;
  out->tile = out->packed + packed;
  out->rows = out->tile + tile_floats;
  return 0;
}

/* Of several parts, sums are finished when they are added up. */
static int stores(const vx_outer *work) { return vx_store_stage && work->splits == 1; }

/* A product as it is. 1 if there is no memory. */
static int run_straight(const vx_outer *work, const block *at) {
  const vx_call *call = &work->call;
  const vx_strategy *s = work->strategy;
  const vx_part *part = &at->part;
  /* In one step of k, sums never touch the output: reading back what was just written to it would wait for memory. Either the store stage
   * is in the micro-kernel, or they lie in a tile of their own. */
  int at_once = stores(work) && work->tile_k >= call->k && !part->accumulate, apart = stores(work) && vx_apart && !at_once;
  int64_t stride = (at_once ? s->vectors * vx_lanes : at->tile_n) + vx_lanes, tile_floats = apart ? at->m * stride : 0;
  if (at_once && (!vx_finishes || call->transpose_a))
    tile_floats = (s->held ? at->tile_m : larger(tile_rows(s, at->end - at->column), vx_narrow_rows)) * stride;
  room own;
  if (make_room(work, at, tile_floats, 0, &own)) return 1;
  vx_store store = vx_store_of(call);
  store.past = stores(work) && vx_store_past && vx_overflows(call->outputs);
  vx_move_store(&store, at->row, 0);
  int64_t strip = apart ? at->tile_n : at->end - at->column; /* partial sums of so many columns at a time */
  int32_t finish = at_once ? VX_STORE_ONE_TILE : stores(work) ? VX_STORE_TILES : VX_STORE_NOTHING;
  for (int64_t column = at->column; column < at->end; column += strip) {
    float *sums = at_once || apart ? own.tile : part->c + at->row * part->ldc + column;
    run_nest(work, part, own.packed, own.a_floats, at->row, at->m, column, smaller(column + strip, at->end), sums,
             at_once || apart ? stride : part->ldc, &store, finish);
  }
  if (store.past) vx_publish();
  return 0;
}

/* One that was turned over: rows are columns of C. A tile of it is made in the CacheBuffer and stored transposed. 1 if there is no memory. */
static int run_turned(const vx_outer *work, const block *at) {
  const vx_call *call = &work->call;
  const vx_part *part = &at->part;
  int64_t stride = at->tile_n + vx_lanes, m = at->m;
  room own;
  if (make_room(work, at, m * stride, vx_apart && stores(work) ? vx_lanes * (m + vx_lanes) : 0, &own)) return 1;
  vx_store store = vx_store_of(call);
  for (int64_t column = at->column; column < at->end; column += at->tile_n) {
    int64_t stop = smaller(column + at->tile_n, at->end);
    float *target = part->c + column * part->ldc + at->row;
    if (part->accumulate) vortex_transpose(target, own.tile, m, stop - column, part->ldc, stride);
    run_nest(work, part, own.packed, own.a_floats, at->row, m, column, stop, own.tile, stride, &store, VX_STORE_NOTHING);
    if (stores(work))
      store_turned(call, &store, own.tile, stride, column, stop, at->row, m, own.rows);
    else
      turn_back(own.tile, stride, target, part->ldc, stop - column, m);
  }
  return 0;
}

void vx_run_outer(void *context, int64_t index) {
  vx_outer *work = context;
  block at = block_of(work, index);
  if (at.m <= 0 || at.column >= at.end) return;
  if (work->strategy->swap ? run_turned(work, &at) : run_straight(work, &at)) atomic_store(&work->out_of_memory, 1);
}

/* C^T = B^T A^T: the same call with the operands exchanged. */
static void turn_over(vx_call *turned, const vx_call *call) {
  turned->a = call->b;
  turned->b = call->a;
  turned->m = call->n;
  turned->n = call->m;
  turned->lda = call->ldb;
  turned->ldb = call->lda;
  turned->transpose_a = !call->transpose_b;
  turned->transpose_b = !call->transpose_a;
}

/* Field by field: a whole one, cleared and copied, takes a small call a tenth longer. */
void vx_make_outer(vx_outer *work, const vx_call *call, const vx_plan *plan) {
  const vx_strategy *s = &vx_strategies[plan->strategy];
  work->call = *call;
  if (s->swap) turn_over(&work->call, call);
  work->whole = call;
  work->strategy = s;
  work->grid_m = plan->grid_m;
  work->grid_n = plan->grid_n;
  work->splits = plan->splits;
  work->parts = NULL;
  atomic_init(&work->out_of_memory, 0);
  int64_t width = s->vectors * vx_lanes;
  int64_t column_units = quotient_up(work->call.n, width);
  work->nest = s->held       ? vx_held_nest
               : s->streamed ? vx_streamed_nest
                             : vx_nests[work->call.transpose_a][s->rows_first][s->pack_a][s->pack_b ? 1 + work->call.transpose_b : 0];
  int64_t depth = vx_part_depth(call->k, plan->splits);
  work->rows_per_task = quotient_up(work->call.m, plan->grid_m);
  work->tile_k = smaller(tile_depth(s, &work->call, work->rows_per_task), depth > 0 ? depth : 1);
  work->columns_per_task = quotient_up(column_units, plan->grid_n) * width;
}

int vx_execute(const vx_call *call, const vx_plan *plan) {
  if (vx_strategies[plan->strategy].dot) return vx_execute_dot(call, plan);
  vx_outer work;
  vx_make_outer(&work, call, plan);
  if (plan->splits > 1 && !(work.parts = vx_parts(call, plan->splits))) return 1;
  vx_parallel(vx_run_outer, &work, plan->grid_m * plan->grid_n * plan->splits);
  if (work.out_of_memory) return 1;
  vx_add_parts(call, work.parts, plan->splits);
  return 0;
}

int vx_execute_task(const vx_call *call, const vx_plan *plan, int64_t index) {
  if (vx_strategies[plan->strategy].dot) return vx_execute_dot_task(call, plan, index);
  vx_outer work;
  vx_make_outer(&work, call, plan);
  vx_run_outer(&work, index);
  return work.out_of_memory;
}
