/* The dot family: both operands are read along k, the long side of C in tiles of rows, the short side in few tiles of columns. */
#include "streams.h"
#include "tasks.h"

#include <string.h>

#if VX_FLIPS
#include <emmintrin.h>
#endif

/* Elements: a cache line, and how far to ask ahead along a row that is too long to ask for the next one. */
#define LINE (64 / VX_ITEM)
#define AHEAD (16 * 1024 / VX_ITEM)
/* Tiles whose sums a store stage finishes together. */
#define TILES 8
/* The longest tile, in elements, that is asked for while the one before it is read: L2 has room for both. */
#define TILE (384 * 1024 / VX_ITEM)
/* Bytes that rows of one tile lie apart in all, where they share a page and come from outside L2: prefetchers that follow a page lose
 * taller tiles, which go along many short rows in turn (8 rows by 2 columns of 96, Zen 4: 14 GB/s, 3 rows 27). Rows half a page apart
 * are streams of their own. */
#define SPAN 1280
#define HALF_PAGE 2048
/* Share of the outermost cache, one in so many, from within which rows come in time without being asked for. */
#define NEAR_SHARE 2
/* Of vx_dot_pieced columns and more of a single tile k is taken in pieces, a page of each row, where L1 would lose them to what passes; of
 * fewer pieces stay in L2. As the cost has it (families.py). */
#define PIECE (4096 / VX_ITEM)
/* Streams that hardware follows, of cpu_dot.py. Where pages are small, it follows each no further than its page, and as many as there are
 * registers for bring more beside so few columns: one core of an Emerald Rapids 22 GB/s of 200 MB by one row, and 19 by two streams, 28
 * and 25 of 64 MB by two. */
#define PAIR 2
/* Columns beside which rows that straddle lines, two loads a vector, leave load ports no slot for asking. */
#define LOADED 8
/* How far ahead each of a few long streams is asked for, out of memory and from within that share. */
#define STREAM_AHEAD (4096 / VX_ITEM)
#define NEAR_AHEAD (2048 / VX_ITEM)

#if VX_WORDS
#define FORMS(work, to) , (work)->flip_x, (work)->flip_y, (work)->times, (to).offsets
#define TURNS 0 /* a B whose columns are not contiguous */
#else
#define FORMS(work, to)
#define TURNS 1
#endif

static const void *element(const void *first, int64_t index) { return (const char *)first + index * VX_ITEM; }

static int64_t short_side(const vx_call *call) {
  return call->transpose_b && call->m < call->n ? call->m : call->n;
}

/* Columns of the widest tile of so many in all: others have one less. */
static int64_t tile_of(int64_t columns) {
  int64_t tiles = quotient_up(columns, vx_dot_widest);
  return tiles ? quotient_up(columns, tiles) : 0;
}

int vx_dot_serves(const vx_call *call) {
  int64_t columns = short_side(call), most = call->transpose_b ? vx_dot_short : TURNS ? vx_dot_widest : 0;
  return !call->packed && !call->transpose_a && columns > 0 && columns <= most;
}

/* Where sums go: of the first row and column, and how far apart; and what is added to them, by column. */
typedef struct {
  float *c;
  int64_t row_stride, column_stride;
  const int32_t *offsets;
} sums;

#if VX_FLIPS
/* As signed bytes, a[i, k] stands for y + d and b[j, k] for x - 128, where x is unsigned:
 *     sum (y + d) (x - 128) = sum x y + d sum x - 128 (sum y + k d)
 * and as an unsigned byte, a[i, k] stands for x - zero: sum (x - zero) y = sum x y - zero sum y. All is modulo 2^32. */
static void take_bytes(vx_dotted *work) {
  const vx_call *call = work->call;
  int32_t flip = call->flip & 0xff, d = 128 - call->zero;
  work->flip_x = work->over_b ? 0x80 : flip;
  work->flip_y = work->over_b ? 0x80 ^ flip : 0;
  work->times = work->over_b ? d : 0;
  work->per_sum = work->over_b ? -128 : -call->zero;
  work->per_step = work->over_b ? -128 * d : 0;
}

