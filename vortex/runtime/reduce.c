/* L1 and L2 of a reduction. The depth is cut into chunks by the shape alone; each chunk is summed in one order and their
 * results are reduced in turn, so a result has the same bits on any number of threads. */
#include "reduce.h"

#define CHUNK 32768      /* elements that one chunk holds at least: reading them outlasts handing them out */
#define LEAST_DEPTH 512  /* rows of a chunk of many columns: their partial results are a small share of what is read */
#define TILE_DEPTH 8     /* rows that go by at a time where they are long: as many streams as prefetchers follow */
#define TILE_WIDTH 4096  /* columns whose results stay in L1 meanwhile */
#define SPREAD 4         /* tasks for each thread: a late one delays the call by a part of its share */

typedef struct {
  vx_reduction r;
  const vx_reduce_tile *tile; /* NULL for columns */
  int64_t chunk, chunks, blocks, block, items, tasks;
  float divisor;
} job;

static int by_rows(const vx_reduction *r) { return r->depth_stride == 1 && (r->inner == 1 || r->inner_stride != 1); }

/* Depth of one chunk where `width` elements lie side by side. */
static int64_t chunk_of(int64_t depth, int64_t width) {
  int64_t least = CHUNK / (width < 1 ? 1 : width);
  if (least < LEAST_DEPTH) least = LEAST_DEPTH;
  return depth >= 2 * least ? least : depth;
}

/* The tile of rows of least cost; the first of equals. */
static int64_t choose(int64_t rows, int64_t depth, int64_t chunks) {
  int64_t best = -1;
  float least = __builtin_inff();
  for (int64_t i = 0; i < vx_reduce_tile_count; i++) {
    const vx_reduce_tile *t = &vx_reduce_tiles[i];
    if (t->rows > rows || (chunks > 1 && t->rows > 1)) continue;
    float groups = (float)quotient_up(rows, t->rows), steps = (float)quotient_up(depth, t->vectors * vx_reduce_lanes);
    float slope = steps * t->slope;
    float cost = groups * (t->start + slope);
    if (cost < least) {
      least = cost;
      best = i;
    }
  }
  return best;
}

/* Items are (outer, group of rows) or, with several chunks, (row, chunk). Rows that no whole group covers are reduced with
 * some of the group before, once more: the same numbers from the same instructions. */
static void run_rows(const job *work, int64_t begin, int64_t end) {
  const vx_reduction *r = &work->r;
  const vx_reduce_tile *t = work->tile;
  while (begin < end) {
    if (work->chunks > 1) {
      int64_t row = begin / work->chunks, c = begin % work->chunks, first = c * work->chunk;
      t->run(r->x + row / r->inner * r->outer_stride + row % r->inner * r->inner_stride + first, r->out + begin, 1,
             smaller(work->chunk, r->depth - first), 0, 1, work->divisor);
      begin++;
      continue;
    }
    int64_t o = begin / work->blocks, g = begin % work->blocks, count = smaller(end - begin, work->blocks - g);
    const float *x = r->x + o * r->outer_stride;
    float *out = r->out + o * r->inner;
    t->run(x + g * t->rows * r->inner_stride, out + g * t->rows, count, r->depth, r->inner_stride, 1, work->divisor);
    if (g + count == work->blocks && r->inner % t->rows)
      t->run(x + (r->inner - t->rows) * r->inner_stride, out + r->inner - t->rows, 1, r->depth, r->inner_stride, 1, work->divisor);
    begin += count;
  }
}

/* Items are (outer, chunk, block of columns). */
static void run_columns(const job *work, int64_t begin, int64_t end) {
  const vx_reduction *r = &work->r;
  for (; begin < end; begin++) {
    int64_t b = begin % work->blocks, c = begin / work->blocks % work->chunks, o = begin / work->blocks / work->chunks;
    int64_t column = b * work->block, columns = smaller(work->block, r->inner - column);
    int64_t first = c * work->chunk, depth = smaller(work->chunk, r->depth - first);
    int64_t step = columns <= vx_reduce_width ? depth : TILE_DEPTH, k = 0;
    const float *x = r->x + o * r->outer_stride + first * r->depth_stride + column;
    float *out = r->out + (o * work->chunks + c) * r->inner + column;
    do {
      int64_t deep = smaller(step, depth - k);
      vx_reduce_column_tile(x + k * r->depth_stride, out, columns, deep, r->depth_stride, k > 0, k + deep == depth ? work->divisor : 1.0f);
      k += deep;
    } while (k < depth);
  }
}

