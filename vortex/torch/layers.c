/* Layers of PyTorch's graphs, called by the C++ that Inductor writes: what a layer's weights pushed out of a core's caches is slow to come
 * back, and Python between two layers was 20 us of it. The layers of a program are bound to their weights before it runs
 * (`vortex.torch.program`); here one is found by its number, its result is made, and a door of its library called.
 *
 * Of PyTorch these functions of its stable C interface are called (torch/csrc/inductor/aoti_torch/c/shim.h). */
#include "fold.h"
#include "refusals.h"

typedef struct tensor_object *tensor;
typedef struct library_object *library;
typedef uint64_t argument; /* of an operator as PyTorch calls it: a number, or a tensor that is then ours */

int32_t aoti_torch_get_data_ptr(tensor, void **);
int32_t aoti_torch_get_dim(tensor, int64_t *);
int32_t aoti_torch_get_sizes(tensor, int64_t **);
int32_t aoti_torch_get_strides(tensor, int64_t **);
int32_t aoti_torch_get_dtype(tensor, int32_t *);
int32_t aoti_torch_get_device_type(tensor, int32_t *);
int32_t aoti_torch_empty_strided(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, tensor *);
int32_t aoti_torch_copy_(tensor, tensor, int32_t);
int32_t aoti_torch_delete_tensor_object(tensor);
int32_t aoti_torch_dtype_float32(void);
int32_t aoti_torch_device_type_cpu(void);
int32_t aoti_torch_library_init_impl(const char *, const char *, const char *, uint32_t, library *);
int32_t aoti_torch_library_impl(library, const char *, void (*)(argument *, uint64_t, uint64_t));
void aoti_torch_check(_Bool, const char *, const char *, uint32_t, const char *);

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

/* A tensor as the doors read it; 0 for one that they do not. */
static int view(tensor from, DLTensor *t) {
  int64_t rank;
  int32_t dtype, device;
  if (aoti_torch_get_dtype(from, &dtype) || aoti_torch_get_device_type(from, &device) || aoti_torch_get_dim(from, &rank)) return 0;
  if (dtype != aoti_torch_dtype_float32() || device != aoti_torch_device_type_cpu() || rank > MOST_RANK) return 0;
  *t = (DLTensor){.device = {kDLCPU, 0}, .ndim = (int32_t)rank, .dtype = {kDLFloat, 32, 1}};
  return !aoti_torch_get_data_ptr(from, &t->data) && !aoti_torch_get_sizes(from, &t->shape) && !aoti_torch_get_strides(from, &t->strides);
}

/* A new tensor, with its view; NULL where there is no room. */
static tensor made(int64_t rank, const int64_t *shape, const int64_t *strides, DLTensor *t) {
  tensor result;
  if (aoti_torch_empty_strided(rank, shape, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, &result)) return NULL;
  if (view(result, t)) return result;
  aoti_torch_delete_tensor_object(result);
  return NULL;
}

/* The same values with these strides. */
static tensor copied(tensor from, DLTensor *t, const int64_t *strides) {
  int64_t shape[MOST_RANK], rank = t->ndim;
  for (int64_t axis = 0; axis < rank; axis++) shape[axis] = t->shape[axis];
  tensor copy = made(rank, shape, strides, t);
  if (!copy || !aoti_torch_copy_(copy, from, 0)) return copy;
  aoti_torch_delete_tensor_object(copy);
  return NULL;
}

static void drop(tensor t) {
  if (t) aoti_torch_delete_tensor_object(t);
}

static int64_t steps(int64_t extent) { return extent > 1 ? extent : 1; }

static void dense(int64_t rank, const int64_t *shape, int64_t *strides) {
  int64_t next = 1;
  for (int64_t axis = rank - 1; axis >= 0; next *= steps(shape[axis--])) strides[axis] = next;
}