/* Sum of the bytes of y ^ flip, as signed ones. */
static uint32_t sum_of(const uint8_t *y, int64_t count, int32_t flip) {
  __m128i total = _mm_setzero_si128(), turned = _mm_set1_epi8((char)(flip ^ 0x80));
  int64_t k = 0;
  for (; k + 16 <= count; k += 16)
    total = _mm_add_epi64(total, _mm_sad_epu8(_mm_xor_si128(_mm_loadu_si128((const __m128i *)(y + k)), turned), _mm_setzero_si128()));
  uint32_t sum = (uint32_t)_mm_cvtsi128_si64(total) + (uint32_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(total, total));
  for (; k < count; k++) sum += (uint8_t)(y[k] ^ flip ^ 0x80);
  return sum - 128u * (uint32_t)count;
}

static void tell_offsets(const vx_dotted *work, const vx_part *part, int32_t *offsets) {
  for (int64_t j = 0; j < work->columns; j++) {
    uint32_t sum = sum_of(element(work->y, part->first + j * work->ldy), part->depth, work->flip_y);
    offsets[j] = (int32_t)((uint32_t)work->per_sum * sum + (uint32_t)work->per_step * (uint32_t)part->depth);
  }
}
#else
static void take_bytes(vx_dotted *work) { (void)work; }
static void tell_offsets(const vx_dotted *work, const vx_part *part, int32_t *offsets) { (void)work, (void)part, (void)offsets; }
#endif

/* How far ahead the rows of a tile are asked for that all go by once. A new row is a new stream to the hardware, and so is a page:
 * a tile to come is asked for while this one is read. */
static int64_t next_tiles(const vx_dotted *work, int64_t height, int64_t depth) {
  int64_t tile = height * depth + 1;
  return tile <= TILE ? (1 + AHEAD / tile) * height * work->ldx : AHEAD;
}

/* Of rows that are read again, and so come from L2: each of `turns` passes asks for its share of what lies `further` on, in elements,
 * when it is its `turn`. No turns: rows that go by once. */
typedef struct {
  int64_t further, turn, turns;
} asked;

/* Whether L1 is to keep a tile of columns: it has more of them than rows pass at once. */
static int keeps(const vx_dotted *work) { return work->width > vx_dot_rows[work->width]; }

/* Whether more columns than vx_dot_pieced come from L2 too, since rows are so long. */
static int very_long(const vx_dotted *work) {
  return vx_dot_very_long && work->call->k >= vx_dot_very_long && work->width <= vx_dot_very_long_most;
}

/* Whether so few columns come from L2, to any number of rows. Where registers are few no tile has more, and of several tiles L1 keeps what it
 * can: but two rows pass four columns, and draw twice as much of those as of themselves (a Zen 2: 10 x 768 x 3072 0.93 to 0.83 ms). */
static int few(const vx_dotted *work) {
  return work->width < vx_dot_pieced && (work->columns == work->width || vx_dot_widest >= vx_dot_pieced);
}

/* Whether as many rows as there are registers for pass so few columns, of which L2 keeps what they need. Where pages are large, two
 * streams bring more beside one or two columns. */
static int abreast(const vx_dotted *work) { return vx_reach ? few(work) : work->width > PAIR && very_long(work); }

/* Whether the rows come from outside L2, to one tile of columns. */
static int outside(const vx_dotted *work) {
  return work->columns == work->width && work->rows * work->ldx * VX_ITEM > vx_dot_cached;
}

/* Most rows of a tile, but for registers: of short rows that are read once, from outside L2, as many as prefetchers follow. */
static int64_t followed(const vx_dotted *work) {
  int64_t apart = work->ldx * VX_ITEM;
  return !keeps(work) && outside(work) && apart < HALF_PAGE ? larger(SPAN / (apart + 1), 2) : VX_DOT_TALLEST;
}

/* Whether the rows, those of each product of a batch, come from within a share of the outermost cache, one in so many. */
static int within(const vx_dotted *work, int64_t share) {
  int64_t products = larger(work->call->outputs / larger(work->call->m * work->call->n, 1), 1);
  return !vx_overflows(share * products * work->rows * work->ldx);
}