static void run_task(void *context, int64_t index) {
  const job *work = context;
  int64_t begin = work->items * index / work->tasks, end = work->items * (index + 1) / work->tasks;
  (work->tile ? run_rows : run_columns)(work, begin, end);
}

/* One sweep over x: whole results, or one for each chunk of the depth. */
static job job_of(const vx_reduction *r, int64_t threads) {
  int64_t bytes = r->outer * r->depth * r->inner * (int64_t)sizeof(float), rows = by_rows(r);
  int64_t wanted = smaller(bytes / vx_reduce_grain, SPREAD * threads), chunk = chunk_of(r->depth, rows ? 1 : r->inner);
  if (wanted < 1 || threads < 2) wanted = 1;
  job work = {.r = *r, .chunk = chunk, .chunks = r->depth ? quotient_up(r->depth, chunk) : 1, .divisor = 1.0f};
  if (rows) {
    if (r->inner == 1) { /* rows are what the kernels step over */
      work.r.inner = r->outer;
      work.r.inner_stride = r->outer_stride;
      work.r.outer = 1;
    }
    work.tile = &vx_reduce_tiles[choose(work.r.inner, r->depth, work.chunks)];
    work.block = work.tile->rows;
    work.blocks = work.r.inner / work.block;
    work.items = work.chunks > 1 ? work.r.outer * work.r.inner * work.chunks : work.r.outer * work.blocks;
  } else {
    int64_t others = r->outer * work.chunks;
    work.block = smaller(TILE_WIDTH, rounded(quotient_up(r->inner, quotient_up(wanted, others)), vx_reduce_width));
    work.blocks = quotient_up(r->inner, work.block);
    work.items = others * work.blocks;
  }
  work.tasks = smaller(wanted, work.items);
  return work;
}

/* What reduces the results of the chunks of a sweep over `r`, which lie at `partial`. */
static vx_reduction next_of(const vx_reduction *r, int64_t chunks, const float *partial) {
  int rows = by_rows(r);
  return (vx_reduction){.x = partial, .outer = r->outer, .depth = chunks, .inner = r->inner,
                        .outer_stride = rows ? r->inner * chunks : chunks * r->inner,
                        .depth_stride = rows ? 1 : r->inner, .inner_stride = rows ? chunks : 1};
}

int64_t vx_reduce_sweeps(const vx_reduction *given, int64_t threads, vx_reduce_sweep *sweeps) {
  vx_reduction r = *given;
  for (int64_t count = 0;;) {
    job work = job_of(&r, threads);
    int64_t tile = work.tile ? work.tile - vx_reduce_tiles : vx_reduce_tile_count;
    sweeps[count++] = (vx_reduce_sweep){work.r.outer, r.depth,    work.r.inner, tile,      work.chunk,
                                        work.chunks,  work.block, work.items,   work.tasks};
    if (work.chunks == 1 || count == VX_REDUCE_SWEEPS) return count;
    r = next_of(&r, work.chunks, NULL);
  }
}

int vx_reduce(const vx_reduction *given) {
  vx_reduction r = *given;
  float *partial = NULL;
  for (;;) {
    job work = job_of(&r, vx_get_threads());
    if (work.chunks == 1) {
      work.r.out = given->out;
      if (vx_reduce_is_mean) work.divisor = (float)given->depth;
      vx_parallel(run_task, &work, work.tasks);
      return 0;
    }
    /* Partial results of a sweep, then room for those of the next one: each is a small share of what it came from. */
    int64_t count = r.outer * work.chunks * r.inner;
    if (!partial && !(partial = vx_shared_scratch((size_t)(count * 2) * sizeof(float)))) return 1;
    work.r.out = partial;
    vx_parallel(run_task, &work, work.tasks);
    r = next_of(&r, work.chunks, partial);
    partial += count;
  }
}
