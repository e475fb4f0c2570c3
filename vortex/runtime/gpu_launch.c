/* Kernels of a GPU library put onto a stream: their arguments, grids, workspace, and one region after the other. */
#include "gpu_call.h"

#define MOST_LAYERS 65535 /* of a grid along y and z */

typedef struct {
  _Alignas(64) unsigned char bytes[128];
} tensor_map;

/* A descriptor of boxes of a matrix for the tensor memory accelerator: 128-byte swizzle, zeros outside. */
static int encode(const library *of, const matrix *x, const uint32_t *box, tensor_map *map) {
  uint64_t extents[2] = {(uint64_t)x->columns, (uint64_t)x->rows}, strides[1] = {(uint64_t)(x->stride * of->item_bytes)};
  uint32_t steps[2] = {1, 1};
  enum { INTERLEAVE_NONE = 0, SWIZZLE_128B = 3, PROMOTION_L2_256B = 3, FILL_ZEROS = 0 };
  return of->on.driver.encode_map(map->bytes, of->setup.map_type, 2, x->data, extents, strides, box, steps, INTERLEAVE_NONE,
                                  SWIZZLE_128B, PROMOTION_L2_256B, FILL_ZEROS);
}

typedef struct {
  void *pointers[4];
  int32_t numbers[VX_PARAMETERS];
  tensor_map maps[2];
  vx_gpu_finished finished[2]; /* C, and the partial sums in its place */
  vx_gpu_batches batches[2];
  vx_gpu_row_groups groups;
  vx_gpu_window window;
} arguments;

/* One grid for each 65535 products of a batch. */
static int launch(const library *of, const vx_gpu_entry *entry, int64_t grid_x, int64_t batch, int64_t grid_z, arguments *args, void *stream) {
  void *list[VX_MOST_PARAMETERS];
  for (int32_t i = 0; i < entry->parameter_count; i++) {
    int what = entry->parameters[i];
    list[i] = what <= VX_W            ? (void *)&args->pointers[what]
              : what < VX_MAP_A       ? (void *)&args->numbers[what]
              : what < VX_FINISHED_C  ? (void *)&args->maps[what - VX_MAP_A]
              : what < VX_BATCH       ? (void *)&args->finished[what - VX_FINISHED_C]
              : what < VX_GROUPS      ? (void *)&args->batches[what - VX_BATCH]
              : what == VX_GROUPS     ? (void *)&args->groups
                                      : (void *)&args->window;
  }
  int status = 0;
  for (int64_t first = 0; first < batch && !status; first += MOST_LAYERS) {
    int64_t layers = smaller(batch - first, MOST_LAYERS);
    args->batches[0].first = args->batches[1].first = first;
    status = of->on.driver.launch(entry->function, (unsigned)grid_x, (unsigned)layers, (unsigned)grid_z, entry->block[0], entry->block[1],
                                  entry->block[2], entry->shared_bytes, stream, list, NULL);
  }
  return status;
}

/* Where the products of a batch begin, in bytes; partial sums of each lie one after the other. */
static void lay_out(const library *of, const call *c, int64_t splits, vx_gpu_batches *both) {
  vx_gpu_batches *all = &both[0];
  all->inner = c->c.extents[1];
  for (int axis = 0; axis < 2; axis++) {
    all->a[axis] = c->a.steps[axis] * of->item_bytes;
    all->b[axis] = c->b.steps[axis] * of->item_bytes;
    all->c[axis] = c->c.steps[axis] * of->out_bytes;
  }
  all->w[1] = splits * c->shape.m * c->shape.n * 4;
  all->w[0] = all->inner * all->w[1];
  both[1] = *all;
  both[1].c[0] = all->w[0];
  both[1].c[1] = all->w[1];
}

static int64_t tiles_of(const vx_gpu_kernel *kernel, const vx_gpu_shape *s) {
  return quotient_up(s->m, kernel->tile_m) * quotient_up(s->n, kernel->tile_n);
}

/* Blocks of a grid of so many tiles. */
static int64_t blocks_of(const vx_gpu_kernel *kernel, int64_t tiles) {
  int64_t blocks = tiles * kernel->cluster;
  return kernel->staying ? smaller(blocks, kernel->staying) : blocks;
}

static int64_t blocks_of_reduction(const library *of, const vx_gpu_shape *s) {
  return quotient_up(s->m * s->n, of->setup.reduce_columns);
}

