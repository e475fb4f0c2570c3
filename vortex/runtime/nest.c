/* L1 nests of one task of L2: how deep they go, what they ask for ahead, and which of its rows and columns are a nest of their own. */
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
/* A C that is asked for into L2 is near if the outermost cache has room for this many: in busy hours other guests leave it little. A Zen 4
 * does 967x3694x2 in 0.38 to 0.53 ms so and in 1.1 to 1.2 unasked, 2500x999x4 in 0.51 and 1.4; in quiet ones 2000x999x4 takes 3 to 8 % longer. */
#define LONG_LOOSE 4
/* On a roomy core, a Zen 4, hardware that follows a packed B past one tile is quicker than what is asked for, however many rows there are and
 * wherever B is: 1x1024x1024 72 to 89 GB/s, two rows out of memory 20 to 29, eight 20 to 22. */
/* Where pages are small, a packed B takes so long to come that tiles of few rows share the next panel among them as others do: on a Granite
 * Rapids 10x1024x1024 208 to 166 us, 32x4096x9216 25 to 21 ms, 16x4096x4096 on two threads 4.0 to 2.5. And a core there waits while it asks
 * for the rows of A of a next tile, all at once, which hardware follows: 6 x 64 made 8448x3000x2816 in 870 ms and does in 742, 3000x1024x2048
 * in 76 and 65. */
/* So they do on any core where a packed B comes from beyond what is near: the first of so many tiles takes as long as B takes to come, and the
 * others have nothing to hide it behind. 24 rows by 180 MB went from 180 to 220 GFLOP/s on a Zen 5, from 335 to 400 on two threads, and by 17 MB
 * from 230 to 245; three tiles lose up to a tenth. */
#define SHARING_TILES 4
/* A Zen 4 does with two tiles of at least so many rows, past all of a panel each: 16x4096x4096 6.1 to 4.9 ms, on two threads 3.9 to 2.6, and
 * 22x9216x4096 16.4 to 15.2. Of tiles of fewer rows, or of two panels at a time, hardware that follows is quicker. */
#define SHARING_ROWS 4
/* Row tiles of a panel that ask for more of the next one than hardware, which follows it, leaves to be asked for. */
#define SOLE_TILES 2

/* Whether B is well within the outermost cache. */
static int is_near(const vx_call *call) { return !vx_overflows(call->n * call->k * NEAR_LOOSE); }

/* Whether the outermost cache has room for A and C so many times. */
static int stays_near(const vx_call *call, int64_t loose) { return !vx_overflows((call->m * call->k + call->outputs) * loose); }

/* Whether C is asked for into L2, not L1, which waits for few lines at a time: on a Zen 4 all but rows of one and a half lines or less in held
 * kernels (334863x20x8 takes 1.1 times as long so), which ask for others a block of rows ahead (cpu_own.py). 232965x41x64 by 9 x 48 takes 13.8 ms
 * so and 15.2 by L1, on two threads 7.6 and 9.4; by 14 x 32, whose rows lie in more lines than L1 waits for, as long. Neither other
 * cores nor words were tried. */
static int asks_into_l2(const vx_call *call, const vx_strategy *s) { return vx_roomy && !VX_WORDS && (!s->held || 2 * call->n > 3 * vx_lanes); }

/* Whether tiles ask for C of the next one, which is not near: 13107x320x64, C of 17 MB, takes 5.4 ms so by 14 x 32 on a Zen 4 and 7.0 to 7.5 unasked,
 * 2000x2000x100 by a packed A 7.8 and 9.0. What is near takes up to a tenth longer so, with few steps of k. */
static int asks_for_c(const vx_call *call, const vx_strategy *s) { return asks_into_l2(call, s) && !stays_near(call, LONG_LOOSE); }

/* Whether L2 keeps A and B of a nest. Where pages are small nobody asks for them then: the processor does not foresee the turn of a loop that asks
 * now and then, and tiles go at 172 to 179 GFLOP/s so, on a Granite Rapids, at 179 to 184 otherwise. Nor does anybody for a packed block:
 * transformers' products by a transposed B are 1.03 times as fast since, 512x3000x2048 1.07, and 200x300x700, which L2 keeps, 1.07. */
static int stays_in_l2(const vx_call *call, int64_t rows, int64_t depth) {
  return (call->n + rows) * depth * (int64_t)sizeof(float) <= vx_dot_cached;
}

