/* The door of a GPU library: one native call checks the operands, selects and launches on the caller's stream.
 *
 * It allocates nothing, waits for nothing, and links neither Python nor CUDA: the driver is opened by name, and operands
 * are read through DLPack's exchange API. A refusal is a number that gpu_launcher.py puts into words:
 *     reason | operand << 8 | detail << 16 */
#include "gpu_door.h"
#include "integers.h"

#include <dlfcn.h>
#include <dlpack/dlpack.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define REFUSE(reason, operand) ((int64_t)((reason) | (operand) << 8))
#define DETAILED(reason, operand, detail) (REFUSE(reason, operand) | (int64_t)(detail) << 16)
enum { OPERAND_A = 0, OPERAND_B = 1, OPERAND_OUT = 2, FIRST_EXTRA = 3, MOST_OPERANDS = FIRST_EXTRA + VX_MOST_EXTRAS };
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2 };
/* Mirrored by gpu_launcher.REASONS. */
enum {
  NOT_A_TENSOR = 1,
  BAD_RANK,
  BAD_DTYPE,
  BAD_DEVICE,
  OTHER_DEVICE,
  BAD_STRIDES,
  MISALIGNED,
  INNER_DIFFERS,
  BAD_OUT_SHAPE,
  OVERLAPS,
  TOO_LARGE,
  NEEDS_WORKSPACE,
  BAD_PLAN,
  PYTHON_ERROR,
  CUDA_ERROR,
  TOO_MANY_STREAMS,
  NO_KERNEL,
  BAD_EXTRA,
  BATCH_DIFFERS,
  BAD_GROUPS,
  BAD_FILTER
};

#define LIMIT_32 INT64_C(2147483647)
/* Of an extent: kernels count in 32 bits, and a few tiles past the end. */
#define LONGEST (LIMIT_32 - (1 << 16))
#define MOST_SPLITS 65535
#define MOST_LAYERS 65535 /* of a grid along y and z */

typedef struct {
  _Alignas(64) unsigned char bytes[128];
} tensor_map;

/* The few functions of the driver that a call uses. */
typedef struct {
  int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra);
  int (*get_context)(void **context);
  int (*push_context)(void *context);
  int (*pop_context)(void **context);
  int (*fill_2d)(uint64_t target, size_t pitch, unsigned char value, size_t width, size_t height, void *stream);
  int (*encode_map)(void *map, int type, unsigned rank, void *address, const uint64_t *extents, const uint64_t *strides,
                    const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
} driver_calls;

typedef struct {
  void *stream, *data;
  int64_t bytes;
} workspace;

typedef struct {
  vx_gpu_setup setup;
  driver_calls driver;
  int64_t item_bytes, out_bytes; /* of an element of A and B, and of C */
  int32_t may_cut; /* whether a call may be two regions */
  int32_t stream_count;
  workspace workspaces[VX_MOST_STREAMS];
} library;

/* A matrix in memory: `rows` lines of `columns` contiguous elements, `stride` elements apart; and up to two axes of such matrices. */
typedef struct {
  char *data;
  int64_t rows, columns, stride;
  int is_transposed; /* the tensor was column-major, so lines are its columns */
  int64_t extents[2], steps[2]; /* outer first; elements, 0 along what has but one */
} matrix;

typedef struct {
  matrix a, b, c;
  vx_gpu_shape shape;
  vx_gpu_finished finished;
  const int64_t *rows; /* of each of `groups` */
  int64_t groups;
  vx_gpu_window window;
} call;

EXPORT int32_t vx_gpu_abi(void) { return VX_DOOR_ABI; }

/* The driver's entry points by their versioned names; NULL and the name of the missing one in `missing`. */
EXPORT void *vx_gpu_open(const char *driver_name, const vx_gpu_setup *setup, const char **missing) {
  *missing = driver_name;
  void *handle = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return NULL;
  library *opened = calloc(1, sizeof *opened);
  if (!opened) return NULL;
  struct {
    const char *name;
    void **target;
    int required;
  } wanted[] = {
      {"cuLaunchKernel", (void **)&opened->driver.launch, 1},
      {"cuCtxGetCurrent", (void **)&opened->driver.get_context, 1},
      {"cuCtxPushCurrent_v2", (void **)&opened->driver.push_context, 1},
      {"cuCtxPopCurrent_v2", (void **)&opened->driver.pop_context, 1},
      {"cuMemsetD2D8Async", (void **)&opened->driver.fill_2d, 1},
      {"cuTensorMapEncodeTiled", (void **)&opened->driver.encode_map, setup->map_type >= 0},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    *wanted[i].target = dlsym(handle, wanted[i].name);
    if (!*wanted[i].target && wanted[i].required) {
      *missing = wanted[i].name;
      free(opened);
      return NULL;
    }
  }
  opened->setup = *setup;
  opened->item_bytes = setup->dtype_bits / 8;
  opened->out_bytes = setup->out_bits / 8;
  opened->may_cut = 1;
  return opened;
}

EXPORT void vx_gpu_polymerizing(library *of, int32_t on) { of->may_cut = on; }

EXPORT void vx_gpu_close(library *opened) { free(opened); }