/* Tiles of all groups by one kernel. */
static int64_t tiles_of_groups(const vx_gpu_kernel *kernel, const call *c) {
  int64_t tall = 0;
  for (int64_t i = 0; i < c->groups; i++) tall += quotient_up(c->rows[i], kernel->tile_m);
  return tall * quotient_up(c->shape.n, kernel->tile_n);
}

/* One grid for each 256 groups: a block finds its own in the table that it is given. */
static int launch_groups(const library *of, const vx_gpu_kernel *kernel, const call *c, arguments *args, void *stream) {
  vx_gpu_row_groups *table = &args->groups;
  int64_t wide = quotient_up(c->shape.n, kernel->tile_n);
  table->a = (c->shape.transpose_a ? 1 : c->a.stride) * of->item_bytes;
  table->b = c->b.steps[1] * of->item_bytes;
  table->c = c->c.stride * of->out_bytes;
  table->rows[0] = 0;
  int status = 0;
  for (int64_t first = 0; first < c->groups && !status; first += VX_MOST_GROUPS) {
    table->first = (int32_t)first;
    table->count = (int32_t)smaller(c->groups - first, VX_MOST_GROUPS);
    table->tiles[0] = 0;
    for (int32_t i = 0; i < table->count; i++) {
      int64_t rows = c->rows[first + i];
      table->rows[i + 1] = table->rows[i] + (int32_t)rows;
      table->tiles[i + 1] = table->tiles[i] + (int32_t)quotient_up(rows, kernel->tile_m);
    }
    int64_t tiles = table->tiles[table->count];
    if (tiles) status = launch(of, &of->setup.entries[kernel->direct], tiles * wide, 1, 1, args, stream);
    table->rows[0] = table->rows[table->count];
  }
  return status;
}

/* Sums of no products in groups of rows, through the epilogue: what it reads per column may be of each group. */
static int finish_nothing_of_groups(const library *of, const call *c, arguments *args, void *stream) {
  int status = 0;
  int64_t row = 0;
  for (int64_t g = 0; g < c->groups && !status; row += c->rows[g++]) {
    vx_gpu_shape one = {.m = c->rows[g], .n = c->shape.n};
    if (!one.m) continue;
    args->numbers[VX_M] = (int32_t)one.m;
    args->finished[0] = c->finished;
    args->finished[0].c = c->c.data + row * c->c.stride * of->out_bytes;
    args->finished[0].at[0] = row;
    args->finished[0].at[1] = g;
    status = launch(of, &of->setup.entries[of->setup.reduce], blocks_of_reduction(of, &one), 1, 1, args, stream);
  }
  return status;
}

/* The workspace of a stream, where a plan needs one; a refusal that tells its size where there is none. */
static int64_t find_partials(const library *of, const call *c, const vx_gpu_plan *plan, void *stream, void **partials) {
  *partials = NULL;
  if (plan->splits <= 1) return 0;
  int64_t need = c->shape.batch * plan->splits * c->shape.m * c->shape.n * 4;
  *partials = vx_gpu_workspace(&of->on, stream, need);
  return *partials ? 0 : DETAILED(NEEDS_WORKSPACE, OPERAND_OUT, need);
}