/* Whether it keeps C besides: then the next rows of A are not asked for either, on such a core. Nor are short rows of C, if A and C are near:
 * what is asked for takes up buffers that stores wait for. An Emerald Rapids, without both: 500x128x8 14.3 to 12.3 us, 1509x192x12 69 to 61,
 * 20000x192x12 1017 to 944, 100000x64x16 1.85 to 1.69 ms; where they are far it gains by what is asked for (232965x41x32 8.1 to 7.7 ms,
 * 200000x64x32 9.2 to 8.7). */
static int keeps_all(const vx_call *call, int64_t rows, int64_t depth) {
  return ((call->n + rows) * depth + rows * call->n) * (int64_t)sizeof(float) <= vx_dot_cached;
}

/* Whether what is asked for of B a few of its rows ahead is in L1 when a tile of so many rows reads it. Where pages are small, a packed one is if
 * all its translations are found again: on a Granite Rapids one row by 0.5 and 1 MB goes at 95 to 108 GB/s and by 2.4 MB at 33, with nothing
 * asked for into L1 at 67 to 73 and 28; by 4 MB and more both are alike, and by 9 MB out of memory one row goes at 12.8 and 13.7, four at 11.2
 * and 13.1, on two threads 24.0 and 26.8, 21.3 and 25.3. */
static int comes_in_time(const vx_call *call, int64_t rows) {
  int64_t weights = call->n * call->k;
  if (!call->packed) return is_near(call);
  return vx_reach ? weights * (int64_t)sizeof(float) <= vx_reach : rows >= NEAR_LEAST || !vx_overflows(weights);
}

/* Whether a B that row tiles read where it lies comes in time with nothing asked for. With AVX2 alone a turn of the loop has few slots beside its
 * multiply-adds, and hardware follows what is well within the outermost cache. A Zen 2, 6 x 16 by a packed B out of L2 and L3, GFLOP/s with and
 * without: tiles that each ask for all of a next panel 90 to 93 and 97 to 101, a single tile 92 to 94 and 97 to 101, two that share a panel 95 and
 * 102; of more, 96 and 95. From 12 MB on, of 16 that there are, 85 and 76. By a plain B, 48x512x512 and 96x768x768, 66 and 75, 57 and 62; a single
 * tile by 768x768 waits for its rows, with 76 and 60. */
static int comes_by_itself(const vx_call *call, const vx_strategy *s, int64_t tiles) {
  int read = !s->pack_b && !s->held && !s->streamed, asked_by_few = s->rows_first || tiles <= SOLE_TILES;
  return vx_lanes < LINE_FLOATS && read && is_near(call) && asked_by_few && (call->packed || tiles > 1);
}

/* Rows that take no longer so with a B from the outermost cache: an Emerald Rapids, 9 MB, GB/s one panel after the other and abreast, 6 rows
 * 24.7 and 26.3, 8 rows 23.8 and 23.3, 10 rows 22.1 and 16.6; of 67 MB 14.5 and 20.1, 13.3 and 16.9, 12.4 and 15.0, 12 rows 11.4 and 13.1. */
#define ABREAST_NEAR 6

/* Of rates.py. */
#define KEPT_TILES 4
#define KEPT_ROWS 3

/* Whether nests read B as it lies, a step of k a row. */
static int reads_rows(const vx_call *call, const vx_strategy *s) {
  return !s->pack_b && !call->packed && !call->transpose_b && !s->held && !s->streamed;
}

/* Of a plain B, a panel after the other. */
int vx_keeps_panels(const vx_call *call, const vx_strategy *s, int64_t rows, int64_t columns) {
  int by_panels = !call->transpose_a && !s->rows_first && !s->swap && s->rows >= KEPT_ROWS;
  return vx_panel_room && reads_rows(call, s) && by_panels && rows > (KEPT_TILES - 1) * s->rows && columns >= s->vectors * vx_lanes;
}

/* Steps of k of a panel that is kept. */
static int64_t kept_depth(const vx_strategy *s) { return vx_panel_room / (s->vectors * vx_lanes + KEPT_BESIDE * s->rows); }

/* Whether panels of a packed B that L2 does not keep pass abreast: past as many rows as arithmetic takes no longer with than B to come. */
int vx_passes_abreast(const vx_call *call, const vx_strategy *s, int64_t rows) {
  if (!call->packed || call->transpose_a || s->held || s->streamed || call->n * call->k * (int64_t)sizeof(float) <= vx_dot_cached) return 0;
  return rows <= (is_near(call) ? smaller(vx_abreast_rows, ABREAST_NEAR) : vx_abreast_rows) && s->vectors <= VX_ABREAST_WIDEST;
}

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