/* Memory for partial sums of one stream; the caller keeps it alive. 0, or a refusal. */
EXPORT int64_t vx_gpu_set_workspace(library *of, void *stream, void *data, int64_t bytes) {
  int32_t at = 0;
  while (at < of->stream_count && of->workspaces[at].stream != stream) at++;
  if (at == VX_MOST_STREAMS) return REFUSE(TOO_MANY_STREAMS, OPERAND_OUT);
  of->workspaces[at] = (workspace){stream, data, bytes};
  if (at == of->stream_count) of->stream_count++;
  return 0;
}

/* Where a tensor's elements are, once it is known to be one of the type that is wanted on this device. */
static int64_t read_data(const library *of, const DLTensor *t, int operand, int32_t code, int32_t bits, char **data) {
  if (t->device.device_type != kDLCUDA && t->device.device_type != kDLCUDAManaged) return REFUSE(BAD_DEVICE, operand);
  if (t->device.device_id != of->setup.device) return DETAILED(OTHER_DEVICE, operand, t->device.device_id);
  if (t->dtype.code != code || t->dtype.bits != bits || t->dtype.lanes != 1) return REFUSE(BAD_DTYPE, operand);
  *data = (char *)t->data + t->byte_offset;
  return (uintptr_t)*data % (uintptr_t)(bits / 8) ? REFUSE(MISALIGNED, operand) : 0;
}

static int64_t read_matrix(const library *of, const DLTensor *t, int operand, matrix *out) {
  const vx_gpu_setup *s = &of->setup;
  int is_out = operand == OPERAND_OUT;
  int64_t refused = read_data(of, t, operand, is_out ? s->out_code : s->dtype_code, is_out ? s->out_bits : s->dtype_bits, &out->data);
  if (refused) return refused;
  if (t->ndim < 2 || t->ndim > (s->is_batched || s->is_grouped ? 4 : 2)) return REFUSE(BAD_RANK, operand);
  const int64_t *shape = t->shape + t->ndim - 2, *strides = t->strides ? t->strides + t->ndim - 2 : NULL;
  int64_t r = shape[0], c = shape[1];
  int64_t down = strides ? strides[0] : c, along = strides ? strides[1] : 1;
  int empty = 0;
  for (int i = 0; i < t->ndim; i++) empty |= t->shape[i] == 0;
  if (empty || ((c == 1 || along == 1) && (r == 1 || down >= c))) {
    *out = (matrix){out->data, r, c, r <= 1 || empty || down < c ? (c > 0 ? c : 1) : down, 0, {1, 1}, {0, 0}};
  } else if ((r == 1 || down == 1) && (c == 1 || along >= r)) {
    *out = (matrix){out->data, c, r, c <= 1 || along < r ? r : along, 1, {1, 1}, {0, 0}};
  } else {
    return REFUSE(BAD_STRIDES, operand);
  }
  if (out->rows > LONGEST || out->columns > LONGEST || out->stride > LIMIT_32) return REFUSE(TOO_LARGE, operand);
  if (!of->setup.wide && out->rows && out->columns && (out->rows - 1) * out->stride + out->columns > LIMIT_32)
    return REFUSE(TOO_LARGE, operand);
  for (int place = t->ndim - 3, axis = 1, dense = 1; place >= 0; place--, axis--) {
    out->extents[axis] = t->shape[place];
    if (t->strides) out->steps[axis] = t->strides[place];
    else out->steps[axis] = r * c * (dense ? 1 : out->extents[1]), dense = 0;
    if (out->extents[axis] == 1) out->steps[axis] = 0;
    if (out->steps[axis] < 0) return REFUSE(BAD_STRIDES, operand);
  }
  return 0;
}

static int is_empty(const matrix *x) { return !x->rows || !x->columns || !x->extents[0] || !x->extents[1]; }

/* Bytes from the first element to the end of the last. */
static int64_t reach(const matrix *x, int64_t item) {
  int64_t apart = (x->extents[0] - 1) * x->steps[0] + (x->extents[1] - 1) * x->steps[1];
  return (apart + (x->rows - 1) * x->stride + x->columns) * item;
}

/* The largest number of bytes that all lines start on a multiple of, from the first one; 0 for a single line. */
static int64_t spacing(const matrix *x, int64_t item) {
  int64_t step = x->rows > 1 ? x->stride : 0;
  for (int axis = 0; axis < 2; axis++)
    if (x->extents[axis] > 1) step = greatest_divisor(step, x->steps[axis]);
  return step * item;
}

/* Whether some byte may belong to both: not if they are apart, nor if all lines of one lie between lines of the other. */
static int overlap(const matrix *x, int64_t x_item, const matrix *y, int64_t y_item) {
  if (is_empty(x) || is_empty(y)) return 0;
  if (x->data + reach(x, x_item) <= y->data || y->data + reach(y, y_item) <= x->data) return 0;
  int64_t step = greatest_divisor(spacing(x, x_item), spacing(y, y_item));
  if (!step) return 1;
  int64_t apart = (x->data - y->data) % step;
  if (apart < 0) apart += step;
  return !(apart >= y->columns * y_item && apart + x->columns * x_item <= step);
}

/* A tensor of the epilogue, `end` elements long, which must not lie where C does. */
static int64_t take_extra(const library *of, int32_t which, char *data, int64_t end, int64_t row, int64_t column, call *c) {
  int64_t item = of->setup.extras[which].bits / 8;
  matrix whole = {data, 1, end, end, 0, {1, 1}, {0, 0}};
  if (!is_empty(&c->c) && overlap(&c->c, of->out_bytes, &whole, item)) return REFUSE(OVERLAPS, FIRST_EXTRA + which);
  c->finished.operand[which] = data;
  c->finished.row[which] = row;
  c->finished.column[which] = column;
  c->finished.apart[which] = 0;
  return 0;
}

