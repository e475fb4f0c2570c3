/* The door of batched and grouped products: every operand is checked here, once; a refusal is a number that Python turns into words. */
#include "batch.h"
#include "integers.h"
#include "products.h"

#include <time.h>

#define MOST_RANK 4

/* Matrices along up to two axes, outer first; an axis that is missing, or along which all are one, has stride 0. */
typedef struct {
  matrix item;
  int64_t extents[2], strides[2];
} matrices;

/* The axes before the last `inner` ones. */
static int read_axes(const DLTensor *t, int inner, int operand, matrices *out) {
  int64_t step = 1;
  for (int axis = t->ndim - inner; axis < t->ndim; axis++) step *= t->shape[axis];
  for (int axis = 1; axis >= 0; axis--) {
    int place = t->ndim - inner - 2 + axis;
    out->extents[axis] = place < 0 ? 1 : t->shape[place];
    out->strides[axis] = place < 0 || t->shape[place] == 1 ? 0 : t->strides ? t->strides[place] : step;
    if (out->strides[axis] < 0) return REFUSE(BAD_STRIDES, operand);
    step *= out->extents[axis];
  }
  return 0;
}

static int read_matrices(const TVMFFIAny *value, int operand, const vx_operand *type, matrices *out) {
  const DLTensor *t;
  int refused = read_elements(value, operand, 2, MOST_RANK, type, &t, &out->item.data);
  if (refused) return refused;
  out->item.item_bytes = type->bits / 8;
  if (!lay_out(t, 0, &out->item)) return REFUSE(BAD_STRIDES, operand);
  return read_axes(t, 2, operand, out);
}

/* Lines of contiguous elements along up to two axes: the panels of every packed matrix, [..., packed_room], or what a store stage reads
 * per column or per row. */
static int read_lines(const TVMFFIAny *value, int operand, const vx_operand *type, matrices *out) {
  const DLTensor *t;
  int refused = read_elements(value, operand, 1, MOST_RANK - 1, type, &t, &out->item.data);
  if (refused) return refused;
  int64_t length = t->shape[t->ndim - 1];
  if (length > 1 && t->strides && t->strides[t->ndim - 1] != 1) return REFUSE(BAD_STRIDES, operand);
  out->item = (matrix){out->item.data, 1, length, length > 0 ? length : 1, type->bits / 8, 0};
  return read_axes(t, 1, operand, out);
}

static int empty(const matrices *x) {
  return !x->item.rows || !x->item.columns || !x->extents[0] || !x->extents[1];
}

static int64_t reach(const matrices *x) {
  return (x->extents[0] - 1) * x->strides[0] + (x->extents[1] - 1) * x->strides[1] + (x->item.rows - 1) * x->item.stride +
         x->item.columns;
}

/* What every line of a tensor starts on a multiple of, 0 for a single line. */
static int64_t spacing(const matrices *x) {
  int64_t step = x->item.rows > 1 ? x->item.stride : 0;
  for (int axis = 0; axis < 2; axis++)
    if (x->extents[axis] > 1) step = greatest_divisor(x->strides[axis], step);
  return step;
}

/* Whether some element may belong to both: never where lines of one lie between those of the other. */
static int overlap(const matrices *x, const matrices *y) {
  int64_t bytes = x->item.item_bytes;
  if (empty(x) || empty(y)) return 0;
  if (x->item.data + reach(x) * bytes <= y->item.data || y->item.data + reach(y) * y->item.item_bytes <= x->item.data) return 0;
  if (bytes != y->item.item_bytes) return 1;
  int64_t step = greatest_divisor(spacing(x), spacing(y));
  if (step == 0) return 1;
  int64_t apart = (x->item.data - y->item.data) / bytes % step;
  if (apart < 0) apart += step;
  return !(apart >= y->item.columns && apart + x->item.columns <= step);
}

