/* The door of products: what Python calls through tvm-ffi. Every operand is checked here, once; a refusal is a number that Python turns
 * into words. */
#include "arrays.h"
#include "fold.h"
#include "opened.h"

#include <tvm/ffi/extra/c_env_api.h>

/* All that is called of tvm-ffi, where a result is made: without it the other doors still open. */
#pragma weak TVMFFIEnvTensorAlloc
#pragma weak TVMFFIObjectDecRef

#define UNREAD -1   /* no refusal: the caller has another way; mirrored by launcher.UNREAD */

static int read_a(const TVMFFIAny *value, int laps, matrix *out, int32_t *flip) {
  return read_rows(value, OPERAND_A, type_of_a(value, flip), laps, out);
}

/* Whether some element belongs to both. Exact for equal strides of equal elements; otherwise two ranges that meet count as
 * overlapping. */
static int overlap(const matrix *x, const matrix *y) {
  if (!x->rows || !x->columns || !y->rows || !y->columns) return 0;
  const char *x_end = x->data + ((x->rows - 1) * x->stride + x->columns) * x->item_bytes;
  const char *y_end = y->data + ((y->rows - 1) * y->stride + y->columns) * y->item_bytes;
  if (x_end <= y->data || y_end <= x->data) return 0;
  if (x->stride != y->stride || x->item_bytes != y->item_bytes) return 1;
  int64_t apart = (x->data - y->data) / x->item_bytes % x->stride;
  if (apart < 0) apart += x->stride;
  return !(apart >= y->columns && apart + x->columns <= x->stride);
}

/* The operands of the store stage, `count` of them in its order, of a call whose extents and output are known. */
static int read_extras(const TVMFFIAny *args, int64_t count, const matrix *out, vx_call *call) {
  if (count != vx_operand_count) return REFUSE(BAD_EXTRAS, OPERAND_OUT);
  for (int64_t x = 0; x < count; x++) {
    const vx_operand *type = &vx_operands[x];
    int operand = OPERAND_EXTRA + (int)x, refused;
    matrix given;
    if (type->per == VX_PER_ELEMENT) {
      if ((refused = read_matrix(&args[x], operand, type, &given))) return refused;
      if (given.is_transposed) return REFUSE(BAD_STRIDES, operand);
      if (given.rows != call->m || given.columns != call->n) return REFUSE(BAD_EXTRA_SHAPE, operand);
      call->extras[x] = (vx_extra){given.data, given.stride, 1};
    } else {
      const DLTensor *t;
      int64_t extent = type->per == VX_PER_ROW ? call->m : call->n;
      if ((refused = read_elements(&args[x], operand, 1, 1, type, &t, &given.data))) return refused;
      if (t->shape[0] != extent) return REFUSE(BAD_EXTRA_SHAPE, operand);
      if (extent > 1 && t->strides && t->strides[0] != 1) return REFUSE(BAD_STRIDES, operand);
      given = (matrix){given.data, 1, extent, extent > 0 ? extent : 1, type->bits / 8, 0};
      call->extras[x] = (vx_extra){given.data, type->per == VX_PER_ROW, type->per == VX_PER_COLUMN};
    }
    if (overlap(out, &given)) return REFUSE(OVERLAPS, operand);
  }
  for (int64_t x = count; x < VX_EXTRAS; x++) call->extras[x] = (vx_extra){0};
  return 0;
}

