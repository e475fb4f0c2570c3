/* Layers of PyTorch's graphs, called by the C++ that Inductor writes: what a layer's weights pushed out of a core's caches is slow to come
 * back, and Python between two layers was 20 us of it. The layers of a program are bound to their weights before it runs
 * (`vortex.torch.program`); here one is found by its number, its result is made, and a door of its library called. */
#include "refusals.h"
#include "tensors.h"

#include <string.h>

enum { MOST_CONSTANTS = 2, MOST_NUMBERS = 15 };
/* Of a product (door.c). */
enum { FLAGS = 0, COLUMNS, DEPTH };
/* Of a convolution (conv_door.c), and the padding below and to the right. */
enum {
  FILTERS = 0, KERNEL_H, KERNEL_W, OUT_H, OUT_W, STRIDE_H, STRIDE_W, PAD_TOP, PAD_LEFT, DILATION_H, DILATION_W, GROUPS, FORMS, PAD_BOTTOM,
  PAD_RIGHT
};
enum { UNREADABLE = -1 }; /* no refusal of a door: no tensor of float32 in memory, or no room for another; mirrored by program.UNREADABLE */

/* Mirrored by program.LayerCall. */
typedef struct {
  TVMFFIObject *door;                      /* gemm_packed, or conv */
  TVMFFIObject *constants[MOST_CONSTANTS]; /* packed weights, and the first operand of the epilogue */
  int64_t operands;                        /* of the epilogue, 0 or 1 of them */
  int64_t numbers[MOST_NUMBERS];
} layer;

/* Mirrored by program.Program. */
typedef struct {
  int64_t first, count;
  const layer *const *layers; /* from that number on; NULL for numbers of other programs */
} program;

static _Thread_local const program *running;
static _Thread_local int64_t status; /* of the layer that this thread called last */

/* What ran before. */
EXPORT const program *vortex_run(const program *next) {
  const program *before = running;
  running = next, status = 0;
  return before;
}

EXPORT int64_t vortex_status(void) { return status; }

static TVMFFIAny integer(int64_t value) { return (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = value}; }
static TVMFFIAny borrowed(DLTensor *t) { return (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = t}; }
static TVMFFIAny constant(TVMFFIObject *t) { return (TVMFFIAny){.type_index = kTVMFFITensor, .v_obj = t}; }

/* Sets `status`. */
static void call(const layer *l, const TVMFFIAny *values, int32_t count) {
  TVMFFIAny result = {0};
  const TVMFFIFunctionCell *cell = (const TVMFFIFunctionCell *)(l->door + 1);
  status = cell->safe_call(l->door, values, count, &result) ? UNREADABLE : result.v_int64;
}

static void dense(int64_t rank, const int64_t *shape, int64_t *strides) {
  int64_t next = 1;
  for (int64_t axis = rank - 1; axis >= 0; next *= steps(shape[axis--])) strides[axis] = next;
}

/* x [..., k] -> [..., n]; nothing is added. What becomes of it stands in `status`. */
static tensor multiplied(tensor x, tensor residual, const layer *l) {
  DLTensor a, c, rows, sums;
  int64_t shape[MOST_RANK], strides[MOST_RANK], of_a[4], of_c[4];
  if (!view(x, &a) || a.ndim < 2) return NULL;
  int64_t rank = a.ndim;
  for (int64_t axis = 0; axis < rank; axis++) shape[axis] = axis == rank - 1 ? l->numbers[COLUMNS] : a.shape[axis];
  dense(rank, shape, strides);
  tensor out = made(rank, shape, strides, &c), copy = NULL;
  if (!out) return NULL;
  fold(&c, &sums, of_c);
  for (int tries = 0; tries < 2; tries++) {
    if (fold(&a, &rows, of_a)) {
      const TVMFFIAny values[] = {borrowed(&rows),
                                  constant(l->constants[0]),
                                  borrowed(&sums),
                                  integer(l->numbers[FLAGS]),
                                  integer(l->numbers[COLUMNS]),
                                  integer(l->numbers[DEPTH]),
                                  constant(l->constants[1])};
      call(l, values, 6 + (int32_t)l->operands);
      if (status != REFUSE(BAD_STRIDES, 0)) break;
    }
    if (copy) break;
    dense(rank, a.shape, strides);
    if (!(copy = copied(x, &a, strides))) break;
  }
  drop(copy);
  return out;
}