/* Of batch, channels, height and width, the channels innermost. */
static void channels_last(const int64_t *shape, int64_t *strides) {
  strides[1] = 1, strides[3] = steps(shape[1]), strides[2] = strides[3] * steps(shape[3]), strides[0] = strides[2] * steps(shape[2]);
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

/* x [batch, channels, height, width] -> its convolution, channels last; `residual` is added, or NULL. */
static tensor convolved(tensor x, tensor residual, const layer *l) {
  DLTensor in, out, added;
  int64_t strides[4], numbers[MOST_NUMBERS];
  tensor of_x = NULL, of_residual = NULL, result = NULL;
  if (!view(x, &in) || in.ndim != 4 || (residual && (!view(residual, &added) || added.ndim != 4))) return NULL;
  for (int i = 0; i < MOST_NUMBERS; i++) numbers[i] = l->numbers[i];
  int64_t tall = in.shape[2] + numbers[PAD_TOP] + numbers[PAD_BOTTOM] - (numbers[KERNEL_H] - 1) * numbers[DILATION_H] - 1;
  int64_t wide = in.shape[3] + numbers[PAD_LEFT] + numbers[PAD_RIGHT] - (numbers[KERNEL_W] - 1) * numbers[DILATION_W] - 1;
  numbers[OUT_H] = tall < 0 ? 0 : tall / numbers[STRIDE_H] + 1;
  numbers[OUT_W] = wide < 0 ? 0 : wide / numbers[STRIDE_W] + 1;
  const int64_t shape[] = {in.shape[0], numbers[FILTERS], numbers[OUT_H], numbers[OUT_W]};
  channels_last(shape, strides);
  int differs = 0;
  for (int i = 0; residual && i < 4; i++) differs |= shape[i] > 1 && added.strides[i] != strides[i];
  if (differs && !(of_residual = copied(residual, &added, strides))) return NULL;
  if (!(result = made(4, shape, strides, &out))) goto done;
  for (int tries = 0; tries < 2; tries++) {
    TVMFFIAny values[4 + FORMS + 1 + MOST_CONSTANTS] = {borrowed(&in), constant(l->constants[0]), borrowed(&out), integer(1)};
    int32_t count = 4;
    for (int i = 0; i <= FORMS; i++) values[count++] = integer(numbers[i]);
    if (l->operands) values[count++] = constant(l->constants[1]);
    if (residual) values[count++] = borrowed(&added);
    call(l, values, count);
    if (status != REFUSE(BAD_STRIDES, 0)) break;
    channels_last(in.shape, strides);
    if (of_x || !(of_x = copied(x, &in, strides))) break;
  }
done:
  drop(of_x);
  drop(of_residual);
  return result;
}

/* The result of a layer, given away; 1 if there is none. */
static int32_t serve(tensor x, tensor residual, int64_t number, tensor (*with)(tensor, tensor, const layer *), tensor *result) {
  const layer *l = running && number >= running->first && number < running->first + running->count ? running->layers[number - running->first] : NULL;
  status = UNREADABLE;
  *result = l ? with(x, residual, l) : NULL;
  if (status) drop(*result);
  return status != 0;
}

/* As Inductor calls the operators of these names. */
EXPORT int32_t aoti_torch_cpu_dense(tensor x, int64_t number, tensor *result) { return serve(x, NULL, number, multiplied, result); }
EXPORT int32_t aoti_torch_cpu_convolve(tensor x, int64_t number, tensor *result) { return serve(x, NULL, number, convolved, result); }
EXPORT int32_t aoti_torch_cpu_convolve_added(tensor x, tensor residual, int64_t number, tensor *result) {
  return serve(x, residual, number, convolved, result);
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
EXPORT int32_t vortex_register(void) {
  library vortex;
  return aoti_torch_library_init_impl("vortex", "CPU", __FILE__, __LINE__, &vortex) || aoti_torch_library_impl(vortex, "dense", dense_boxed) ||
         aoti_torch_library_impl(vortex, "convolve", convolve_boxed) ||
         aoti_torch_library_impl(vortex, "convolve_added", convolve_added_boxed);
}