int vx_open_call(const TVMFFIAny *args, const TVMFFIAny *extras, int64_t count, int64_t flags, int packed, int64_t n, int64_t k,
                 vx_call *call) {
  matrix a, b, c;
  int refused, laps = !!(flags & LAPS);
  if ((refused = read_a(&args[0], laps, &a, &call->flip)) || (refused = read_rows(&args[2], OPERAND_OUT, &vx_out, laps, &c)))
    return refused;
  if (!read_zero(flags, call)) return REFUSE(BAD_ZERO, OPERAND_A);
  if (vx_apart && flags & ACCUMULATE) return REFUSE(NO_SUMS, OPERAND_OUT);
  int col_a = !!(flags & TRANSPOSE_A) ^ a.is_transposed, col_b = 0;
  call->m = col_a ? a.columns : a.rows;
  call->k = col_a ? a.rows : a.columns;
  if (packed) {
    const DLTensor *t;
    if ((refused = read_elements(&args[1], OPERAND_B, 1, 1, &vx_packed, &t, &b.data))) return refused;
    if (t->shape[0] != packed_room(n, k)) return REFUSE(BAD_PACKED, OPERAND_B);
    b = (matrix){b.data, 1, t->shape[0], t->shape[0] > 0 ? t->shape[0] : 1, 4, 0};
    call->n = n;
    if (k != call->k) return REFUSE(INNER_DIFFERS, OPERAND_B);
  } else {
    if (VX_WEIGHTS) return REFUSE(NOT_PACKED, OPERAND_B);
    if ((refused = read_rows(&args[1], OPERAND_B, &vx_factor, laps, &b))) return refused;
    col_b = !!(flags & TRANSPOSE_B) ^ b.is_transposed;
    call->n = col_b ? b.rows : b.columns;
    if ((col_b ? b.columns : b.rows) != call->k) return REFUSE(INNER_DIFFERS, OPERAND_B);
  }
  if ((vx_fixed[0] && call->m != vx_fixed[0]) || (vx_fixed[2] && call->k != vx_fixed[2])) return REFUSE(FIXED_EXTENT, OPERAND_A);
  if (vx_fixed[1] && call->n != vx_fixed[1]) return REFUSE(FIXED_EXTENT, OPERAND_B);
  if (c.is_transposed) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (c.rows != call->m || c.columns != call->n) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  if (overlap(&c, &a)) return REFUSE(OVERLAPS, OPERAND_A);
  if (overlap(&c, &b)) return REFUSE(OVERLAPS, OPERAND_B);
  if ((refused = read_extras(extras, count, &c, call))) return refused;
  call->a = (const float *)a.data;
  call->b = (const float *)b.data;
  call->c = (float *)c.data;
  call->lda = a.stride;
  call->ldc = c.stride;
  lay_panels(call, packed, b.stride);
  call->transpose_a = col_a;
  call->transpose_b = col_b;
  call->outputs = call->m * call->n;
  call->accumulate = !!(flags & ACCUMULATE);
  return 0;
}

static int run(const vx_call *call) {
  if (call->m == 0 || call->n == 0) return 0;
  return vx_run(call) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0;
}

/* gemm(a, b, out, flags, extras...) */
EXPORT int __tvm_ffi_gemm(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call;
  int refused = vx_open_call(args, args + 4, count - 4, args[3].v_int64, 0, 0, 0, &call);
  if (refused) return answer(result, refused);
  return answer(result, run(&call));
}

/* The result in a tensor of the kind of `a`, of which tvm-ffi knows how one is made; else the refusal. */
static int make(const TVMFFIAny *a, const TVMFFIAny *b, const TVMFFIAny *extras, int64_t count, int64_t flags, int64_t n, int64_t k,
                TVMFFIAny *result) {
  matrix left, right;
  DLTensor rows, flat;
  int64_t room[4], extents[MOST_RANK] = {0};
  int32_t flip;
  int refused, packed = !!(flags & PACKED), leading = 1;
  TVMFFIAny given[3] = {*a, *b};
  const DLTensor *t = tensor_of(a);
  if (flags & FOLDED && t && t->ndim != 2 && fold(t, &rows, room)) {
    given[0] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = &rows};
    leading = t->ndim - 1;
  }
  if ((refused = read_a(&given[0], 0, &left, &flip)) || (!packed && (refused = read_matrix(b, OPERAND_B, &vx_factor, &right))))
    return answer(result, refused);
  int col_a = !!(flags & TRANSPOSE_A) ^ left.is_transposed, col_b = !packed && !!(flags & TRANSPOSE_B) ^ right.is_transposed;
  int64_t m = col_a ? left.columns : left.rows;
  n = packed ? n : col_b ? right.rows : right.columns;
  for (int axis = 0; axis < leading; axis++) extents[axis] = leading == 1 ? m : t->shape[axis];
  extents[leading] = n;
  DLTensor like = {.device = {kDLCPU, 0}, .ndim = leading + 1, .dtype = {(uint8_t)vx_out.code, (uint8_t)vx_out.bits, 1}, .shape = extents};
  TVMFFIObjectHandle made;
  int failed = TVMFFIEnvTensorAlloc(&like, &made);
  if (failed) return failed;
  TVMFFIAny out = {.type_index = kTVMFFITensor, .v_obj = made};
  int64_t whole[] = {m, n};
  flat = *tensor_of(&out);
  flat.ndim = 2;
  flat.shape = whole;
  flat.strides = NULL;
  given[2] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = &flat};
  vx_call call;
  refused = vx_open_call(given, extras, count, flags, packed, n, k, &call);
  if (!refused) refused = run(&call);
  if (refused) {
    TVMFFIObjectDecRef(made);
    return answer(result, refused);
  }
  *result = out;
  return 0;
}

