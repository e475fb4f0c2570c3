/* The door of a GPU's library of reductions: one native call checks the operands, selects and launches on the caller's stream.
 *
 * It allocates nothing and waits for nothing, but for another thread that launches sweeps through a workspace. */
#include "gpu_reduce.h"
#include "gpu_opened.h"
#include "integers.h"

#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))

enum { OPERAND_X = 0, OPERAND_OUT = 1, ITEM = 4, PIECE = 4, WIDE = 16 };
enum { PLACE = 256 };     /* bytes on multiples of which results begin that are read again */
enum { PARAMETERS = 24 }; /* room for as many as kernels of products have: whoever looks at launches takes as many of each */
#define MOST_ELEMENTS (INT64_C(1) << 40) /* axes.MOST_EXTENT: no library of reductions takes more */

typedef struct {
  vx_gpu_opened on;
  vx_gpu_reduce_setup setup;
  pthread_mutex_t sharing; /* sweeps of two calls on one stream must not mix: they share its workspace */
} library;

/* Of a contiguous one there are no strides. */
typedef struct {
  char *data;
  const int64_t *shape, *strides;
  int32_t rank;
} tensor;

/* Elements between neighbours along the axes of a view; its inner axis is contiguous. */
typedef struct {
  int64_t outer, depth;
} steps;

/* Axes as one. */
typedef struct {
  int64_t extent, stride;
} span;

/* One checked call; nothing runs where it has no runs. */
typedef struct {
  char *x, *out;
  float scale; /* of what the last sweep writes */
  steps apart; /* of x: what sweeps leave each other is contiguous */
  vx_gpu_reduction plan;
} call;

EXPORT void *vx_gpu_reduce_open(const char *driver_name, const vx_gpu_reduce_setup *setup, const char **missing) {
  library *opened = vx_gpu_open_on(driver_name, &setup->place, 0, sizeof *opened, missing);
  if (!opened) return NULL;
  opened->setup = *setup;
  pthread_mutex_init(&opened->sharing, NULL);
  return opened;
}

/* Axes are bits, the first one the lowest. */
static inline int has(uint64_t axes, int32_t axis) { return axes >> axis & 1; }
static inline uint64_t below(int32_t axis) { return axis ? ~UINT64_C(0) >> (VX_REDUCE_MOST_RANK - axis) : 0; }

/* An axis that is named twice, or that there is not, leaves fewer bits than there are names. */
static int64_t read_axes(vx_gpu_axes asked, int32_t rank, uint64_t *axes) {
  if (rank > VX_REDUCE_MOST_RANK) return REFUSE(BAD_RANK, OPERAND_X);
  *axes = asked.count < 0 ? below(rank) : asked.front & below(rank);
  for (int32_t axis = 0; axis < rank; axis++)
    if (has(asked.back, rank - 1 - axis)) *axes |= UINT64_C(1) << axis;
  return asked.count >= 0 && __builtin_popcountll(*axes) != asked.count ? REFUSE(BAD_AXES, OPERAND_X) : 0;
}

/* A product of extents, which stays at the limit once it is there. */
static int64_t times(int64_t x, int64_t y) {
  int64_t product;
  return __builtin_mul_overflow(x, y, &product) || product > MOST_ELEMENTS ? MOST_ELEMENTS : product;
}

/* Elements along some axes, each of which counts as `least` at the least. */
static int64_t elements(const int64_t *shape, uint64_t axes, int64_t least) {
  int64_t count = 1;
  for (; axes; axes &= axes - 1) count = times(count, larger(least, shape[__builtin_ctzll(axes)]));
  return count;
}

/* Strides of an empty tensor, or of an axis of one element, say nothing. */
static int is_dense(const DLTensor *t) {
  int64_t step = 1;
  int strays = 0;
  for (int32_t axis = t->ndim - 1; axis >= 0; axis--) {
    if (t->shape[axis] == 0) return 1;
    strays |= t->strides && t->shape[axis] != 1 && t->strides[axis] != step;
    step = times(step, t->shape[axis]);
  }
  return !strays;
}

static int64_t read_tensor(const library *of, const DLTensor *t, int operand, tensor *out) {
  out->shape = t->shape;
  out->strides = is_dense(t) ? NULL : t->strides;
  out->rank = t->ndim;
  return vx_gpu_read_data(&of->on, t, operand, kDLFloat, 8 * ITEM, &out->data);
}

