/* The door: what Python calls through tvm-ffi. Every operand is checked here, once; a refusal is a number that Python turns into words.
 *
 * Nothing of libtvm_ffi is linked: only its plain-C value layout is read. */
#include "vortex_runtime.h"

#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))
#define REFUSE(reason, operand) ((reason) | (operand) << 8)
enum { OPERAND_A = 0, OPERAND_B = 1, OPERAND_OUT = 2 };
#define MOST_SPLITS 32767 /* what a plan has room for on its way to Python */
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, ACCUMULATE = 4 };
/* Mirrored by launcher.REASONS. */
enum {
  NOT_A_TENSOR = 1,
  BAD_RANK,
  BAD_DTYPE,
  BAD_DEVICE,
  BAD_STRIDES,
  MISALIGNED,
  INNER_DIFFERS,
  BAD_OUT_SHAPE,
  OVERLAPS,
  OUT_OF_MEMORY,
  BAD_PACKED,
  BAD_PLAN
};

/* A matrix in memory: `rows` lines of `columns` contiguous elements, `stride` elements apart. */
typedef struct {
  float *data;
  int64_t rows, columns, stride;
  int is_transposed; /* the tensor was column-major, so lines are its columns */
} matrix;

static const DLTensor *tensor_of(const TVMFFIAny *value) {
  if (value->type_index == kTVMFFIDLTensorPtr) return (const DLTensor *)value->v_ptr;
  if (value->type_index == kTVMFFITensor) return (const DLTensor *)((const char *)value->v_obj + sizeof(TVMFFIObject));
  return NULL;
}

static int read_floats(const TVMFFIAny *value, int operand, int rank, const DLTensor **tensor, float **data) {
  const DLTensor *t = tensor_of(value);
  if (!t) return REFUSE(NOT_A_TENSOR, operand);
  if (t->device.device_type != kDLCPU) return REFUSE(BAD_DEVICE, operand);
  if (t->ndim != rank) return REFUSE(BAD_RANK, operand);
  if (t->dtype.code != kDLFloat || t->dtype.bits != 32 || t->dtype.lanes != 1) return REFUSE(BAD_DTYPE, operand);
  *tensor = t;
  *data = (float *)((char *)t->data + t->byte_offset);
  return (uintptr_t)*data % sizeof(float) ? REFUSE(MISALIGNED, operand) : 0;
}

static int read_matrix(const TVMFFIAny *value, int operand, matrix *out) {
  const DLTensor *t;
  int refused = read_floats(value, operand, 2, &t, &out->data);
  if (refused) return refused;
  int64_t r = t->shape[0], c = t->shape[1];
  int64_t down = t->strides ? t->strides[0] : c, along = t->strides ? t->strides[1] : 1;
  int empty = r == 0 || c == 0;
  if (empty || ((c == 1 || along == 1) && (r == 1 || down >= c))) {
    out->rows = r;
    out->columns = c;
    out->stride = r <= 1 || empty || down < c ? (c > 0 ? c : 1) : down;
    out->is_transposed = 0;
    return 0;
  }
  if ((r == 1 || down == 1) && (c == 1 || along >= r)) {
    out->rows = c;
    out->columns = r;
    out->stride = c <= 1 || along < r ? r : along;
    out->is_transposed = 1;
    return 0;
  }
  return REFUSE(BAD_STRIDES, operand);
}

/* Whether some element belongs to both. Exact for equal strides; otherwise two ranges that meet count as overlapping. */
static int overlap(const matrix *x, const matrix *y) {
  if (!x->rows || !x->columns || !y->rows || !y->columns) return 0;
  const float *x_end = x->data + (x->rows - 1) * x->stride + x->columns;
  const float *y_end = y->data + (y->rows - 1) * y->stride + y->columns;
  if (x_end <= y->data || y_end <= x->data) return 0;
  if (x->stride != y->stride) return 1;
  int64_t apart = (x->data - y->data) % x->stride;
  if (apart < 0) apart += x->stride;
  return !(apart >= y->columns && apart + x->columns <= x->stride);
}