/* gemm_new(a, b, flags, extras...) */
EXPORT int __tvm_ffi_gemm_new(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return make(&args[0], &args[1], args + 3, count - 3, args[2].v_int64, 0, 0, result);
}

/* gemm_new_packed(a, b or packed, flags, n, k, extras...) */
EXPORT int __tvm_ffi_gemm_new_packed(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return make(&args[0], &args[1], args + 5, count - 5, args[2].v_int64, args[3].v_int64, args[4].v_int64, result);
}

/* gemm_packed(a, b or packed, out, flags, n, k, extras...) */
EXPORT int __tvm_ffi_gemm_packed(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call;
  int refused = vx_open_call(args, args + 6, count - 6, args[3].v_int64, !!(args[3].v_int64 & PACKED), args[4].v_int64, args[5].v_int64, &call);
  if (refused) return answer(result, refused);
  return answer(result, run(&call));
}

/* reads_arrays(address, data, rows, columns, bytes between rows, bytes between columns): whether NumPy's arrays may be passed by address. */
EXPORT int __tvm_ffi_reads_arrays(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return answer(result, is_array(args[0].v_int64, (const void *)(intptr_t)args[1].v_int64, args[2].v_int64, args[3].v_int64, args[4].v_int64,
                                 args[5].v_int64));
}

/* The values of a call whose arrays come by their addresses: the operands, and all behind the first `fixed`; 0 where one is not a plain
 * one. */
static int read_arrays(const TVMFFIAny *args, int32_t count, int32_t fixed, array_tensor *tensors, TVMFFIAny *values) {
  if (count > fixed + VX_EXTRAS) return 0;
  for (int32_t i = 0, found = 0; i < count; i++) {
    int is_array = i <= OPERAND_OUT || i >= fixed;
    if (!is_array)
      values[i] = args[i];
    else if (!read_array(args[i].v_int64, i == OPERAND_OUT, &tensors[found++], &values[i]))
      return 0;
  }
  return 1;
}

/* gemm_arrays(a, b, out, flags, extras...): as gemm, of arrays by their addresses; UNREAD where one is not a plain one. */
EXPORT int __tvm_ffi_gemm_arrays(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  array_tensor tensors[OPERAND_ROWS];
  TVMFFIAny values[4 + VX_EXTRAS];
  if (!read_arrays(args, count, 4, tensors, values)) return answer(result, UNREAD);
  return __tvm_ffi_gemm(self, values, count, result);
}

/* gemm_packed_arrays(a, b or packed, out, flags, n, k, extras...): as gemm_packed, likewise. */
EXPORT int __tvm_ffi_gemm_packed_arrays(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  array_tensor tensors[OPERAND_ROWS];
  TVMFFIAny values[6 + VX_EXTRAS];
  if (!read_arrays(args, count, 6, tensors, values)) return answer(result, UNREAD);
  return __tvm_ffi_gemm_packed(self, values, count, result);
}