static int within_reach(const vx_dotted *work) { return within(work, NEAR_SHARE); }

/* Whether they do so and are more than L1 has room for: tiles are as tall as registers admit, each being over soon. */
static int from_near(const vx_dotted *work) {
  int many = work->rows * work->ldx * VX_ITEM > vx_dot_bytes;
  return work->columns == work->width && vx_near_rows[work->width] && many && within_reach(work);
}

/* Whether the rows of a tile lie as far apart as a task has room for, each the next of a stream as long as that: prefetchers follow a
 * few streams from beginning to end, where rows that follow each other begin as many anew. Short rows cost more tiles than that saves,
 * the more so beside more columns; a store stage finishes rows that follow each other. From beyond half of L3 a Zen 4 is quicker with rows
 * that follow each other, as many as there are registers for: 8448x4x2816 7.5 and 4.7 ms, 6x4096x4096 by a transposed B 5.3 and 2.3. Not beside
 * one or two columns, if they are shorter than half a page or come from L3: 200000x1x128 3.9 and 4.9, 4608x2x1536 0.59 and 0.64. */
static int streams(const vx_dotted *work) {
  int64_t k = work->call->k, width = work->width;
  if (!vx_stream_rows[width] || !outside(work) || (vx_store_stage && work->splits == 1)) return 0;
  if (width >= LOADED && !vx_in_whole_lines(work->x, 0, work->ldx)) return 0;
  int narrow = width <= PAIR, is_short = work->ldx * VX_ITEM < HALF_PAGE, reached = within_reach(work);
  if (vx_roomy && !reached && !(narrow && (is_short || within(work, 1)))) return 0;
  int64_t lines = work->near || narrow ? 2 : reached ? 6 : 3;
  return k >= lines * LINE;
}

static int64_t tallest(const vx_dotted *work, int64_t columns) {
  if (work->near) return vx_near_rows[columns];
  if (work->ahead) return abreast(work) ? vx_stream_rows[columns] : smaller(vx_stream_rows[columns], PAIR);
  return smaller(vx_dot_rows[columns], work->followed);
}

/* The kernels of so many columns, by rows. */
static const vx_dot *tiles_of(const vx_dotted *work, int64_t columns) {
  return work->near ? vx_near_tiles[columns] : work->ahead ? vx_stream_tiles[columns] : vx_dot_tiles[columns];
}

/* Tiles of rows as far apart as `rows` of them have room for; how many they leave. Of a short piece of k the same one of a row
 * to come is asked for: as many rows on as fit whole into what is asked ahead of other rows, and one at least. */
static int64_t run_streams(const vx_dotted *work, const vx_part *part, const void *x, const void *y, int64_t rows, sums to) {
  int64_t height = tallest(work, work->width), tiles = rows / height;
  int is_short = part->depth < work->call->k && part->depth <= PIECE;
  int64_t ahead = is_short ? larger(work->ahead / larger(part->depth, 1), 1) * work->ldx : work->ahead;
  vx_dot tile = tiles_of(work, work->width)[height];
  for (int64_t i = 0; i < tiles; i++)
    tile(element(x, i * work->ldx), y, to.c + i * to.row_stride, part->depth, tiles * work->ldx, work->ldy, tiles * to.row_stride,
         to.column_stride, part->accumulate, ahead FORMS(work, to));
  return rows - tiles * height;
}

/* Sums of a part of k for the rows `row` to `end` and one tile of columns. */
static void run_tile(const vx_dotted *work, const vx_part *part, int64_t row, int64_t end, int64_t column, int64_t columns, asked by,
                     sums to) {
  const void *x = element(work->x, part->first), *y = element(work->y, part->first + column * work->ldy);
  const vx_dot *tiles = tiles_of(work, columns);
  int64_t most = tallest(work, columns), left = end - row;
  if (work->ahead) left = run_streams(work, part, element(x, row * work->ldx), y, left, to);
  to.c += (end - row - left) * to.row_stride;
  for (row = end - left; row < end; by.turn = (by.turn ? by.turn : by.turns) - 1) {
    int64_t height = smaller(most, end - row), next = by.turn ? 0 : by.further;
    vx_dot tile = tiles[height] ? tiles[height] : vx_dot_tiles[columns][height]; /* what is left of many streams */
    tile(element(x, row * work->ldx), y, to.c, part->depth, work->ldx, work->ldy, to.row_stride, to.column_stride,
                  part->accumulate, by.turns ? next : next_tiles(work, height, part->depth) FORMS(work, to));
    row += height;
    to.c += height * to.row_stride;
  }
}

