/* L2 of a GEMM: the output cut into grid_m x grid_n blocks and k into parts, each task of one of both one call of an L1 nest. */
#include "narrow.h"
#include "streams.h"
#include "tasks.h"

/* Rows of a band of a turned product, at least. */
#define SHORTEST_TURNED 64

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
  int64_t kept = vx_keeps_panels(&work->call, s, at->m, at->end - at->column) ? work->tile_k * s->vectors * vx_lanes : 0;
  int64_t turned = s->held && work->call.transpose_b ? vx_held_turned_floats(at->end - at->column, at->part.depth) : 0;
  int64_t packed = a_floats + kept + turned + (s->pack_b ? (work->tile_k + 1) * at->tile_n : 0), floats = packed + tile_floats + row_floats;
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
  /* Rows that stream past C go over it at every few of them: a line of C that two tasks share would go from core to core as often (two cores
   * of a Zen 5, rows of C that begin within lines: 2x1000x4096 257 us so, 4x1024x1000 97; 110 and 39 by sums of each task's own). */
  int owns = s->streamed && !call->packed && work->grid_m * work->grid_n > 1;
  /* In one step of k, sums never touch the output: reading back what was just written to it would wait for memory. Either the store stage
   * is in the micro-kernel, or they lie in a tile of their own. */
  int at_once = stores(work) && work->tile_k >= call->k && !part->accumulate, apart = owns || (stores(work) && vx_apart && !at_once);
  int64_t stride = (at_once ? s->vectors * vx_lanes : at->tile_n) + vx_lanes, tile_floats = apart ? at->m * stride : 0;
  if (at_once && (!vx_finishes || call->transpose_a))
    tile_floats = (s->held ? at->tile_m : larger(tile_rows(s, at->end - at->column), vx_narrow_rows)) * stride;
  room own;
  if (make_room(work, at, tile_floats, 0, &own)) return 1;
  vx_store store = vx_store_of(call);
  int far = stores(work) && vx_overflows(call->outputs), dense = call->n == call->ldc && call->n <= at->tile_n;
  store.past = far && vx_store_past;
  /* Of outputs that caches hold a finished tile asks in vain, which takes it a twentieth longer (a Zen 2, 300x121x32, 20000x121x8). */
  store.in_order = far && dense && s->rows_first && vx_lanes < LINE_FLOATS;
  store.padded = vx_padded(call, s);
  vx_move_store(&store, at->row, 0);
  int64_t strip = apart ? at->tile_n : at->end - at->column; /* partial sums of so many columns at a time */
  int32_t finish = at_once ? VX_STORE_ONE_TILE : stores(work) ? VX_STORE_TILES : VX_STORE_NOTHING;
  for (int64_t column = at->column; column < at->end; column += strip) {
    int64_t stop = smaller(column + strip, at->end);
    float *target = part->c + at->row * part->ldc + column, *sums = at_once || apart ? own.tile : target;
    if (owns && part->accumulate) vortex_copy(target, sums, at->m, stop - column, part->ldc, stride);
    vx_run_nest(work, part, own.packed, own.a_floats, at->row, at->m, column, stop, sums,
             at_once || apart ? stride : part->ldc, &store, finish);
    if (owns && finish == VX_STORE_NOTHING) vortex_copy(sums, target, at->m, stop - column, stride, part->ldc);
  }
  if (store.past) vx_publish();
  return 0;
}

/* Of a product that was turned over, as many rows at a time as L2 keeps beside what is packed for them: with further panels they pass again,
 * and their sums are turned back from there. All, where B would be packed anew for each band. */
static int64_t turned_band(const vx_outer *work, const block *at) {
  const vx_strategy *s = work->strategy;
  int64_t depth = at->part.depth, tall = tile_rows(s, at->end - at->column), packed = s->pack_b ? depth * at->tile_n : 0;
  if (depth > work->tile_k) return at->m;
  int64_t most = (vx_dot_cached / (int64_t)sizeof(float) - packed) / larger(depth + at->tile_n, 1);
  int64_t bands = quotient_up(at->m, larger(most, SHORTEST_TURNED));
  return bands > 1 ? rounded(quotient_up(at->m, bands), tall) : at->m;
}

/* One that was turned over: rows are columns of C. A tile of it is made in the CacheBuffer and stored transposed. 1 if there is no memory. */
static int run_turned(const vx_outer *work, const block *at) {
  const vx_call *call = &work->call;
  int64_t stride = at->tile_n + vx_lanes, band = turned_band(work, at);
  room own;
  if (make_room(work, at, band * stride, vx_apart && stores(work) ? vx_lanes * (band + vx_lanes) : 0, &own)) return 1;
  vx_store store = vx_store_of(call);
  for (int64_t column = at->column; column < at->end; column += at->tile_n) {
    int64_t stop = smaller(column + at->tile_n, at->end);
    vx_part part = at->part;
    for (int64_t i = 0; i < at->m; i += band) {
      int64_t row = at->row + i, rows = smaller(band, at->m - i);
      float *target = part.c + column * part.ldc + row;
      if (part.accumulate) vortex_transpose(target, own.tile, rows, stop - column, part.ldc, stride);
      vx_run_nest(work, &part, own.packed, own.a_floats, row, rows, column, stop, own.tile, stride, &store, VX_STORE_NOTHING);
      part.filled = 1;
      if (stores(work))
        store_turned(call, &store, own.tile, stride, column, stop, row, rows, own.rows);
      else
        turn_back(own.tile, stride, target, part.ldc, stop - column, rows);
    }
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

/* Steps of k that L1 takes at a time, `most` and no more: about as many each, since under a short last one sums do not come in time. */
static int64_t even_steps(int64_t k, int64_t most) {
  return k > most ? smaller(even_part(k, most, LINE_FLOATS), most) : larger(k, 1);
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
  work->rows_per_task = quotient_up(work->call.m, plan->grid_m);
  work->nest = s->held       ? call->transpose_b ? vx_held_turning_nest : vx_held_nest
               : s->streamed ? vx_streamed_nest
                             : vx_nests[work->call.transpose_a][s->rows_first][s->pack_a][s->pack_b ? 1 + work->call.transpose_b : 0];
  if (vx_passes_abreast(&work->call, s, work->rows_per_task)) work->nest = vx_abreast_nest;
  int64_t depth = vx_part_depth(call->k, plan->splits);
  work->tile_k = even_steps(depth, vx_tile_depth(s, &work->call, work->rows_per_task));
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