/* A tensor of the epilogue of a product. */
static int64_t read_extra(const library *of, const DLTensor *t, int32_t which, call *c) {
  const vx_gpu_extra *wanted = &of->setup.extras[which];
  const vx_gpu_shape *s = &c->shape;
  int operand = FIRST_EXTRA + which, rank = wanted->per == VX_PER_ELEMENT ? 2 : 1;
  char *data;
  int64_t refused = read_data(of, t, operand, wanted->code, wanted->bits, &data), strides[2] = {0, 0}, end = 1;
  if (refused) return refused;
  if (t->ndim != rank) return REFUSE(BAD_EXTRA, operand);
  for (int axis = rank - 1, first = wanted->per == VX_PER_COLUMN, step = 1; axis >= 0; axis--) {
    int64_t extent = first + axis == 0 ? s->m : s->n, stride = t->strides ? t->strides[axis] : step;
    if (t->shape[axis] != extent) return REFUSE(BAD_EXTRA, operand);
    if (extent > 1 && stride < 0) return REFUSE(BAD_STRIDES, operand);
    strides[first + axis] = extent > 1 ? stride : 0;
    end += extent > 1 ? (extent - 1) * stride : 0;
    step = (int)(t->strides ? 1 : extent);
  }
  return take_extra(of, which, data, end, strides[0], strides[1], c);
}

/* The largest of 16, 8, 4, 2 that divides where every row starts and how long it is. */
static int32_t alignment(const matrix *x, int64_t item) {
  uint64_t bits = 16 | (uint64_t)(uintptr_t)x->data | (uint64_t)(x->columns * item);
  if (x->rows > 1) bits |= (uint64_t)(x->stride * item);
  for (int axis = 0; axis < 2; axis++)
    if (x->extents[axis] > 1) bits |= (uint64_t)(x->steps[axis] * item);
  return (int32_t)(bits & (~bits + 1));
}

/* C's alignment as kernels count it: in bytes of so many elements of A. None stores more than four elements at a time. */
static int32_t alignment_of_stores(const library *of, const matrix *c) {
  int32_t bytes = alignment(c, of->out_bytes);
  if (!of->setup.finishes) return bytes;
  return bytes >= 4 * of->out_bytes ? 16 : (int32_t)(bytes * of->item_bytes / of->out_bytes);
}

/* Whether products of a batch would write the same element: each axis, by step, must pass what those below it fill. */
static int meets_itself(const matrix *c) {
  int64_t extents[3] = {c->extents[0], c->extents[1], c->rows}, steps[3] = {c->steps[0], c->steps[1], c->stride}, filled = c->columns;
  for (int left = 3; left; left--) {
    int next = -1;
    for (int i = 0; i < 3; i++)
      if (extents[i] > 1 && (next < 0 || steps[i] < steps[next])) next = i;
    if (next < 0) break;
    if (steps[next] < filled) return 1;
    filled += (extents[next] - 1) * steps[next];
    extents[next] = 1;
  }
  return 0;
}

/* How many products there are: A's and B's axes, each as long as the other's or 1, which serves all. */
static int64_t open_batch(call *c) {
  c->shape.batch = 1;
  for (int axis = 0; axis < 2; axis++) {
    int64_t left = c->a.extents[axis], right = c->b.extents[axis], all = left == 1 ? right : left;
    if (right != all && right != 1) return REFUSE(BATCH_DIFFERS, OPERAND_B);
    if (c->c.extents[axis] != all) return REFUSE(BATCH_DIFFERS, OPERAND_OUT);
    c->shape.batch *= all;
  }
  return 0;
}

/* Products that all take the same B are one with more rows, if rows of A and of C go on from one to the next. */
static void fold(call *c) {
  for (int axis = 1; axis >= 0; axis--) {
    int64_t count = c->c.extents[axis], rows = c->shape.m * count;
    if (axis == 0 && c->c.extents[1] != 1) return;
    if (count == 1) continue;
    if (c->shape.transpose_a || c->b.extents[axis] != 1 || c->a.extents[axis] != count || rows > LONGEST) return;
    if (c->a.steps[axis] != c->shape.m * c->a.stride || c->c.steps[axis] != c->shape.m * c->c.stride) return;
    c->shape.batch /= count;
    c->shape.m = c->a.rows = c->c.rows = rows;
    c->a.extents[axis] = c->c.extents[axis] = 1;
    c->a.steps[axis] = c->c.steps[axis] = 0;
  }
}

/* A, B and C of one product, or of several that are alike. */
static int64_t open_product(const library *of, const DLTensor *tensors, int64_t flags, call *out) {
  int64_t refused;
  if ((refused = read_matrix(of, &tensors[0], OPERAND_A, &out->a)) || (refused = read_matrix(of, &tensors[1], OPERAND_B, &out->b)) ||
      (refused = read_matrix(of, &tensors[2], OPERAND_OUT, &out->c)))
    return refused;
  matrix *a = &out->a, *b = &out->b, *c = &out->c;
  vx_gpu_shape *s = &out->shape;
  s->seen = 1;
  s->transpose_a = !!(flags & TRANSPOSE_A) ^ a->is_transposed;
  s->transpose_b = !!(flags & TRANSPOSE_B) ^ b->is_transposed;
  s->m = s->transpose_a ? a->columns : a->rows;
  s->k = s->transpose_a ? a->rows : a->columns;
  s->n = s->transpose_b ? b->rows : b->columns;
  if ((s->transpose_b ? b->columns : b->rows) != s->k) return REFUSE(INNER_DIFFERS, OPERAND_B);
  if (c->is_transposed) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  return c->rows != s->m || c->columns != s->n ? REFUSE(BAD_OUT_SHAPE, OPERAND_OUT) : 0;
}