/* As much of k at a time as L1 keeps of a tile of columns; it orders the sums, and so depends on k and columns alone. */
static int64_t piece_of(const vx_dotted *work, int64_t depth) {
  int64_t most = keeps(work) && !abreast(work) ? vx_dot_bytes / VX_ITEM / work->width : depth;
  int from_l2 = few(work) || very_long(work);
  int many = !from_l2 && 4 * work->width * depth * VX_ITEM > 3 * vx_dot_bytes;
  if (many && work->columns == work->width && vx_stream_rows[work->width]) most = smaller(most, PIECE);
  if (from_l2) most = smaller(most, vx_dot_kept / VX_ITEM / work->width);
  return even_part(depth, larger(most, 1), LINE);
}

/* The rows `row` to `end`, after which come those to `last`. */
static void run_rows(const vx_dotted *work, const vx_part *part, int64_t row, int64_t end, int64_t last, sums to) {
  int64_t width = work->width, most = tallest(work, width), tiles = quotient_up(work->columns, width);
  int64_t depth = piece_of(work, part->depth), again = !work->ahead && (tiles > 1 || (depth < part->depth && width >= vx_dot_pieced));
  int64_t kept = vx_dot_kept / VX_ITEM, chunk = again ? larger(kept / (depth + 1) / most * most, most) : end - row;
  static const int32_t nothing[VX_DOT_SHORT];
  for (; row < end; row += chunk, to.c += chunk * to.row_stride) {
    int64_t stop = smaller(row + chunk, end), next_chunk = stop < last ? (stop - row) * work->ldx : 0, done = 0;
    do {
      vx_part piece = *part;
      piece.first += done;
      piece.depth = smaller(depth, part->depth - done);
      piece.accumulate |= done > 0;
      for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t column = tile * work->columns / tiles, next_column = (tile + 1) * work->columns / tiles;
        asked by = {done + depth < part->depth ? depth : next_chunk - done, tile, again ? tiles : 0};
        sums from = {to.c + column * to.column_stride, to.row_stride, to.column_stride, done ? nothing : to.offsets + column};
        run_tile(work, &piece, row, stop, column, next_column - column, by, from);
      }
      done += depth; /* offsets are of all of k */
    } while (done < part->depth);
  }
}

/* Distance between columns that are laid anew: in L1, a piece of one ends where that of the next begins. */
static int64_t line_of(const vx_dotted *work) {
  int64_t depth = vx_part_depth(work->call->k, work->splits), line = rounded(depth, LINE), span = vx_l1_span / VX_ITEM;
  return line + ((piece_of(work, depth) - line) % span + span) % span;
}

/* Whether columns straddle lines, or crowd in some sets of L1 and leave others. */
static int ill_placed(const vx_dotted *work, int64_t line) {
  int64_t bytes = work->ldy * VX_ITEM;
  return ((uintptr_t)work->y | (uintptr_t)bytes) % (LINE * VX_ITEM) || (work->ldy - line) * VX_ITEM % vx_l1_span;
}

/* The columns again, a part of them, each from the beginning of a line; those of a B by rows come out of it. By every task for itself:
 * what another core has just written comes from there slowly, and is called back to be written again (two cores of a Zen 4, 14x6x5869 in
 * two parts of k 18 and 10 us, 128x10x512 11.0 and 8.7). 1 where there is no memory. */
static int lay_anew(vx_dotted *work, const vx_part *part) {
  int64_t line = work->line;
  char *y = vx_scratch((size_t)(line * work->columns + 1) * VX_ITEM);
  if (!y) return 1;
#if TURNS
  if (work->turned)
    vortex_transpose(work->call->b + part->first * work->ldy, (float *)y, work->columns, part->depth, work->ldy, line);
#endif
  for (int64_t j = work->turned ? work->columns : 0; j < work->columns; j++)
    memcpy(y + j * line * VX_ITEM, element(work->y, part->first + j * work->ldy), (size_t)part->depth * VX_ITEM);
  work->y = element(y, -part->first);
  work->ldy = line;
  return 0;
}