/* Whether two elements of an output share memory: each axis, by stride, must step over all that those below it fill. */
static int overlaps_itself(const matrices *x) {
  if (empty(x)) return 0;
  int64_t extents[3] = {x->item.rows, x->extents[0], x->extents[1]};
  int64_t strides[3] = {x->item.stride, x->strides[0], x->strides[1]};
  int64_t filled = x->item.columns;
  for (int taken = 0; taken < 3; taken++) {
    int least = -1;
    for (int i = 0; i < 3; i++)
      if (extents[i] > 1 && (least < 0 || strides[i] < strides[least])) least = i;
    if (least < 0) return 0;
    if (strides[least] < filled) return 1;
    filled += (extents[least] - 1) * strides[least];
    extents[least] = 1;
  }
  return 0;
}

/* The rows, columns and depth of the first product, from its operands as they lie. */
static int open_item(const TVMFFIAny *args, const matrix *a, const matrix *b, const matrix *c, vx_call *call) {
  int packed = (int)args[4].v_int64;
  int64_t flags = args[3].v_int64, n = args[5].v_int64, k = args[6].v_int64;
  int col_a = !!(flags & TRANSPOSE_A) ^ a->is_transposed, col_b = !packed && (!!(flags & TRANSPOSE_B) ^ b->is_transposed);
  call->a = (const float *)a->data;
  call->b = (const float *)b->data;
  call->c = (float *)c->data;
  call->lda = a->stride;
  call->ldc = c->stride;
  call->transpose_a = col_a;
  call->transpose_b = col_b;
  call->accumulate = !!(flags & ACCUMULATE);
  call->m = col_a ? a->columns : a->rows;
  call->k = col_a ? a->rows : a->columns;
  call->n = packed ? n : col_b ? b->rows : b->columns;
  call->outputs = call->m * call->n;
  lay_panels(call, packed, b->stride);
  if (!read_zero(flags, call)) return REFUSE(BAD_ZERO, OPERAND_A);
  if (packed && b->columns != packed_room(n, k)) return REFUSE(BAD_PACKED, OPERAND_B);
  if ((packed ? k : col_b ? b->columns : b->rows) != call->k) return REFUSE(INNER_DIFFERS, OPERAND_B);
  if (c->is_transposed) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (c->rows != call->m || c->columns != call->n) return REFUSE(BAD_OUT_SHAPE, OPERAND_OUT);
  return vx_apart && call->accumulate ? REFUSE(NO_SUMS, OPERAND_OUT) : 0;
}

/* Operands a, b or packed, out; flags; packed, n, k: what both operators read alike. */
static int read_operands(const TVMFFIAny *args, matrices *a, matrices *b, matrices *c, vx_call *call) {
  int refused;
  if ((refused = read_matrices(&args[0], OPERAND_A, type_of_a(&args[0], &call->flip), a)) ||
      (refused = read_matrices(&args[2], OPERAND_OUT, &vx_out, c)) ||
      (refused = args[4].v_int64 ? read_lines(&args[1], OPERAND_B, &vx_packed, b) : read_matrices(&args[1], OPERAND_B, &vx_factor, b)))
    return refused;
  return 0;
}

/* Operand number `x` of the store stage of a call whose extents are known; the axes before its own are not looked at. */
static int read_extra(const TVMFFIAny *value, int64_t x, vx_call *call, const matrices *c, matrices *out) {
  const vx_operand *type = &vx_operands[x];
  int operand = OPERAND_EXTRA + (int)x, whole = type->per == VX_PER_ELEMENT;
  int refused = (whole ? read_matrices : read_lines)(value, operand, type, out);
  if (refused) return refused;
  if (out->item.is_transposed && whole) return REFUSE(BAD_STRIDES, operand);
  if (out->item.columns != (type->per == VX_PER_ROW ? call->m : call->n) || (whole && out->item.rows != call->m))
    return REFUSE(BAD_EXTRA_SHAPE, operand);
  call->extras[x] = (vx_extra){out->item.data, whole ? out->item.stride : type->per == VX_PER_ROW, type->per != VX_PER_ROW};
  return overlap(c, out) ? REFUSE(OVERLAPS, operand) : 0;
}