/* The last of some axes. */
static inline int32_t last_of(uint64_t axes) { return VX_REDUCE_MOST_RANK - 1 - __builtin_clzll(axes); }

/* Axes as one, if they lie so; one of a single element lies as any other. */
static int merge(const tensor *x, uint64_t axes, span *out) {
  *out = (span){1, 1};
  for (; axes; axes &= below(last_of(axes))) {
    int64_t extent = x->shape[last_of(axes)], stride = x->strides[last_of(axes)];
    if (extent == 1) continue;
    if (stride < 0 || (out->extent > 1 && stride != out->stride * out->extent)) return 0;
    if (out->extent == 1) out->stride = stride;
    out->extent *= extent;
  }
  return 1;
}

/* Take the last of some axes that lie side by side away from them: how many elements. */
static int64_t take_neighbours(const tensor *x, uint64_t *axes) {
  int64_t count = 1;
  for (; *axes; *axes &= below(last_of(*axes))) {
    int64_t extent = x->shape[last_of(*axes)];
    if (extent > 1 && x->strides[last_of(*axes)] != count) break;
    count *= extent;
  }
  return count;
}

/* The view of a strided operand of which some neighbouring axes are reduced. Results lie in the order of the kept axes, wherever the
 * reduced ones are among them, so that rows serve where all kept axes lie as one, and columns where the last of them are contiguous. */
static int view_strided(const tensor *x, uint64_t reduced, vx_gpu_view *view, steps *apart) {
  uint64_t kept = below(x->rank) & ~reduced;
  span outer, depth;
  if (!merge(x, reduced, &depth)) return 0;
  int are_rows = merge(x, kept, &outer) && (outer.stride != 1 || depth.stride == 1);
  int64_t inner = are_rows ? 1 : take_neighbours(x, &kept);
  if (!are_rows && !merge(x, kept, &outer)) return 0;
  *view = (vx_gpu_view){outer.extent, depth.extent, inner};
  *apart = (steps){outer.extent > 1 ? outer.stride : 0, depth.stride};
  return 1;
}

/* One past the last element of an operand that lies in a view so. */
static int64_t length(const vx_gpu_view *v, steps apart) {
  return (v->outer - 1) * apart.outer + (v->depth - 1) * apart.depth + v->inner;
}

/* Whether an operand has the shape of the result: x's without the reduced axes, or with one element along them. */
static int fits(const tensor *out, const tensor *x, uint64_t axes, int32_t keeps) {
  int32_t at = 0;
  for (int32_t axis = 0; axis < x->rank; axis++) {
    if (has(axes, axis) && !keeps) continue;
    if (at == out->rank || out->shape[at++] != (has(axes, axis) ? 1 : x->shape[axis])) return 0;
  }
  return at == out->rank;
}

/* Bytes of the workspace that a sweep takes, unless it is the last. */
static inline int64_t written(const vx_gpu_sweep *s) { return rounded(ITEM * s->outer * s->chunks * s->inner, PLACE); }

/* The chosen plan of a run, or the one that comes next among the given sweeps. */
static int64_t plan_run(vx_gpu_run *run, int64_t room, int32_t is_warm, vx_gpu_given *given) {
  if (given) return vx_gpu_reduce_take(&run->view, given, &run->plan) ? 0 : REFUSE(BAD_PLAN, OPERAND_X);
  vx_gpu_reduce_choose(&run->view, room, is_warm, &run->plan);
  return run->plan.count ? 0 : REFUSE(NO_KERNEL, OPERAND_X);
}

static steps dense_steps(const vx_gpu_view *v) { return (steps){v->depth * v->inner, v->inner}; }

/* One run of neighbours after the other, from the last axes on, so that what is left for the others is contiguous. An empty axis,
 * for which nothing runs, is taken as one element. */