void vx_run_dots(void *context, int64_t index) {
  vx_dotted *given = context, own;
  const vx_dotted *work = given;
  vx_part part = vx_part_of(given->call, given->parts, given->splits, index / given->blocks);
  if (given->line) {
    own = *given;
    if (lay_anew(&own, &part)) {
      atomic_store(&given->out_of_memory, 1);
      return;
    }
    work = &own;
  }
  int64_t row = index % work->blocks * work->rows_per_task, end = row + work->rows_per_task;
  int64_t row_stride = work->over_b ? 1 : part.ldc, column_stride = work->over_b ? part.ldc : 1;
  int32_t offsets[VX_DOT_SHORT];
  if (end > work->rows) end = work->rows;
  tell_offsets(work, &part, offsets);
  if (!vx_store_stage || work->splits > 1) {
    run_rows(work, &part, row, end, end, (sums){part.c + row * row_stride, row_stride, column_stride, offsets});
    return;
  }
  float apart[TILES * 8 * VX_DOT_SHORT];
  int64_t chunk = TILES * tallest(work, work->width);
  vx_store store = vx_store_of(work->call);
  if (vx_apart) {
    row_stride = work->over_b ? 1 : work->columns;
    column_stride = work->over_b ? chunk : 1;
  }
  for (; row < end; row += chunk) {
    int64_t stop = smaller(row + chunk, end);
    float *c = vx_apart ? apart : part.c + row * row_stride;
    run_rows(work, &part, row, stop, end, (sums){c, row_stride, column_stride, offsets});
    if (work->over_b)
      vortex_store(&store, c, column_stride, 0, row, work->columns, stop - row);
    else
      vortex_store(&store, c, row_stride, row, 0, stop - row, work->columns);
  }
}

void vx_dots_of(const vx_call *call, const vx_plan *plan, vx_dotted *prepared) {
  int over_b = call->transpose_b && call->m < call->n;
  vx_dotted work = {.call = call, .columns = short_side(call), .blocks = plan->grid_m * plan->grid_n, .splits = plan->splits,
              .over_b = over_b};
  work.x = over_b ? call->b : call->a;
  work.ldx = over_b ? call->ldb : call->lda;
  work.rows = over_b ? call->n : call->m;
  work.y = over_b ? call->a : call->b;
  work.ldy = over_b ? call->lda : call->ldb;
  work.width = tile_of(work.columns);
  take_bytes(&work);
  work.turned = TURNS && !call->transpose_b && !(call->n == 1 && call->ldb == 1);
  int reread = keeps(&work) && work.rows >= vx_dot_passes * work.columns;
  if (work.turned || reread) work.line = line_of(&work);
  if (!work.turned && !ill_placed(&work, work.line)) work.line = 0;
  work.followed = followed(&work);
  work.near = from_near(&work);
  work.ahead = !streams(&work) ? 0 : within_reach(&work) || abreast(&work) ? NEAR_AHEAD : STREAM_AHEAD;
  work.rows_per_task = rounded(quotient_up(work.rows, work.blocks), tallest(&work, work.width));
  *prepared = work;
}

int vx_execute_dot(const vx_call *call, const vx_plan *plan) {
  vx_dotted work;
  vx_dots_of(call, plan, &work);
  if (plan->splits > 1 && !(work.parts = vx_parts(call, plan->splits))) return 1;
  vx_parallel(vx_run_dots, &work, work.blocks * work.splits);
  if (work.out_of_memory) return 1;
  vx_add_parts(call, work.parts, plan->splits);
  return 0;
}

int vx_execute_dot_task(const vx_call *call, const vx_plan *plan, int64_t index) {
  vx_dotted work;
  vx_dots_of(call, plan, &work);
  vx_run_dots(&work, index);
  return work.out_of_memory;
}
