/* The door of a library of reductions: every operand is checked here, once; a refusal is a number that Python turns into words. */
#include "reduce.h"
#include "values.h"

#include <time.h>

enum { OPERAND_X = 0, OPERAND_OUT = 1 };
/* Mirrored by reduction_launcher.REASONS. */
enum { NOT_A_TENSOR = 1, BAD_RANK, BAD_DTYPE, BAD_DEVICE, BAD_STRIDES, MISALIGNED, BAD_OUT_SHAPE, BAD_OUT_STRIDES, OVERLAPS, OUT_OF_MEMORY, NOTHING_TO_REDUCE };

static int read_floats(const TVMFFIAny *value, int operand, const DLTensor **tensor, float **data) {
  const DLTensor *t = tensor_of(value);
  if (!t) return REFUSE(NOT_A_TENSOR, operand);
  if (t->device.device_type != kDLCPU) return REFUSE(BAD_DEVICE, operand);
  if (t->dtype.code != kDLFloat || t->dtype.bits != 32 || t->dtype.lanes != 1) return REFUSE(BAD_DTYPE, operand);
  *tensor = t;
  *data = (float *)((char *)t->data + t->byte_offset);
  return (uintptr_t)*data % sizeof(float) ? REFUSE(MISALIGNED, operand) : 0;
}

/* Axes `first` to `end` as one; 0 where their strides do not allow it. An empty one has extent 0. */
static int merge(const DLTensor *t, const int64_t *strides, int first, int end, int64_t *extent, int64_t *stride) {
  *extent = 1;
  *stride = 1;
  for (int d = end - 1; d >= first; d--) {
    if (t->shape[d] == 0) {
      *extent = 0;
      return 1;
    }
    if (t->shape[d] == 1) continue;
    if (strides[d] < 0) return 0;
    if (*extent == 1)
      *stride = strides[d];
    else if (strides[d] != *stride * *extent)
      return 0;
    *extent *= t->shape[d];
  }
  return 1;
}

static int64_t last_element(int64_t extent, int64_t stride) { return extent > 1 ? (extent - 1) * stride : 0; }

static int open_reduction(const TVMFFIAny *args, vx_reduction *r) {
  enum { MOST_AXES = 64 };
  const DLTensor *x, *out;
  float *data;
  int refused;
  int64_t dense[MOST_AXES], step = 1;
  if ((refused = read_floats(&args[0], OPERAND_X, &x, &data)) || (refused = read_floats(&args[1], OPERAND_OUT, &out, &r->out)))
    return refused;
  r->x = data;
  if (x->ndim > MOST_AXES) return REFUSE(BAD_RANK, OPERAND_X);
  int first = (int)args[2].v_int64, end = (int)args[3].v_int64;
  if (first < 0 || end < first || end > x->ndim) return REFUSE(BAD_RANK, OPERAND_X);
  for (int d = x->ndim - 1; d >= 0; d--) {
    dense[d] = step;
    step *= x->shape[d];
  }
  const int64_t *strides = x->strides && step ? x->strides : dense; /* those of an empty tensor say nothing */
  if (!merge(x, strides, 0, first, &r->outer, &r->outer_stride) || !merge(x, strides, first, end, &r->depth, &r->depth_stride) ||
      !merge(x, strides, end, x->ndim, &r->inner, &r->inner_stride))
    return REFUSE(BAD_STRIDES, OPERAND_X);
  /* An axis of one element lies as well as any other. */
  if (r->depth == 1 && r->inner > 1 && r->inner_stride != 1) r->depth_stride = 1;
  if (r->depth_stride != 1 && r->inner != 1 && r->inner_stride != 1) return REFUSE(BAD_STRIDES, OPERAND_X);
  int at = 0; /* axes of one element say nothing: the launcher has compared the shapes as they are */
  for (int d = 0; d < x->ndim; d++) {
    if (x->shape[d] == 1 || (d >= first && d < end)) continue;
    while (at < out->ndim && out->shape[at] == 1) at++;
    if (at == out->ndim || out->shape[at++] != x->shape[d]) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  }
  while (at < out->ndim && out->shape[at] == 1) at++;
  if (at != out->ndim) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  if (r->outer * r->inner == 0) return 0;
  int64_t extent, stride;
  if (!merge(out, out->strides ? out->strides : dense, 0, out->strides ? out->ndim : 0, &extent, &stride) || stride != 1)
    return REFUSE(BAD_OUT_STRIDES, OPERAND_OUT);
  if (r->depth == 0 && vx_reduce_needs_one) return REFUSE(NOTHING_TO_REDUCE, OPERAND_X);
  const float *x_end = r->x + last_element(r->outer, r->outer_stride) + last_element(r->depth, r->depth_stride) + last_element(r->inner, r->inner_stride) + 1;
  if (r->depth && r->x < r->out + r->outer * r->inner && r->out < x_end) return REFUSE(OVERLAPS, OPERAND_X);
  return 0;
}

/* reduce(x, out, first axis, one past the last) */
EXPORT int __tvm_ffi_reduce(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_reduction r;
  int refused = open_reduction(args, &r);
  if (refused || r.outer * r.inner == 0) return answer(result, refused);
  return answer(result, vx_reduce(&r) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0);
}

static vx_reduction dense(const TVMFFIAny *args) {
  int64_t outer = args[0].v_int64, depth = args[1].v_int64, inner = args[2].v_int64;
  return (vx_reduction){.outer = outer, .depth = depth, .inner = inner, .outer_stride = depth * inner, .depth_stride = inner, .inner_stride = 1};
}

/* sweeps(outer, depth, inner, threads, place) of a contiguous tensor -> how many sweeps, then the fields of each */
EXPORT int __tvm_ffi_sweeps(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_reduction r = dense(args);
  vx_reduce_sweep sweeps[VX_REDUCE_SWEEPS];
  int64_t known = vx_reduce_sweeps(&r, args[3].v_int64, sweeps), place = args[4].v_int64, fields = sizeof *sweeps / sizeof(int64_t);
  if (place < 1 || place > known * fields) return answer(result, known);
  return answer(result, ((const int64_t *)sweeps)[place - 1]);
}

/* time_sweeps(outer, depth, inner, threads, repeats) -> nanoseconds that choosing them takes so often */
EXPORT int __tvm_ffi_time_sweeps(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_reduction r = dense(args);
  vx_reduce_sweep sweeps[VX_REDUCE_SWEEPS];
  struct timespec start, end;
  volatile int64_t chosen = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < args[4].v_int64; i++) chosen += vx_reduce_sweeps(&r, args[3].v_int64, sweeps);
  clock_gettime(CLOCK_MONOTONIC, &end);
  return answer(result, (end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec);
}