/* What the door of a convolution is told of this x, and the shape of the result. */
static void measure(const layer *l, const DLTensor *x, int64_t *numbers, int64_t *shape) {
  for (int i = 0; i < MOST_NUMBERS; i++) numbers[i] = l->numbers[i];
  int64_t tall = x->shape[2] + numbers[PAD_TOP] + numbers[PAD_BOTTOM] - (numbers[KERNEL_H] - 1) * numbers[DILATION_H] - 1;
  int64_t wide = x->shape[3] + numbers[PAD_LEFT] + numbers[PAD_RIGHT] - (numbers[KERNEL_W] - 1) * numbers[DILATION_W] - 1;
  shape[0] = x->shape[0], shape[1] = numbers[FILTERS];
  shape[2] = numbers[OUT_H] = tall < 0 ? 0 : tall / numbers[STRIDE_H] + 1;
  shape[3] = numbers[OUT_W] = wide < 0 ? 0 : wide / numbers[STRIDE_W] + 1;
}

/* x [batch, channels, height, width] -> its convolution, to where `out` lies; `added` is, or NULL. Sets `status`. */
static void convolve(const layer *l, tensor x, DLTensor *in, DLTensor *added, const int64_t *numbers, DLTensor *out) {
  tensor copy = NULL;
  for (int tries = 0; tries < 2; tries++) {
    TVMFFIAny values[4 + FORMS + 1 + MOST_CONSTANTS] = {borrowed(in), constant(l->constants[0]), borrowed(out), integer(1)};
    int32_t count = 4;
    for (int i = 0; i <= FORMS; i++) values[count++] = integer(numbers[i]);
    if (l->operands) values[count++] = constant(l->constants[1]);
    if (added) values[count++] = borrowed(added);
    call(l, values, count);
    if (status != REFUSE(BAD_STRIDES, 0)) break;
    int64_t strides[4];
    channels_last(in->shape, strides);
    if (copy || !(copy = copied(x, in, strides))) break;
  }
  drop(copy);
}

/* The same to a new tensor, channels last. */
static tensor convolved(tensor x, tensor residual, const layer *l) {
  DLTensor in, out, added;
  int64_t shape[4], strides[4], numbers[MOST_NUMBERS];
  tensor copy = NULL, result = NULL;
  if (!view(x, &in) || in.ndim != 4 || (residual && (!view(residual, &added) || added.ndim != 4))) return NULL;
  measure(l, &in, numbers, shape);
  channels_last(shape, strides);
  int differs = 0;
  for (int i = 0; residual && i < 4; i++) differs |= shape[i] > 1 && added.strides[i] != strides[i];
  if (differs && !(copy = copied(residual, &added, strides))) return NULL;
  if ((result = made(4, shape, strides, &out))) convolve(l, x, &in, residual ? &added : NULL, numbers, &out);
  drop(copy);
  return result;
}

/* The layer of this number in the program that runs, or NULL. */
static const layer *numbered(int64_t number) {
  int known = running && number >= running->first && number < running->first + running->count;
  return known ? running->layers[number - running->first] : NULL;
}

/* The result of a layer, given away; 1 if there is none. */
static int32_t serve(tensor x, tensor residual, int64_t number, tensor (*with)(tensor, tensor, const layer *), tensor *result) {
  const layer *l = numbered(number);
  status = UNREADABLE;
  *result = l ? with(x, residual, l) : NULL;
  if (status) drop(*result);
  return status != 0;
}