static int apart(const matrices *a, const matrices *b, const matrices *c) {
  if (overlaps_itself(c)) return REFUSE(BAD_STRIDES, OPERAND_OUT);
  if (overlap(c, a)) return REFUSE(OVERLAPS, OPERAND_A);
  return overlap(c, b) ? REFUSE(OVERLAPS, OPERAND_B) : 0;
}

/* A batch from its operands and the `extras` of its store stage, `count` of them. */
static int open_batch(const TVMFFIAny *args, const TVMFFIAny *extras, int64_t count, vx_batch *batch) {
  matrices a, b, c, extra;
  *batch = (vx_batch){{0}};
  int refused;
  if ((refused = read_operands(args, &a, &b, &c, &batch->call)) || (refused = open_item(args, &a.item, &b.item, &c.item, &batch->call)))
    return refused;
  for (int axis = 0; axis < 2; axis++) {
    int64_t left = a.extents[axis], right = b.extents[axis], all = left == 1 ? right : left;
    if (right != all && right != 1) return REFUSE(BATCH_DIFFERS, OPERAND_B);
    if (c.extents[axis] != all) return REFUSE(BATCH_DIFFERS, OPERAND_OUT);
    batch->extents[axis] = all;
    batch->a[axis] = a.strides[axis];
    batch->b[axis] = b.strides[axis];
    batch->c[axis] = c.strides[axis];
  }
  if (count != vx_operand_count) return REFUSE(BAD_EXTRAS, OPERAND_OUT);
  for (int64_t x = 0; x < count; x++) {
    if ((refused = read_extra(&extras[x], x, &batch->call, &c, &extra))) return refused;
    for (int axis = 0; axis < 2; axis++) {
      if (extra.extents[axis] != batch->extents[axis] && extra.extents[axis] != 1) return REFUSE(BATCH_DIFFERS, OPERAND_EXTRA + (int)x);
      batch->extras[x][axis] = extra.strides[axis];
    }
  }
  return apart(&a, &b, &c);
}

static int run(vx_batch *batch, const vx_plan *given) {
  vx_call *call = &batch->call;
  if (call->m == 0 || call->n == 0 || vx_products(batch) == 0) return 0;
  int alone = vx_products(batch) == 1;
  if (alone && !given) return vx_run(call) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0;
  vx_plan plan = given ? *given : vx_select_products(batch, vx_get_threads());
  return (alone ? vx_execute(call, &plan) : vx_execute_batch(batch, &plan)) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0;
}

/* batch_gemm(a, b or packed, out, flags, packed, n, k, extras...) */
EXPORT int __tvm_ffi_batch_gemm(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_batch batch;
  int refused = open_batch(args, args + 7, count - 7, &batch);
  if (refused) return answer(result, refused);
  vx_fold(&batch);
  return answer(result, run(&batch, NULL));
}

/* batch_gemm_planned(a, b or packed, out, flags, packed, n, k, strategy, grid_m, grid_n, workers, extras...): products as they are, none
 * folded. */
EXPORT int __tvm_ffi_batch_gemm_planned(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_batch batch;
  vx_plan plan = {args[7].v_int64, args[8].v_int64, args[9].v_int64, 1, args[10].v_int64};
  int refused = open_batch(args, args + 11, count - 11, &batch);
  if (refused) return answer(result, refused);
  if (plan.grid_m < 1 || plan.grid_n < 1 || plan.workers < 1) return answer(result, REFUSE(BAD_PLAN, OPERAND_OUT));
  if (!vx_serves(&batch.call, plan.strategy)) return answer(result, REFUSE(BAD_PLAN, OPERAND_B));
  return answer(result, run(&batch, &plan));
}