/* Whether C may be written while A and B are read. */
static int64_t refuse_overlaps(const library *of, const matrix *a, const matrix *b, const matrix *c) {
  if (!is_empty(c) && meets_itself(c)) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (overlap(c, of->out_bytes, a, of->item_bytes)) return REFUSE(OVERLAPS, OPERAND_A);
  return overlap(c, of->out_bytes, b, of->item_bytes) ? REFUSE(OVERLAPS, OPERAND_B) : 0;
}

static int64_t open_call(const library *of, const DLTensor *tensors, int64_t flags, call *out) {
  int64_t refused;
  matrix *a = &out->a, *b = &out->b, *c = &out->c;
  vx_gpu_shape *s = &out->shape;
  if ((refused = open_product(of, tensors, flags, out)) || (refused = open_batch(out)) || (refused = refuse_overlaps(of, a, b, c)))
    return refused;
  out->finished = (vx_gpu_finished){.c = c->data};
  for (int32_t i = 0; i < of->setup.extra_count; i++)
    if ((refused = read_extra(of, &tensors[FIRST_EXTRA + i], i, out))) return refused;
  s->alignment = alignment(a, of->item_bytes) | alignment(b, of->item_bytes) | alignment_of_stores(of, c);
  s->alignment &= -s->alignment;
  if (s->batch > 1 && s->m) fold(out);
  return 0;
}