/* Fill a call from its operands; `packed` is NULL or the packed operand, whose logical extents are n and k. */
static int open_call(const TVMFFIAny *args, int64_t flags, int packed, int64_t n, int64_t k, vx_call *call) {
  matrix a, b, c;
  int refused;
  if ((refused = read_matrix(&args[0], OPERAND_A, &a)) || (refused = read_matrix(&args[2], OPERAND_OUT, &c))) return refused;
  int col_a = !!(flags & TRANSPOSE_A) ^ a.is_transposed, col_b = 0;
  call->m = col_a ? a.columns : a.rows;
  call->k = col_a ? a.rows : a.columns;
  if (packed) {
    const DLTensor *t;
    if ((refused = read_floats(&args[1], OPERAND_B, 1, &t, &b.data))) return refused;
    int64_t panels = (n + vx_panel - 1) / vx_panel;
    if (t->shape[0] != panels * k * vx_panel) return REFUSE(BAD_PACKED, OPERAND_B);
    b = (matrix){b.data, 1, t->shape[0], t->shape[0] > 0 ? t->shape[0] : 1, 0};
    call->n = n;
    if (k != call->k) return REFUSE(INNER_DIFFERS, OPERAND_B);
  } else {
    if ((refused = read_matrix(&args[1], OPERAND_B, &b))) return refused;
    col_b = !!(flags & TRANSPOSE_B) ^ b.is_transposed;
    call->n = col_b ? b.rows : b.columns;
    if ((col_b ? b.columns : b.rows) != call->k) return REFUSE(INNER_DIFFERS, OPERAND_B);
  }
  if (c.is_transposed) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (c.rows != call->m || c.columns != call->n) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  if (overlap(&c, &a)) return REFUSE(OVERLAPS, OPERAND_A);
  if (overlap(&c, &b)) return REFUSE(OVERLAPS, OPERAND_B);
  call->a = a.data;
  call->b = b.data;
  call->c = c.data;
  call->lda = a.stride;
  call->ldb = packed ? vx_panel : b.stride;
  call->ldc = c.stride;
  call->panel = packed ? vx_panel : (int64_t)1 << 40;
  call->panel_stride = packed ? vx_panel * call->k : 0;
  call->transpose_a = col_a;
  call->transpose_b = col_b;
  call->packed = packed;
  call->accumulate = !!(flags & ACCUMULATE);
  return 0;
}

static int run(const vx_call *call, const vx_plan *plan) {
  if (call->m == 0 || call->n == 0) return 0;
  return vx_execute(call, plan) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0;
}

static int answer(TVMFFIAny *result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = value;
  return 0;
}

/* gemm(a, b, out, flags) */
EXPORT int __tvm_ffi_gemm(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call;
  int refused = open_call(args, args[3].v_int64, 0, 0, 0, &call);
  if (refused) return answer(result, refused);
  vx_plan plan = vx_select(&call, vx_get_threads());
  return answer(result, run(&call, &plan));
}

/* gemm_packed(a, packed, out, flags, n, k) */
EXPORT int __tvm_ffi_gemm_packed(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call;
  int refused = open_call(args, args[3].v_int64, 1, args[4].v_int64, args[5].v_int64, &call);
  if (refused) return answer(result, refused);
  vx_plan plan = vx_select(&call, vx_get_threads());
  return answer(result, run(&call, &plan));
}