/* As the cost has it. */
int64_t vx_tile_depth(const vx_strategy *s, const vx_call *call, int64_t rows) {
  int64_t depth = s->tile_k;
  int loose_b = !s->pack_b && !call->packed && !call->transpose_b, loose_a = !s->pack_a && call->transpose_a;
  int once = (loose_b || loose_a) && rows <= tile_rows(s, call->n);
  if (vx_keeps_panels(call, s, rows, call->n)) return larger(smaller(depth, kept_depth(s)), 1);
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
  return rows > s->tile_m ? even_part(rows, s->tile_m, s->rows) : rows;
}

/* Rows of C that one nest walks over, all or every so many-th: their A from its first row on, as far down as the part of k begins, a B
 * likewise, and where their sums of column `column` go. `store` is seen from the first row and from column 0. */
typedef struct {
  const float *a, *b;
  float *c;
  int64_t m, lda, ldc, panel, column, end;
  const vx_store *store;
  int streams;
} strip;

/* Whether row tiles that are soon over share what is asked for of a packed B. */
static int shares(const vx_call *call, const vx_strategy *s, int64_t rows, int64_t tall) {
  int64_t tiles = quotient_up(rows, tall);
  if (!call->packed) return 0;
  if (vx_reach) return 1;
  if (is_near(call)) return 0;
  return vx_roomy ? !s->rows_first && tiles > 1 && rows >= SHARING_ROWS * tiles : tiles >= SHARING_TILES;
}

/* Of a cache tile. A single panel where L2 keeps A while it goes by from its beginning to its end: hardware that follows a packed B from
 * memory loses 1 us at each piece that it goes on with elsewhere (Zen 4: 2x9216x4096 5.9 ms by pieces of 256 KB, 4.8 so). On other cores
 * little of L2: a Zen 5 does 2x25088x4096 in 12.0 ms by pieces of 320 KB and in 10.8 so, but 16x4096x4096 in 2.95 and 3.25. */
static int64_t tile_columns(const vx_outer *work, const vx_part *part, const strip *at) {
  const vx_strategy *s = work->strategy;
  int64_t width = s->vectors * vx_lanes, a_bytes = at->m * part->depth * (int64_t)sizeof(float);
  int follows = work->call.packed && !is_near(&work->call) && part->depth > work->tile_k;
  if (follows && a_bytes <= vx_dot_cached / (vx_roomy ? 2 : 8)) return width;
  return smaller(s->tile_n, rounded(at->end - at->column, width));
}

/* Whether the block of B that is packed is more than L2 has room for, as the cost has it. */
static int lies_beyond(const vx_outer *work, const vx_part *part, const strip *at) {
  int64_t columns = smaller(work->strategy->tile_n, at->end - at->column), depth = smaller(work->tile_k, part->depth);
  return work->strategy->pack_b && depth * columns * (int64_t)sizeof(float) > vx_l2_buffer;
}