/* A descriptor of boxes of a matrix for the tensor memory accelerator: 128-byte swizzle, zeros outside. */
static int encode(const library *of, const matrix *x, const uint32_t *box, tensor_map *map) {
  uint64_t extents[2] = {(uint64_t)x->columns, (uint64_t)x->rows}, strides[1] = {(uint64_t)(x->stride * of->item_bytes)};
  uint32_t steps[2] = {1, 1};
  enum { INTERLEAVE_NONE = 0, SWIZZLE_128B = 3, PROMOTION_L2_256B = 3, FILL_ZEROS = 0 };
  return of->driver.encode_map(map->bytes, of->setup.map_type, 2, x->data, extents, strides, box, steps, INTERLEAVE_NONE,
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
    int64_t layers = batch - first < MOST_LAYERS ? batch - first : MOST_LAYERS;
    args->batches[0].first = args->batches[1].first = first;
    status = of->driver.launch(entry->function, (unsigned)grid_x, (unsigned)layers, (unsigned)grid_z, entry->block[0], entry->block[1],
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

/* Whether a kernel serves operands of this layout and alignment. */
static int serves(const vx_gpu_kernel *kernel, const vx_gpu_shape *s) {
  return kernel->transpose_a == s->transpose_a && kernel->transpose_b == s->transpose_b && kernel->vector_bytes <= s->alignment;
}

static int64_t tiles_of(const vx_gpu_kernel *kernel, const vx_gpu_shape *s) {
  return ((s->m + kernel->tile_m - 1) / kernel->tile_m) * ((s->n + kernel->tile_n - 1) / kernel->tile_n);
}

static int64_t blocks_of_reduction(const library *of, const vx_gpu_shape *s) {
  return (s->m * s->n + of->setup.reduce_columns - 1) / of->setup.reduce_columns;
}

/* Tiles of all groups by one kernel. */
static int64_t tiles_of_groups(const vx_gpu_kernel *kernel, const call *c) {
  int64_t tall = 0;
  for (int64_t i = 0; i < c->groups; i++) tall += (c->rows[i] + kernel->tile_m - 1) / kernel->tile_m;
  return tall * ((c->shape.n + kernel->tile_n - 1) / kernel->tile_n);
}

/* One grid for each 256 groups: a block finds its own in the table that it is given. */
static int launch_groups(const library *of, const vx_gpu_kernel *kernel, const call *c, arguments *args, void *stream) {
  vx_gpu_row_groups *table = &args->groups;
  int64_t wide = (c->shape.n + kernel->tile_n - 1) / kernel->tile_n;
  table->a = (c->shape.transpose_a ? 1 : c->a.stride) * of->item_bytes;
  table->b = c->b.steps[1] * of->item_bytes;
  table->c = c->c.stride * of->out_bytes;
  table->rows[0] = 0;
  int status = 0;
  for (int64_t first = 0; first < c->groups && !status; first += VX_MOST_GROUPS) {
    table->first = (int32_t)first;
    table->count = (int32_t)(c->groups - first < VX_MOST_GROUPS ? c->groups - first : VX_MOST_GROUPS);
    table->tiles[0] = 0;
    for (int32_t i = 0; i < table->count; i++) {
      int64_t rows = c->rows[first + i];
      table->rows[i + 1] = table->rows[i] + (int32_t)rows;
      table->tiles[i + 1] = table->tiles[i] + (int32_t)((rows + kernel->tile_m - 1) / kernel->tile_m);
    }
    int64_t tiles = table->tiles[table->count];
    if (tiles) status = launch(of, &of->setup.entries[kernel->direct], tiles * wide, 1, 1, args, stream);
    table->rows[0] = table->rows[table->count];
  }
  return status;
}

/* The workspace of a stream, where a plan needs one; a refusal that tells its size where there is none. */
static int64_t find_partials(const library *of, const call *c, const vx_gpu_plan *plan, void *stream, void **partials) {
  *partials = NULL;
  if (plan->splits <= 1) return 0;
  int64_t need = c->shape.batch * plan->splits * c->shape.m * c->shape.n * 4;
  for (int32_t i = 0; i < of->stream_count; i++)
    if (of->workspaces[i].stream == stream && of->workspaces[i].bytes >= need) {
      *partials = of->workspaces[i].data;
      return 0;
    }
  return DETAILED(NEEDS_WORKSPACE, OPERAND_OUT, need);
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
    return launch(of, &of->setup.entries[of->setup.reduce], blocks_of_reduction(of, s), s->batch, 1, &args, stream);
  }
  if (s->k == 0 && c->rows)
    return of->driver.fill_2d((uint64_t)(uintptr_t)c->c.data, (size_t)(c->c.stride * of->out_bytes), 0, (size_t)(s->n * of->out_bytes),
                              (size_t)c->c.rows, stream);
  if (s->k == 0) {
    for (int64_t product = 0; product < s->batch && !status; product++) {
      int64_t offset = product / c->c.extents[1] * args.batches[0].c[0] + product % c->c.extents[1] * args.batches[0].c[1];
      status = of->driver.fill_2d((uint64_t)(uintptr_t)(c->c.data + offset), (size_t)(c->c.stride * of->out_bytes), 0,
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
  if (!status) status = launch(of, entry, tiles_of(kernel, s), s->batch, plan->splits, &args, stream);
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
static int64_t run(library *of, const call *whole, const vx_gpu_regions *regions, void *stream) {
  call parts[2] = {*whole};
  void *partials[2];
  if (regions->count == 2) {
    parts[0] = region(of, whole, regions->along_n, 0, regions->at);
    parts[1] = region(of, whole, regions->along_n, regions->at, regions->along_n ? whole->shape.n : whole->shape.m);
  }
  for (int32_t i = 0; i < regions->count; i++) {
    const vx_gpu_kernel *kernel = &of->setup.kernels[regions->plans[i].kernel];
    if ((whole->rows ? tiles_of_groups(kernel, whole) : tiles_of(kernel, &parts[i].shape)) > LIMIT_32) return REFUSE(TOO_LARGE, OPERAND_OUT);
    int64_t refused = find_partials(of, &parts[i], &regions->plans[i], stream, &partials[i]);
    if (refused) return refused;
  }
  void *current = NULL;
  int status = of->driver.get_context(&current);
  int foreign = !status && current != of->setup.context;
  if (foreign) status = of->driver.push_context(of->setup.context);
  if (status) return DETAILED(CUDA_ERROR, OPERAND_OUT, status);
  for (int32_t i = 0; i < regions->count && !status; i++) status = queue(of, &parts[i], &regions->plans[i], partials[i], stream);
  if (foreign) {
    int popped = of->driver.pop_context(&current);
    if (!status) status = popped;
  }
  return status ? DETAILED(CUDA_ERROR, OPERAND_OUT, status) : 0;
}

/* Launching may wait for room in the driver's queue: let other Python threads run meanwhile. */
static int64_t run_released(library *of, const call *c, const vx_gpu_regions *regions, void *stream) {
  if (is_empty(&c->c)) return 0;
  if (!of->setup.save_thread) return run(of, c, regions, stream);
  void *thread = ((void *(*)(void))of->setup.save_thread)();
  int64_t status = run(of, c, regions, stream);
  ((void (*)(void *))of->setup.restore_thread)(thread);
  return status;
}

/* By the plan that the selector picks; `room` bytes may be used by partial sums. */
static int64_t run_selected(library *of, const call *c, int64_t room, int32_t may_cut, void *stream) {
  vx_gpu_regions regions = {.count = 1, .plans = {{0, 1, (int32_t)c->shape.k, 1, 0}}};
  if (!is_empty(&c->c) && c->shape.k) vx_gpu_divide(&c->shape, room, may_cut, &regions);
  return regions.plans[0].kernel < 0 ? REFUSE(NO_KERNEL, OPERAND_A) : run_released(of, c, &regions, stream);
}

static int64_t select_and_run(library *of, const DLTensor *tensors, int64_t flags, void *stream) {
  call c = {0};
  int64_t refused = open_call(of, tensors, flags, &c);
  return refused ? refused : run_selected(of, &c, of->setup.workspace_bytes, of->may_cut, stream);
}

/* Operands of a framework that has DLPack's exchange API, on its current stream unless `has_stream`. */
EXPORT int64_t vx_gpu_gemm(library *of, const DLPackExchangeAPI *api, void *a, void *b, void *out, int64_t flags,
                           void *stream, int32_t has_stream) {
  DLTensor tensors[3];
  void *objects[3] = {a, b, out};
  for (int i = 0; i < 3; i++)
    if (api->dltensor_from_py_object_no_sync(objects[i], &tensors[i])) return REFUSE(PYTHON_ERROR, i);
  if (!has_stream && api->current_work_stream(kDLCUDA, of->setup.device, &stream)) return REFUSE(PYTHON_ERROR, OPERAND_OUT);
  return select_and_run(of, tensors, flags, stream);
}

/* The same with the tensors of an epilogue behind A, B and C. */
EXPORT int64_t vx_gpu_gemm_finished(library *of, const DLPackExchangeAPI *api, void *const *objects, int64_t flags, void *stream,
                                    int32_t has_stream) {
  DLTensor tensors[MOST_OPERANDS];
  for (int i = 0; i < FIRST_EXTRA + of->setup.extra_count; i++)
    if (api->dltensor_from_py_object_no_sync(objects[i], &tensors[i])) return REFUSE(PYTHON_ERROR, i);
  if (!has_stream && api->current_work_stream(kDLCUDA, of->setup.device, &stream)) return REFUSE(PYTHON_ERROR, OPERAND_OUT);
  return select_and_run(of, tensors, flags, stream);
}

static void gather(const library *of, const DLTensor *const *operands, DLTensor *tensors) {
  for (int i = 0; i < FIRST_EXTRA + of->setup.extra_count; i++) tensors[i] = *operands[i];
}

/* Operands by their DLPack descriptions. */
EXPORT int64_t vx_gpu_gemm_described(library *of, const DLTensor *const *operands, int64_t flags, void *stream) {
  DLTensor tensors[MOST_OPERANDS];
  gather(of, operands, tensors);
  return select_and_run(of, tensors, flags, stream);
}

/* Whether a plan can compute a product of these extents. */
static int64_t check_plan(const library *of, const vx_gpu_shape *s, const vx_gpu_plan *plan) {
  if (plan->kernel < 0 || plan->kernel >= of->setup.kernel_count) return REFUSE(BAD_PLAN, OPERAND_OUT);
  const vx_gpu_kernel *kernel = &of->setup.kernels[plan->kernel];
  int is_whole = plan->splits == 1;
  if (plan->splits < 1 || plan->splits > MOST_SPLITS || (!is_whole && (kernel->split < 0 || plan->chunk < 1 || plan->chunk % kernel->tile_k)))
    return REFUSE(BAD_PLAN, OPERAND_OUT);
  if (!is_whole && (int64_t)plan->chunk * plan->splits < s->k) return REFUSE(BAD_PLAN, OPERAND_OUT);
  return serves(kernel, s) ? 0 : REFUSE(BAD_PLAN, OPERAND_A);
}

/* The same with given plans: what the oracle of the evaluation and the check of every kernel call. */
EXPORT int64_t vx_gpu_gemm_planned(library *of, const DLTensor *const *operands, int64_t flags, void *stream, const vx_gpu_regions *regions) {
  DLTensor tensors[MOST_OPERANDS];
  call c = {0};
  gather(of, operands, tensors);
  int64_t refused = open_call(of, tensors, flags, &c);
  if (refused) return refused;
  int64_t length = regions->along_n ? c.shape.n : c.shape.m;
  if (regions->count < 1 || regions->count > 2) return REFUSE(BAD_PLAN, OPERAND_OUT);
  if (regions->count == 2 && (c.shape.batch != 1 || regions->at < 1 || regions->at >= length || regions->at % VX_GPU_STEP))
    return REFUSE(BAD_PLAN, OPERAND_OUT);
  for (int32_t i = 0; i < regions->count; i++)
    if ((refused = check_plan(of, &c.shape, &regions->plans[i]))) return refused;
  return run_released(of, &c, regions, stream);
}

/* By the selected plan of one kernel, or by a given one. */
static int64_t run_whole(library *of, const call *c, int64_t room, const vx_gpu_plan *plan, void *stream) {
  if (!plan) return run_selected(of, c, room, 0, stream);
  int64_t refused = check_plan(of, &c->shape, plan);
  vx_gpu_regions regions = {.count = 1, .plans = {*plan}};
  return refused ? refused : run_released(of, c, &regions, stream);
}

/* Rows of A and C in groups, each with its matrix of B. The choice is made as for as many groups of their mean height. */
static int64_t open_groups(const library *of, const DLTensor *tensors, const int64_t *rows, int64_t count, int64_t flags, call *c) {
  int64_t refused, all = 0, filled = 0, bits = 0;
  if ((refused = open_product(of, tensors, flags, c)) || (refused = refuse_overlaps(of, &c->a, &c->b, &c->c))) return refused;
  for (int operand = OPERAND_A; operand <= OPERAND_OUT; operand++)
    if (tensors[operand].ndim != 2 + (operand == OPERAND_B)) return REFUSE(BAD_RANK, operand);
  if (c->b.extents[1] != count) return DETAILED(BAD_GROUPS, OPERAND_B, count);
  for (int64_t i = 0; i < count; i++) {
    if (rows[i] < 0 || rows[i] > c->shape.m - all) return REFUSE(BAD_GROUPS, OPERAND_A);
    all += rows[i];
    filled += rows[i] > 0;
    bits |= all * of->item_bytes; /* where the groups of a turned A begin and end */
  }
  if (all != c->shape.m) return REFUSE(BAD_GROUPS, OPERAND_A);
  vx_gpu_shape *s = &c->shape;
  bits = (s->transpose_a ? bits : 0) | alignment(&c->a, of->item_bytes) | alignment(&c->b, of->item_bytes) | alignment_of_stores(of, &c->c);
  s->alignment = (int32_t)(bits & -bits);
  s->batch = filled ? filled : 1;
  s->m = (all + s->batch - 1) / s->batch;
  c->rows = rows;
  c->groups = count;
  c->finished = (vx_gpu_finished){.c = c->c.data};
  return 0;
}

EXPORT int64_t vx_gpu_grouped(library *of, const DLTensor *const *operands, const int64_t *rows, int64_t count, int64_t flags, void *stream,
                              const vx_gpu_plan *plan) {
  DLTensor tensors[MOST_OPERANDS];
  call c = {0};
  gather(of, operands, tensors);
  int64_t refused = open_groups(of, tensors, rows, count, flags, &c);
  return refused ? refused : run_whole(of, &c, 0, plan, stream);
}

static vx_gpu_divisor divisor_of(int64_t by) {
  if (by < 1) by = 1; /* of nothing, which no kernel asks for */
  int32_t shift = 31;
  while ((INT64_C(1) << (shift - 31)) < by) shift++;
  return (vx_gpu_divisor){(uint32_t)(((INT64_C(1) << (shift - 31)) * (INT64_C(1) << 31) + by - 1) / by), (int32_t)by, shift};
}

/* An activation's extents and strides as batch, height, width, channels; strides of a dense tensor where none are told. */
typedef struct {
  char *data;
  int64_t extents[4], steps[4];
} pixels;

static int64_t read_pixels(const library *of, const DLTensor *t, int operand, int32_t code, int32_t bits, int is_turned, pixels *out) {
  static const int places[2][4] = {{0, 1, 2, 3}, {0, 2, 3, 1}};
  int64_t dense[4], refused = read_data(of, t, operand, code, bits, &out->data);
  if (refused) return refused;
  if (t->ndim != 4) return REFUSE(BAD_RANK, operand);
  for (int axis = 3; axis >= 0; axis--) dense[axis] = axis == 3 ? 1 : dense[axis + 1] * t->shape[axis + 1];
  for (int axis = 0; axis < 4; axis++) {
    int place = places[is_turned][axis];
    out->extents[axis] = t->shape[place];
    out->steps[axis] = t->shape[place] == 1 ? 0 : t->strides ? t->strides[place] : dense[place];
    if (out->extents[axis] > LONGEST || out->steps[axis] > LIMIT_32) return REFUSE(TOO_LARGE, operand);
    if (out->steps[axis] < 0) return REFUSE(BAD_STRIDES, operand);
  }
  return 0;
}

/* Elements between one pixel and the next, in memory order batch, height, width; -1 where they are not evenly apart. */
static int64_t apart(const pixels *x) {
  int64_t step = 0, count = 1;
  for (int axis = 2; axis >= 0; axis--) {
    if (x->extents[axis] > 1 && !step) step = x->steps[axis];
    if (x->extents[axis] > 1 && x->steps[axis] != step * count) return -1;
    count *= x->extents[axis];
  }
  return step ? step : x->extents[3];
}

/* A tensor of a convolution's epilogue: [filters], or pixels like those of C. */
static int64_t read_conv_extra(const library *of, const DLTensor *t, int32_t which, int is_turned, const pixels *y, call *c) {
  const vx_gpu_extra *wanted = &of->setup.extras[which];
  int operand = FIRST_EXTRA + which;
  int64_t filters = y->extents[3], item = wanted->bits / 8, refused;
  pixels x = {0};
  if (wanted->per == VX_PER_ELEMENT) {
    if ((refused = read_pixels(of, t, operand, wanted->code, wanted->bits, is_turned, &x))) return refused;
    for (int axis = 0; axis < 4; axis++)
      if (x.extents[axis] != y->extents[axis]) return REFUSE(BAD_EXTRA, operand);
    if (apart(&x) < 0) return REFUSE(BAD_STRIDES, operand);
    int64_t end = 1 + (c->shape.m - 1) * apart(&x) + (filters - 1) * x.steps[3];
    refused = take_extra(of, which, x.data, end, apart(&x), x.steps[3], c);
  } else {
    if ((refused = read_data(of, t, operand, wanted->code, wanted->bits, &x.data))) return refused;
    if (t->ndim != 1 || t->shape[0] != filters) return REFUSE(BAD_EXTRA, operand);
    x.steps[3] = t->strides && filters > 1 ? t->strides[0] : 1;
    if (x.steps[3] < 0) return REFUSE(BAD_STRIDES, operand);
    refused = take_extra(of, which, x.data, 1 + (filters - 1) * x.steps[3], 0, x.steps[3], c);
  }
  c->finished.apart[which] = c->shape.n * x.steps[3] * item;
  return refused;
}

/* x [batch, height, width, channels], w [filters, channels / groups, height, width] with its channels contiguous in memory, and C,
 * as an implicit product for each group of channels. */
static int64_t open_conv(const library *of, const DLTensor *tensors, const vx_gpu_filter *f, call *c) {
  const vx_gpu_setup *s = &of->setup;
  int is_turned = f->is_turned != 0;
  pixels x, w, y;
  int64_t refused;
  if ((refused = read_pixels(of, &tensors[0], OPERAND_A, s->dtype_code, s->dtype_bits, is_turned, &x)) ||
      (refused = read_pixels(of, &tensors[1], OPERAND_B, s->dtype_code, s->dtype_bits, 1, &w)) ||
      (refused = read_pixels(of, &tensors[2], OPERAND_OUT, s->out_code, s->out_bits, is_turned, &y)))
    return refused;
  int64_t depth = w.extents[3], filters = w.extents[0], taps = w.extents[1] * w.extents[2], k = taps * depth;
  int64_t m = y.extents[0] * y.extents[1] * y.extents[2], n = filters / f->groups;
  if (depth * f->groups != x.extents[3] || n * f->groups != filters) return REFUSE(INNER_DIFFERS, OPERAND_B);
  for (int axis = 1; axis <= 2; axis++) { /* the last position of the filter must lie in the padded input */
    int64_t last = (y.extents[axis] - 1) * f->stride[axis - 1] + (w.extents[axis] - 1) * f->dilation[axis - 1] - f->before[axis - 1];
    if (last > LONGEST || f->before[axis - 1] > LONGEST) return REFUSE(TOO_LARGE, OPERAND_OUT);
  }
  if (y.extents[0] != x.extents[0] || y.extents[3] != filters) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  if (m > LONGEST || k > LONGEST) return REFUSE(TOO_LARGE, m > LONGEST ? OPERAND_OUT : OPERAND_B);
  int64_t stride_w = filters > 1 ? w.steps[0] : k, stride_y = apart(&y);
  if (depth > 1 && x.steps[3] != 1) return REFUSE(BAD_STRIDES, OPERAND_A);
  if ((depth > 1 && w.steps[3] != 1) || (w.extents[2] > 1 && w.steps[2] != depth) || (w.extents[1] > 1 && w.steps[1] != depth * w.extents[2]) ||
      stride_w < k)
    return REFUSE(BAD_FILTER, OPERAND_B);
  if ((filters > 1 && y.steps[3] != 1) || stride_y < filters) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (stride_y > LIMIT_32 || stride_w > LIMIT_32) return REFUSE(TOO_LARGE, stride_y > LIMIT_32 ? OPERAND_OUT : OPERAND_B);
  /* Where channels are a group each, they may lie apart: the group's step is that of channels. */
  c->a = (matrix){x.data, m, k, 0, 0, {1, f->groups}, {0, f->groups > 1 ? depth * x.steps[3] : 0}};
  c->b = (matrix){w.data, n, k, stride_w, 0, {1, f->groups}, {0, f->groups > 1 ? n * stride_w : 0}};
  c->c = (matrix){y.data, m, n, stride_y, 0, {1, f->groups}, {0, f->groups > 1 ? n : 0}};
  int64_t reached = 1;
  for (int axis = 0; axis < 4; axis++) reached += (x.extents[axis] - 1) * x.steps[axis];
  matrix input = {x.data, m && k && x.extents[1] && x.extents[2] ? 1 : 0, reached, reached, 0, {1, 1}, {0, 0}};
  if ((refused = refuse_overlaps(of, &input, &c->b, &c->c))) return refused;
  c->finished = (vx_gpu_finished){.c = c->c.data};
  c->shape = (vx_gpu_shape){.m = m, .n = n, .k = k, .batch = f->groups, .transpose_b = 1};
  for (int32_t i = 0; i < s->extra_count; i++)
    if ((refused = read_conv_extra(of, &tensors[FIRST_EXTRA + i], i, is_turned, &y, c))) return refused;
  int64_t bits = 16 | (int64_t)(uintptr_t)x.data | (depth | c->a.steps[1] | x.steps[0] | x.steps[1] | x.steps[2]) * of->item_bytes;
  bits = (bits & -bits) | alignment(&c->b, of->item_bytes) | alignment_of_stores(of, &c->c);
  c->shape.alignment = (int32_t)(bits & -bits);
  float seen = (float)x.extents[0] * (float)x.extents[1] * (float)x.extents[2] * (float)depth / ((float)m * (float)k);
  c->shape.seen = seen < 1.f ? seen : 1.f;
  c->window = (vx_gpu_window){.image = x.steps[0], .row = x.steps[1], .column = x.steps[2],
                              .height = (int32_t)x.extents[1], .width = (int32_t)x.extents[2],
                              .pixels = divisor_of(y.extents[1] * y.extents[2]), .columns = divisor_of(y.extents[2]),
                              .channels = divisor_of(depth), .taps = divisor_of(w.extents[2])};
  for (int axis = 0; axis < 2; axis++) {
    c->window.stride[axis] = (int32_t)f->stride[axis];
    c->window.before[axis] = (int32_t)f->before[axis];
    c->window.dilation[axis] = (int32_t)f->dilation[axis];
  }
  return 0;
}

EXPORT int64_t vx_gpu_conv(library *of, const DLTensor *const *operands, const vx_gpu_filter *filter, void *stream, const vx_gpu_plan *plan) {
  DLTensor tensors[MOST_OPERANDS];
  call c = {0};
  gather(of, operands, tensors);
  int64_t refused = open_conv(of, tensors, filter, &c);
  return refused ? refused : run_whole(of, &c, of->setup.workspace_bytes, plan, stream);
}

EXPORT int64_t vx_gpu_stream(const library *of, const DLPackExchangeAPI *api, void **stream) {
  return api->current_work_stream(kDLCUDA, of->setup.device, stream);
}

EXPORT void vx_gpu_select(const vx_gpu_shape *shape, int64_t workspace, int32_t may_cut, vx_gpu_regions *regions) {
  vx_gpu_divide(shape, workspace, may_cut, regions);
}

/* Seconds of `repeats` selections. */
EXPORT double vx_gpu_time_selection(const vx_gpu_shape *shape, int64_t workspace, int64_t repeats) {
  struct timespec start, end;
  vx_gpu_regions regions;
  volatile int32_t kept = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < repeats; i++) {
    vx_gpu_divide(shape, workspace, 1, &regions);
    kept = kept + regions.plans[0].kernel;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