static int64_t plan_runs(const tensor *x, uint64_t axes, int64_t room, vx_gpu_given *given, vx_gpu_reduction *out, steps *apart) {
  uint64_t left = axes;
  int64_t last = 0, refused;
  const int64_t *shape = x->shape;
  out->count = out->need = 0;
  if (elements(shape, below(x->rank), 1) == MOST_ELEMENTS) return REFUSE(TOO_LARGE, OPERAND_X);
  do {
    int32_t end = left ? last_of(left) + 1 : x->rank, first = end;
    while (first && has(left, first - 1)) first--;
    vx_gpu_run *run = &out->runs[out->count];
    run->view.outer = elements(shape, below(first), 1);
    run->view.depth = elements(shape, below(end) & ~below(first), 1);
    run->view.inner = elements(shape, below(x->rank) & ~below(end) & ~axes, 1);
    if (out->count == 0) {
      if (x->strides && !view_strided(x, below(end) & ~below(first), &run->view, apart)) return REFUSE(BAD_STRIDES, OPERAND_X);
      if (!x->strides) *apart = dense_steps(&run->view);
    }
    if ((refused = plan_run(run, room, out->count > 0, given))) return refused;
    for (int64_t i = 0; i < run->plan.count; i++) out->need += last = written(&run->plan.sweeps[i]);
    out->count++;
    left &= below(first);
  } while (left);
  out->need -= last;
  return given && given->count ? REFUSE(BAD_PLAN, OPERAND_X) : 0;
}

/* What writes so many results of no element each. */
static int64_t plan_nothing(int64_t results, vx_gpu_reduction *out) {
  vx_gpu_run *run = &out->runs[0];
  out->need = 0;
  out->count = 1;
  run->view = (vx_gpu_view){results, 1, 1};
  vx_gpu_reduce_choose(&run->view, 0, 0, &run->plan);
  if (!run->plan.count) return REFUSE(NO_KERNEL, OPERAND_X);
  run->plan.sweeps[0].depth = 0;
  return 0;
}

static int64_t open_call(const library *of, const DLTensor *tensors, vx_gpu_axes asked, int32_t keeps, vx_gpu_given *given, call *c) {
  tensor x, out;
  uint64_t axes;
  int64_t refused;
  c->plan.count = 0;
  if ((refused = read_tensor(of, &tensors[OPERAND_X], OPERAND_X, &x)) || (refused = read_axes(asked, x.rank, &axes)) ||
      (refused = read_tensor(of, &tensors[OPERAND_OUT], OPERAND_OUT, &out)))
    return refused;
  if (out.strides) return REFUSE(BAD_OUT_STRIDES, OPERAND_OUT);
  if (!fits(&out, &x, axes, keeps)) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  int64_t results = elements(x.shape, below(x.rank) & ~axes, 0), depth = elements(x.shape, axes, 0);
  if (!results) return 0;
  if (!depth && of->setup.needs_one) return REFUSE(NOTHING_TO_REDUCE, OPERAND_X);
  c->x = x.data;
  c->out = out.data;
  c->scale = !of->setup.is_mean ? 1.0f : depth ? (float)(1.0 / (double)depth) : __builtin_inff(); /* of no sum, not a number */
  c->apart = (steps){0, 1};
  if (!depth) return given ? REFUSE(BAD_PLAN, OPERAND_X) : plan_nothing(results, &c->plan);
  if ((refused = plan_runs(&x, axes, of->setup.workspace_bytes, given, &c->plan, &c->apart))) return refused;
  const char *end = x.data + ITEM * length(&c->plan.runs[0].view, c->apart);
  return x.data < out.data + ITEM * results && out.data < end ? REFUSE(OVERLAPS, OPERAND_X) : 0;
}

/* Whether pieces lie on multiples of 16 bytes, each in one of them: it changes no order of sums. */
static int is_wide(const vx_gpu_sweep *s, const char *x, steps apart, const char *y) {
  int64_t side = vx_gpu_reduce_tiles[s->tile].is_columns ? s->inner | apart.depth : apart.depth == 1 ? s->depth : 1;
  return (side | apart.outer) % PIECE == 0 && ((uintptr_t)x | (uintptr_t)y) % WIDE == 0;
}

static int launch(const library *of, const vx_gpu_sweep *s, char *x, steps apart, char *y, float scale, void *stream) {
  int64_t outer = s->outer, depth = s->depth, inner = s->inner, chunk = s->chunk, chunks = s->chunks;
  void *parameters[PARAMETERS] = {&x, &y, &outer, &depth, &inner, &apart.outer, &apart.depth, &chunk, &chunks, &scale};
  const vx_gpu_reduce_kernel *k = &of->setup.kernels[2 * s->tile + is_wide(s, x, apart, y)];
  return of->on.driver.launch(k->function, (unsigned)s->blocks, 1, 1, k->block[0], k->block[1], k->block[2], k->shared_bytes, stream,
                              parameters, NULL);
}