/* One product by one kernel, with the context current: a status of the driver. */
static int queue(const library *of, const call *c, const vx_gpu_plan *plan, void *partials, void *stream) {
  const vx_gpu_kernel *kernel = &of->setup.kernels[plan->kernel];
  const vx_gpu_shape *s = &c->shape;
  arguments args;
  args.pointers[VX_A] = c->a.data;
  args.pointers[VX_B] = c->b.data;
  args.pointers[VX_C] = c->c.data;
  args.pointers[VX_W] = partials;
  args.numbers[VX_M] = (int32_t)c->c.rows;
  args.numbers[VX_N] = (int32_t)s->n;
  args.numbers[VX_K] = (int32_t)s->k;
  args.numbers[VX_LDA] = (int32_t)c->a.stride;
  args.numbers[VX_LDB] = (int32_t)c->b.stride;
  args.numbers[VX_LDC] = (int32_t)c->c.stride;
  args.numbers[VX_CHUNK] = plan->chunk;
  args.numbers[VX_SPLITS] = plan->splits;
  args.numbers[VX_RASTER] = plan->raster;
  args.finished[0] = args.finished[1] = c->finished;
  args.finished[1].c = partials;
  args.window = c->window;
  lay_out(of, c, plan->splits, args.batches);
  int status = 0;
  if (s->k == 0 && of->setup.finishes) {
    args.numbers[VX_SPLITS] = 0; /* sums of nothing */
    if (c->rows) return finish_nothing_of_groups(of, c, &args, stream);
    return launch(of, &of->setup.entries[of->setup.reduce], blocks_of_reduction(of, s), s->batch, 1, &args, stream);
  }
  if (s->k == 0 && c->rows)
    return of->on.driver.fill_2d((uint64_t)(uintptr_t)c->c.data, (size_t)(c->c.stride * of->out_bytes), 0, (size_t)(s->n * of->out_bytes),
                                 (size_t)c->c.rows, stream);
  if (s->k == 0) {
    for (int64_t product = 0; product < s->batch && !status; product++) {
      int64_t offset = product / c->c.extents[1] * args.batches[0].c[0] + product % c->c.extents[1] * args.batches[0].c[1];
      status = of->on.driver.fill_2d((uint64_t)(uintptr_t)(c->c.data + offset), (size_t)(c->c.stride * of->out_bytes), 0,
                                     (size_t)(s->n * of->out_bytes), (size_t)s->m, stream);
    }
    return status;
  }
  if (kernel->box_a[0]) {
    status = encode(of, &c->a, kernel->box_a, &args.maps[0]);
    if (!status) status = encode(of, &c->b, kernel->box_b, &args.maps[1]);
  }
  if (c->rows) return launch_groups(of, kernel, c, &args, stream);
  const vx_gpu_entry *entry = &of->setup.entries[plan->splits > 1 ? kernel->split : kernel->direct];
  if (!status) status = launch(of, entry, blocks_of(kernel, tiles_of(kernel, s)), s->batch, plan->splits, &args, stream);
  if (!status && plan->splits > 1)
    status = launch(of, &of->setup.entries[of->setup.reduce], blocks_of_reduction(of, s), s->batch, 1, &args, stream);
  return status;
}

/* Lines (elements of each, where `along`) `from` to `to` of a matrix. */
static void narrow(matrix *x, int along, int64_t from, int64_t to, int64_t item) {
  x->data += from * (along ? 1 : x->stride) * item;
  *(along ? &x->columns : &x->rows) = to - from;
}

/* The product of some rows of C (columns where `along_n`) with everything that belongs to them. */
static call region(const library *of, const call *whole, int along_n, int64_t from, int64_t to) {
  call c = *whole;
  if (along_n) narrow(&c.b, !c.shape.transpose_b, from, to, of->item_bytes);
  else narrow(&c.a, c.shape.transpose_a, from, to, of->item_bytes);
  narrow(&c.c, along_n, from, to, of->out_bytes);
  *(along_n ? &c.shape.n : &c.shape.m) = to - from;
  c.finished.c = c.c.data;
  for (int32_t i = 0; i < of->setup.extra_count; i++) {
    int64_t step = along_n ? c.finished.column[i] : c.finished.row[i];
    c.finished.operand[i] = (const char *)c.finished.operand[i] + from * step * (of->setup.extras[i].bits / 8);
  }
  return c;
}

/* Regions one after the other on the stream; nothing is launched before all is known to be at hand. */
int64_t vx_gpu_run(library *of, const call *whole, const vx_gpu_regions *regions, void *stream) {
  call parts[2] = {*whole};
  void *partials[2];
  if (regions->count == 2) {
    parts[0] = region(of, whole, regions->along_n, 0, regions->at);
    parts[1] = region(of, whole, regions->along_n, regions->at, regions->along_n ? whole->shape.n : whole->shape.m);
  }
  for (int32_t i = 0; i < regions->count; i++) {
    const vx_gpu_kernel *kernel = &of->setup.kernels[regions->plans[i].kernel];
    int64_t tiles = whole->rows ? tiles_of_groups(kernel, whole) : tiles_of(kernel, &parts[i].shape);
    if (tiles * kernel->cluster > LIMIT_32) return REFUSE(TOO_LARGE, OPERAND_OUT);
    int64_t refused = find_partials(of, &parts[i], &regions->plans[i], stream, &partials[i]);
    if (refused) return refused;
  }
  int is_foreign, status = vx_gpu_enter_context(&of->on, &is_foreign);
  if (status) return DETAILED(CUDA_ERROR, OPERAND_OUT, status);
  for (int32_t i = 0; i < regions->count && !status; i++) status = queue(of, &parts[i], &regions->plans[i], partials[i], stream);
  int left = vx_gpu_leave_context(&of->on, is_foreign);
  if (!status) status = left;
  return status ? DETAILED(CUDA_ERROR, OPERAND_OUT, status) : 0;
}