/* The shape of what x becomes, by the convolution of this number, or -1 for x itself; 0 where either is not known. */
static int become(tensor x, int64_t number, DLTensor *in, int64_t *numbers, int64_t *shape) {
  const layer *l = numbered(number);
  if (!view(x, in) || in->ndim != 4 || (number >= 0 && !l)) return 0;
  if (l) measure(l, in, numbers, shape);
  else memcpy(shape, in->shape, 4 * sizeof *shape);
  return 1;
}

/* Channels of one result after those of the other: of each x what it becomes. */
static tensor gathered(const tensor *given, int64_t count, const int64_t *layers) {
  DLTensor in, whole;
  int64_t shape[4], mine[4], strides[4], numbers[MOST_NUMBERS];
  for (int64_t i = 0; i < count; i++) {
    if (!become(given[i], layers[i], &in, numbers, mine)) return NULL;
    if (i && (mine[0] != shape[0] || mine[2] != shape[2] || mine[3] != shape[3])) return NULL;
    mine[1] += i ? shape[1] : 0;
    memcpy(shape, mine, sizeof shape);
  }
  channels_last(shape, strides);
  tensor result = made(4, shape, strides, &whole);
  float *next = result ? whole.data : NULL;
  status = result ? 0 : UNREADABLE;
  for (int64_t i = 0; i < count && !status; i++) {
    DLTensor out = whole;
    become(given[i], layers[i], &in, numbers, mine);
    out.shape = mine, out.data = next;
    if (layers[i] >= 0) convolve(numbered(layers[i]), given[i], &in, NULL, numbers, &out);
    else status = copy_pixels(given[i], &in, &out) ? 0 : UNREADABLE;
    next += mine[1];
  }
  return result;
}

/* As Inductor calls the operators of these names. */
EXPORT int32_t aoti_torch_cpu_dense(tensor x, int64_t number, tensor *result) { return serve(x, NULL, number, multiplied, result); }
EXPORT int32_t aoti_torch_cpu_convolve(tensor x, int64_t number, tensor *result) { return serve(x, NULL, number, convolved, result); }
EXPORT int32_t aoti_torch_cpu_convolve_added(tensor x, tensor residual, int64_t number, tensor *result) {
  return serve(x, residual, number, convolved, result);
}
EXPORT int32_t aoti_torch_cpu_gather_channels(const tensor *given, int64_t count, const int64_t *layers, int64_t same, tensor *result) {
  status = UNREADABLE;
  *result = gathered(given, count, layers);
  if (status) drop(*result);
  return status != 0;
}

/* The same as PyTorch calls them where a graph is run node by node. */
static void serve_boxed(argument *stack, int tensors, tensor (*with)(tensor, tensor, const layer *)) {
  tensor given[2] = {(tensor)(uintptr_t)stack[0], tensors > 1 ? (tensor)(uintptr_t)stack[1] : NULL}, result;
  int32_t failed = serve(given[0], given[1], (int64_t)stack[tensors], with, &result);
  drop(given[0]);
  drop(given[1]);
  aoti_torch_check(!failed, __func__, __FILE__, __LINE__, "a layer that vortex serves has no result");
  stack[0] = (argument)(uintptr_t)result;
}

static void dense_boxed(argument *stack, uint64_t inputs, uint64_t outputs) { serve_boxed(stack, 1, multiplied); }
static void convolve_boxed(argument *stack, uint64_t inputs, uint64_t outputs) { serve_boxed(stack, 1, convolved); }
static void convolve_added_boxed(argument *stack, uint64_t inputs, uint64_t outputs) { serve_boxed(stack, 2, convolved); }

/* Other than 0 where PyTorch does not take them. */
EXPORT int32_t vortex_register(vx_fork_join lent) {
  library vortex;
  borrow(lent);
  return aoti_torch_library_init_impl("vortex", "CPU", __FILE__, __LINE__, &vortex) || aoti_torch_library_impl(vortex, "dense", dense_boxed) ||
         aoti_torch_library_impl(vortex, "convolve", convolve_boxed) ||
         aoti_torch_library_impl(vortex, "convolve_added", convolve_added_boxed);
}