static void run_strip(const vx_outer *work, const vx_part *part, float *scratch, int64_t a_floats, const strip *at, int32_t finish) {
  const vx_call *call = &work->call;
  const vx_strategy *s = work->strategy;
  int64_t tall = tile_rows(s, at->end - at->column), band = band_of(work, part, at->m, tall);
  int follows = call->packed && vx_roomy, itself = comes_by_itself(call, s, quotient_up(at->m, tall));
  int quiet = itself || (vx_reach ? stays_in_l2(call, at->m, part->depth) : follows);
  int into_l2 = asks_into_l2(call, s);
  int near = s->held ? stays_near(call, into_l2 ? LONG_LOOSE : NEAR_LOOSE) : !follows && !itself && comes_in_time(call, at->m), trusts = vx_reach || itself;
  int owns = !vx_reach || !stays_near(call, NEAR_LOOSE), leads = !vx_reach || !keeps_all(call, at->m, part->depth);
  int32_t asks = (near ? VX_NEAR : 0) | (quiet ? VX_QUIET : 0) | (shares(call, s, at->m, tall) ? VX_SHARES : 0) | (trusts ? VX_TRUSTS : 0) |
                 (owns ? VX_OWNS : 0) | (leads ? VX_LEADS : 0) | (lies_beyond(work, part, at) ? VX_AWAY : 0) | (into_l2 ? VX_INTO_L2 : 0) |
                 (asks_for_c(call, s) ? VX_FAR_C : 0);
  int keeps = finish != VX_STORE_ONE_TILE && vx_keeps_panels(call, s, at->m, at->end - at->column); /* kernels that finish sums keep nothing */
  int32_t how = part->accumulate | (part->filled ? VX_FILLED : 0) | (at->streams ? VX_STREAMS : 0) | (keeps ? VX_KEEPS : 0) |
                vx_padded(call, s) | vx_quads | asks;
  for (int64_t i = 0; i < at->m; i += band) {
    int64_t rows = smaller(band, at->m - i);
    vx_store from = *at->store;
    vx_move_store(&from, i, 0);
    work->nest(at->a + i * (call->transpose_a ? 1 : at->lda), at->b, at->c - at->column + (finish == VX_STORE_ONE_TILE ? 0 : i * at->ldc),
               scratch, scratch + a_floats, rows, at->column, at->end, part->depth, at->lda, call->ldb, at->ldc, at->panel,
               call->panel_stride, even_bands(rows, s), tile_columns(work, part, at), work->tile_k, tall,
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

/* Lines come from memory in pairs. */
#define PAIR_FLOATS (2 * LINE_FLOATS)

/* Columns of `b`, a B as it lies, before the first one where its rows begin a line: the panels after them read no vector across two lines, which
 * few rows do not hide (16 bytes off, on a Zen 5: 8 by 4096x1024 in a cache 162 and 210 GFLOP/s, 8 by 2304x768 with AVX2 alone 90 and 107).
 * Panels of two lines from memory, of several tiles, begin with a pair: each of their rows brings a line of either panel beside it else, which
 * is gone when that is read (24 by 4096x11008 16 bytes off 98 GFLOP/s, 164 by lines and 190 by pairs). What is before is a panel of its own: with
 * more rows than panels that takes longer than it saves. */
static int64_t before_whole(const vx_call *call, const vx_strategy *s, const float *b, int64_t rows, int64_t columns) {
  int64_t width = s->vectors * vx_lanes;
  int whole = call->ldb % LINE_FLOATS == 0 && (uintptr_t)b % sizeof(float) == 0;
  if (vx_fixed[1] || !reads_rows(call, s) || !whole || rows * width > columns) return 0;
  int paired = width == PAIR_FLOATS && call->ldb % PAIR_FLOATS == 0 && rows > s->rows && !is_near(call);
  return vx_before(b, paired ? PAIR_FLOATS : LINE_FLOATS);
}

void vx_run_nest(const vx_outer *work, const vx_part *part, float *scratch, int64_t a_floats, int64_t row, int64_t m, int64_t column,
                 int64_t end, float *c, int64_t ldc, const vx_store *store, int32_t finish) {
  const vx_call *call = &work->call;
  const vx_strategy *s = work->strategy;
  int tiled = !s->swap && !s->held && !s->streamed && s->vectors * vx_lanes % LINE_FLOATS == 0;
  int by_lines = tiled || (s->held && vx_lanes == LINE_FLOATS); /* a vector of the held family is a line */
  int direct = finish == VX_STORE_NOTHING && by_lines && work->splits == 1 && vx_overflows(call->outputs);
  int finished = finish == VX_STORE_ONE_TILE && tiled && store->past;
  int whole = finished ? vx_in_whole_lines((const float *)store->out + column, end - column, store->row_stride)
                       : vx_in_whole_lines(c, end - column, ldc);
  int cut = !vx_fixed[1] || vx_fixed[1] % LINE_FLOATS; /* kernels of what is between lines are there: specialise.last_vectors */
  int in_turns = tiled && (direct || finished) && !whole && cut && !call->transpose_a && !call->packed && m >= VX_TURN_ROWS &&
                 end - column >= VX_TURN_COLUMNS && part->depth <= smaller(work->tile_k, VX_TURN_DEPTH);
  strip at = {.a = call->a + (call->transpose_a ? row + part->first * call->lda : row * call->lda + part->first),
              .b = call->b + (call->transpose_b ? part->first : part->first * call->ldb),
              .c = c,
              .m = m,
              .lda = call->lda,
              .ldc = ldc,
              .panel = call->panel,
              .column = column,
              .end = end,
              .store = store,
              .streams = direct && (whole || in_turns)};
  int64_t head = at.streams || finished ? 0 : before_whole(call, s, at.b + column, m, end - column);
  if (head) {
    strip first = at;
    first.end = at.column += head;
    first.panel = call->ldb; /* the only one of its rows: it asks for what it reads itself, next */
    if (finish != VX_STORE_ONE_TILE) at.c += head;
    run_strip(work, part, scratch, a_floats, &first, finish);
  }
  (in_turns ? run_in_turns : run_strip)(work, part, scratch, a_floats, &at, finish);
  if (at.streams) vx_publish();
}