/* Every sweep onto the stream, with the context current: a status of the driver. Each reads what the one before has written. */
static int queue(const library *of, const call *c, char *room, void *stream) {
  char *from = c->x;
  steps apart = c->apart;
  for (int64_t r = 0; r < c->plan.count; r++) {
    const vx_gpu_reduce_plan *plan = &c->plan.runs[r].plan;
    for (int64_t i = 0; i < plan->count; i++) {
      const vx_gpu_sweep *s = &plan->sweeps[i];
      int is_last = r == c->plan.count - 1 && i == plan->count - 1;
      char *to = is_last ? c->out : room;
      if (r || i) apart = dense_steps(&(vx_gpu_view){s->outer, s->depth, s->inner});
      int status = launch(of, s, from, apart, to, is_last ? c->scale : 1.0f, stream);
      if (status) return status;
      if (!is_last) room += written(s);
      from = to;
    }
  }
  return 0;
}

/* `lent` is a workspace for this call alone, if it has 0 bytes or more. Python goes first, for whoever holds the lock may wait for it. */
static int64_t run(library *of, const call *c, void *stream, void *lent, int64_t lent_bytes) {
  int64_t need = c->plan.need;
  void *room = NULL;
  if (!c->plan.count) return 0;
  if (need) room = lent_bytes < 0 ? vx_gpu_workspace(&of->on, stream, need) : lent_bytes < need ? NULL : lent;
  if (need && !room) return DETAILED(NEEDS_WORKSPACE, OPERAND_X, need);
  void *thread = vx_gpu_release_python(&of->on);
  if (need) pthread_mutex_lock(&of->sharing);
  int is_foreign, status = vx_gpu_enter_context(&of->on, &is_foreign);
  if (!status) {
    status = queue(of, c, room, stream);
    int left = vx_gpu_leave_context(&of->on, is_foreign);
    if (!status) status = left;
  }
  if (need) pthread_mutex_unlock(&of->sharing);
  vx_gpu_regain_python(&of->on, thread);
  return status ? DETAILED(CUDA_ERROR, OPERAND_OUT, status) : 0;
}

/* Operands of a framework that has DLPack's exchange API, on its current stream unless `has_stream`. */
EXPORT int64_t vx_gpu_reduce(library *of, const DLPackExchangeAPI *api, void *x, void *out, uint64_t front, uint64_t back, int32_t count,
                             int32_t keeps, void *stream, int32_t has_stream) {
  DLTensor tensors[2];
  call c;
  void *objects[2] = {x, out};
  int64_t refused = vx_gpu_read_objects(&of->on, api, objects, 2, tensors, &stream, has_stream);
  if (!refused) refused = open_call(of, tensors, (vx_gpu_axes){front, back, count}, keeps, NULL, &c);
  return refused ? refused : run(of, &c, stream, NULL, -1);
}

/* Operands by their DLPack descriptions; by `given` sweeps, if there are any: what the evaluation and the check of every kernel call. */
EXPORT int64_t vx_gpu_reduce_described(library *of, const DLTensor *const *operands, uint64_t front, uint64_t back, int32_t count,
                                       int32_t keeps, void *stream, void *lent, int64_t lent_bytes, const vx_gpu_given *given) {
  DLTensor tensors[2] = {*operands[OPERAND_X], *operands[OPERAND_OUT]};
  vx_gpu_given left = given ? *given : (vx_gpu_given){0};
  call c;
  int64_t refused = open_call(of, tensors, (vx_gpu_axes){front, back, count}, keeps, given ? &left : NULL, &c);
  return refused ? refused : run(of, &c, stream, lent, lent_bytes);
}

/* What a call on an operand of this shape does; it needs no device. */
EXPORT int64_t vx_gpu_reduce_runs(const int64_t *shape, int32_t rank, uint64_t front, uint64_t back, int32_t count, int64_t room,
                                  vx_gpu_reduction *plan) {
  tensor x = {.shape = shape, .rank = rank};
  uint64_t axes;
  steps apart;
  int64_t refused = read_axes((vx_gpu_axes){front, back, count}, rank, &axes);
  return refused ? refused : plan_runs(&x, axes, room, NULL, plan, &apart);
}