/* gemm_planned(a, b or packed, out, flags, n, k, packed, strategy, grid_m, grid_n, splits): what the oracle of the evaluation calls. */
EXPORT int __tvm_ffi_gemm_planned(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call;
  vx_plan plan = {args[7].v_int64, args[8].v_int64, args[9].v_int64, args[10].v_int64, vx_get_threads()};
  int refused = open_call(args, args[3].v_int64, (int)args[6].v_int64, args[4].v_int64, args[5].v_int64, &call);
  if (refused) return answer(result, refused);
  if (plan.strategy < 0 || plan.strategy >= vx_strategy_count || plan.grid_m < 1 || plan.grid_n < 1 || plan.splits < 1 || plan.splits > MOST_SPLITS)
    return answer(result, REFUSE(BAD_PLAN, OPERAND_OUT));
  const vx_strategy *s = &vx_strategies[plan.strategy];
  if (s->dot && !vx_dot_columns(&call)) return answer(result, REFUSE(BAD_PLAN, OPERAND_B));
  if (!s->dot && ((s->swap ? call.packed || (!call.transpose_a && !s->pack_b) : call.transpose_b && !s->pack_b) || (call.packed && (s->pack_b || vx_panel != s->vectors * vx_lanes))))
    return answer(result, REFUSE(BAD_PLAN, OPERAND_B));
  return answer(result, run(&call, &plan));
}

/* pack(b, target, flags): panels of vx_panel columns, each k lines; columns past the last are left as they are. */
EXPORT int __tvm_ffi_pack(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  matrix b;
  const DLTensor *t;
  float *target;
  int refused;
  if ((refused = read_matrix(&args[0], OPERAND_B, &b)) || (refused = read_floats(&args[1], OPERAND_OUT, 1, &t, &target)))
    return answer(result, refused);
  int col_b = !!(args[2].v_int64 & TRANSPOSE_B) ^ b.is_transposed;
  int64_t n = col_b ? b.rows : b.columns, k = col_b ? b.columns : b.rows;
  if (t->shape[0] != (n + vx_panel - 1) / vx_panel * k * vx_panel) return answer(result, REFUSE(BAD_PACKED, OPERAND_OUT));
  int64_t whole = col_b ? 0 : n / vx_panel;
  for (int64_t i = 0; i < k && whole; i++)
    vortex_copy(b.data + i * b.stride, target + i * vx_panel, whole, vx_panel, vx_panel, vx_panel * k);
  for (int64_t first = whole * vx_panel; first < n; first += vx_panel) {
    int64_t width = n - first < vx_panel ? n - first : vx_panel;
    if (col_b)
      vortex_transpose(b.data + first * b.stride, target + first * k, k, width, b.stride, vx_panel);
    else
      vortex_copy(b.data + first, target + first * k, k, width, b.stride, vx_panel);
  }
  return answer(result, 0);
}

static vx_call shape_only(const TVMFFIAny *args) {
  return (vx_call){.m = args[0].v_int64, .n = args[1].v_int64, .k = args[2].v_int64, .lda = args[3].v_int64,
                   .ldb = args[4].v_int64, .transpose_a = (int32_t)args[5].v_int64,
                   .transpose_b = (int32_t)args[6].v_int64, .packed = (int32_t)args[7].v_int64};
}

/* select(m, n, k, lda, ldb, a_is_col, b_is_transposed, packed, threads) -> strategy + grid_m 2^16 + grid_n 2^32 + splits 2^48 */
EXPORT int __tvm_ffi_select(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call = shape_only(args);
  vx_plan plan = vx_select(&call, args[8].v_int64);
  return answer(result, plan.strategy | plan.grid_m << 16 | plan.grid_n << 32 | plan.splits << 48);
}

/* time_selection(m, n, k, lda, ldb, a_is_col, b_is_transposed, packed, threads, repeats) -> nanoseconds in all */
EXPORT int __tvm_ffi_time_selection(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call = shape_only(args);
  return answer(result, (int64_t)(1e9 * vx_time_selection(&call, args[8].v_int64, args[9].v_int64)));
}

EXPORT int __tvm_ffi_set_threads(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_set_threads(args[0].v_int64);
  return answer(result, vx_get_threads());
}