/* grouped_gemm(a, b or packed, out, flags, packed, n, k, rows, extras...) */
EXPORT int __tvm_ffi_grouped_gemm(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  matrices a, b, c, extra;
  vx_grouped work = {{0}};
  int refused = read_operands(args, &a, &b, &c, &work.call);
  if (refused) return answer(result, refused);
  int64_t total = 0;
  if (a.extents[0] * a.extents[1] != 1) return answer(result, REFUSE(BAD_RANK, OPERAND_A));
  if (c.extents[0] * c.extents[1] != 1) return answer(result, REFUSE(BAD_RANK, OPERAND_OUT));
  if (b.extents[0] != 1) return answer(result, REFUSE(BAD_RANK, OPERAND_B));
  if ((refused = open_item(args, &a.item, &b.item, &c.item, &work.call))) return answer(result, refused);
  if (count - 8 != vx_operand_count) return answer(result, REFUSE(BAD_EXTRAS, OPERAND_OUT));
  for (int64_t x = 0; x < vx_operand_count; x++) {
    int64_t most = vx_operands[x].per == VX_PER_COLUMN ? b.extents[1] : 1; /* what is per row or element goes by the rows of all groups */
    if ((refused = read_extra(&args[8 + x], x, &work.call, &c, &extra))) return answer(result, refused);
    if (extra.extents[0] != 1 || (extra.extents[1] != 1 && extra.extents[1] != most))
      return answer(result, REFUSE(BATCH_DIFFERS, OPERAND_EXTRA + (int)x));
    work.extras[x] = extra.strides[1];
  }
  if ((refused = apart(&a, &b, &c))) return answer(result, refused);
  const DLTensor *rows = tensor_of(&args[7]);
  if (!rows || rows->ndim != 1 || rows->dtype.code != kDLInt || rows->dtype.bits != 64)
    return answer(result, REFUSE(BAD_ROWS, OPERAND_ROWS));
  work.rows = (const int64_t *)((const char *)rows->data + rows->byte_offset);
  work.groups = rows->shape[0];
  work.stride_b = b.strides[1];
  if (work.groups != b.extents[1]) return answer(result, REFUSE(BATCH_DIFFERS, OPERAND_B));
  for (int64_t g = 0; g < work.groups; g++) {
    if (work.rows[g] < 0 || work.rows[g] > work.call.m - total) return answer(result, REFUSE(BAD_ROWS, OPERAND_ROWS));
    total += work.rows[g];
  }
  if (total != work.call.m) return answer(result, REFUSE(BAD_ROWS, OPERAND_ROWS));
  if (total == 0 || work.call.n == 0) return answer(result, 0);
  return answer(result, vx_execute_grouped(&work, vx_get_threads()) ? REFUSE(OUT_OF_MEMORY, OPERAND_OUT) : 0);
}

static vx_call shape_only(const TVMFFIAny *args) {
  return (vx_call){.m = args[0].v_int64, .n = args[1].v_int64, .k = args[2].v_int64, .lda = args[3].v_int64,
                   .ldb = args[4].v_int64, .transpose_a = (int32_t)args[5].v_int64,
                   .transpose_b = (int32_t)args[6].v_int64, .packed = (int32_t)args[7].v_int64};
}

/* select_batch(m, n, k, lda, ldb, a_is_col, b_is_transposed, packed, threads, batch, items_a, items_b) ->
 * strategy + grid_m 2^16 + grid_n 2^32 + splits 2^48, and 2^15 if several threads share the tasks */
EXPORT int __tvm_ffi_select_batch(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call = shape_only(args);
  vx_plan plan = vx_select_batch(&call, args[9].v_int64, args[10].v_int64, args[11].v_int64, args[8].v_int64);
  return answer(result, plan.strategy | (int64_t)(plan.workers > 1) << 15 | plan.grid_m << 16 | plan.grid_n << 32 | plan.splits << 48);
}

/* time_select_batch(the same, repeats) -> nanoseconds of all repeats */
EXPORT int __tvm_ffi_time_select_batch(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  vx_call call = shape_only(args);
  struct timespec start, end;
  volatile int64_t chosen = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < args[12].v_int64; i++)
    chosen += vx_select_batch(&call, args[9].v_int64, args[10].v_int64, args[11].v_int64, args[8].v_int64).strategy;
  clock_gettime(CLOCK_MONOTONIC, &end);
  return answer(result, (end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec);
}
